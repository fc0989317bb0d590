// What PyTorch's CUDA allocator is called with in the release that a test is compiled for, from 1.4 on.
#ifndef LMS_TESTS_RELEASE_H
#define LMS_TESTS_RELEASE_H

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>

#include <utility>

// From 2.0 on libtorch_cuda tells libc10_cuda whether a device is in use; it is declared in no header of the wheel.
namespace c10 {
namespace cuda {
namespace _internal {
__attribute__((weak)) void setHasPrimaryContext(bool (*function)(DeviceIndex));
}
}  // namespace cuda
}  // namespace c10

namespace release {

namespace functions = c10::cuda::CUDACachingAllocator;

// The release has the first of two forms if it compiles, and else the second.
template <typename Data>
auto record_stream_on(const Data& data, c10::cuda::CUDAStream stream, int /*preferred*/)
    -> decltype(functions::recordStream(data, stream)) {
  functions::recordStream(data, stream);
}
template <typename Data>
auto record_stream_on(const Data& data, c10::cuda::CUDAStream stream, long /*otherwise*/)
    -> decltype(functions::recordStream(data.get(), stream)) {
  functions::recordStream(data.get(), stream);
}
inline void record_stream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) { record_stream_on(data, stream, 0); }

// A stream that the program made, as one of PyTorch's. Older releases get another stream.
#if __has_include(<c10/cuda/CUDAAllocatorConfig.h>)
constexpr bool has_own_streams = true;
inline c10::cuda::CUDAStream stream_of(cudaStream_t made, c10::DeviceIndex device) {
  return c10::cuda::getStreamFromExternal(made, device);
}
#else
constexpr bool has_own_streams = false;
inline c10::cuda::CUDAStream stream_of(cudaStream_t /*made*/, c10::DeviceIndex device) {
  return c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device);
}
#endif

}  // namespace release

// Where the allocator has no init(), which older releases do not need, the name means this function.
namespace {
__attribute__((unused)) void init(int /*devices*/) {}
}  // namespace
namespace c10 {
namespace cuda {
namespace CUDACachingAllocator {
static void lms_init(int devices) { init(devices); }
}  // namespace CUDACachingAllocator
}  // namespace cuda
}  // namespace c10

namespace release {

// What libtorch_cuda does when CUDA is first used.
inline void start(int devices) {
  if (c10::cuda::_internal::setHasPrimaryContext != nullptr) {
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex index) {
      unsigned flags = 0;
      int active = 0;
      return cuDevicePrimaryCtxGetState(index, &flags, &active) == CUDA_SUCCESS && active != 0;
    });
  }
  functions::lms_init(devices);
}

}  // namespace release
#endif  // LMS_TESTS_RELEASE_H

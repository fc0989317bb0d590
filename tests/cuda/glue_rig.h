// What the tests of the CUDA glue share: tensors over the current allocator, operators on them, and the simulated CUDA.
// They use the wheel's libc10_cuda and libtorch_cpu; libtorch_cuda, with its kernels, is not needed.
#ifndef LMS_TESTS_GLUE_RIG_H
#define LMS_TESTS_GLUE_RIG_H

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/LmsCuda.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <cstdint>
#include <string>
#include <vector>

// The framework's logging has checks of the same names.
#undef CHECK
#undef CHECK_EQ
#include "check.h"
#include "sim.h"

// Declared in no header of the wheel; libtorch_cuda calls it when it is loaded.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*function)(DeviceIndex));
}

namespace rig {

using c10::cuda::CUDAStream;
using c10::cuda::CUDAStreamGuard;
using check::mib;

constexpr int device = 0;

inline c10::cuda::CUDACachingAllocator::CUDAAllocator* allocator() { return c10::cuda::CUDACachingAllocator::get(); }

// What libtorch_cuda does when CUDA is first used.
inline void start() {
  static const bool started = [] {
    c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex index) {
      unsigned flags = 0;
      int active = 0;
      return cuDevicePrimaryCtxGetState(index, &flags, &active) == CUDA_SUCCESS && active != 0;
    });
    c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count());
    return true;
  }();
  static_cast<void>(started);
}

inline void enable(uint64_t limit, uint64_t min_size = mib, bool strict = false, int index = device) {
  start();
  const lms_options options = check::options(limit, "lru", nullptr, strict, 4096 * mib);
  CHECK_EQ(lms_torch_cuda_enable(index, &options, min_size), LMS_OK);
}

inline void disable(int index = device) { CHECK_EQ(lms_torch_cuda_disable(index), LMS_OK); }

inline lms_pager* pager(int index = device) { return lms_torch_cuda_pager(index); }

inline uint64_t statistic(const char* name, int index = device) { return check::statistic(pager(index), name); }

inline at::Tensor over(c10::DataPtr data, uint64_t bytes) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), allocator(), /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(bytes)});
  return tensor;
}

inline at::Tensor empty(uint64_t bytes) { return over(allocator()->allocate(bytes), bytes); }

inline bool paged(const at::Tensor& tensor, int index = device) {
  return lms_owns(pager(index), tensor.unsafeGetTensorImpl()->unsafe_storage().data()) != 0;
}

inline uint8_t* address(const at::Tensor& tensor) {
  return static_cast<uint8_t*>(tensor.unsafeGetTensorImpl()->unsafe_storage().mutable_data());
}

// The operators; each only enqueues work on the current stream.
//   fill       says that it writes
//   sneak      does not, and writes
//   download   reads, to pinned host memory; in a namespace that is not trusted
//   aten::lms_test_download   the same in one that is
template <typename... Args>
void call(const char* name, Args... args) {
  static auto& dispatcher = c10::Dispatcher::singleton();
  dispatcher.findSchemaOrThrow(name, "").typed<void(Args...)>().call(args...);
}

inline void fill(const at::Tensor& tensor, int64_t value) {
  call<const at::Tensor&, int64_t>("lms_test::fill", tensor, value);
}
inline void sneak(const at::Tensor& tensor, int64_t value) {
  call<const at::Tensor&, int64_t>("lms_test::sneak", tensor, value);
}

// Pinned host memory.
class HostBytes {
 public:
  explicit HostBytes(uint64_t bytes) : bytes_(bytes) { CHECK_EQ(cudaMallocHost(&data_, bytes), cudaSuccess); }
  ~HostBytes() { cudaFreeHost(data_); }
  HostBytes(const HostBytes&) = delete;
  HostBytes& operator=(const HostBytes&) = delete;
  int64_t address() const { return reinterpret_cast<int64_t>(data_); }
  bool all(int64_t value) const {
    const auto* bytes = static_cast<const uint8_t*>(data_);
    for (uint64_t index = 0; index < bytes_; ++index) {
      if (bytes[index] != static_cast<uint8_t>(value)) {
        return false;
      }
    }
    return true;
  }

 private:
  void* data_ = nullptr;
  uint64_t bytes_;
};

inline void download(const at::Tensor& tensor, const HostBytes& host, bool trusted = true) {
  call<const at::Tensor&, int64_t>(trusted ? "aten::lms_test_download" : "lms_test::download", tensor, host.address());
}

inline bool holds(const at::Tensor& tensor, int64_t value, bool trusted = true) {
  const HostBytes host(tensor.numel());
  download(tensor, host, trusted);
  CHECK_EQ(cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream().stream()), cudaSuccess);
  return host.all(value);
}

inline std::string failure_of(void (*run)()) {
  try {
    run();
  } catch (const std::exception& error) {
    return error.what();
  }
  CHECK_FAIL("nothing was thrown");
}

}  // namespace rig

#endif  // LMS_TESTS_GLUE_RIG_H

// Stand-ins of the kernels that the programs launch on the simulated CUDA, and a pluggable allocator. A stand-in takes
// pointers to floats in device memory and their number, as Triton passes them, and loses the device where it may not
// touch the memory.
#include <cstddef>
#include <cstdint>

#include "sim.h"

extern "C" int cudaMalloc(void** address, std::size_t bytes);
extern "C" int cudaFree(void* address);

namespace {

template <typename Value>
Value argument(void** args, unsigned index) {
  return *static_cast<Value*>(args[index]);
}

// The device's floats are where the device has them: mappings of the simulation are real.
float* floats(void** args, unsigned index, std::int32_t count, int device, int access) {
  const auto address = argument<std::uint64_t>(args, index);
  if (sim_accessible(device, address, sizeof(float) * static_cast<std::uint64_t>(count), access) == 0) {
    sim_illegal_access(device);
    return nullptr;
  }
  return reinterpret_cast<float*>(address);
}

// out = 2 * in + 1
void affine(void** args, const sim_launch* launch) {
  const auto count = argument<std::int32_t>(args, 2);
  const float* in = floats(args, 0, count, launch->device, 1);
  float* out = floats(args, 1, count, launch->device, 3);
  for (std::int32_t index = 0; in != nullptr && out != nullptr && index < count; ++index) {
    out[index] = 2 * in[index] + 1;
  }
}

// out = left * right
void product(void** args, const sim_launch* launch) {
  const auto count = argument<std::int32_t>(args, 3);
  const float* left = floats(args, 0, count, launch->device, 1);
  const float* right = floats(args, 1, count, launch->device, 1);
  float* out = floats(args, 2, count, launch->device, 3);
  for (std::int32_t index = 0; left != nullptr && right != nullptr && out != nullptr && index < count; ++index) {
    out[index] = left[index] * right[index];
  }
}

// ATen's fill of 64-bit integers: the number of elements, the value, where they are.
void fill(void** args, const sim_launch* launch) {
  const auto count = argument<std::int32_t>(args, 0);
  const auto address = argument<std::uint64_t>(args, 2);
  if (sim_accessible(launch->device, address, sizeof(std::int64_t) * static_cast<std::uint64_t>(count), 3) == 0) {
    sim_illegal_access(launch->device);
    return;
  }
  for (std::int32_t index = 0; index < count; ++index) {
    reinterpret_cast<std::int64_t*>(address)[index] = argument<std::int64_t>(args, 1);
  }
}

constexpr std::size_t pointer = 8;
constexpr std::size_t number = 4;

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void register_affine(const char* name) {
  const std::size_t sizes[] = {pointer, pointer, number};
  sim_register_kernel(name, affine, 3, sizes);
}

__attribute__((visibility("default"))) void register_product(const char* name) {
  const std::size_t sizes[] = {pointer, pointer, pointer, number};
  sim_register_kernel(name, product, 4, sizes);
}

__attribute__((visibility("default"))) void register_fill(const char* name) {
  const std::size_t sizes[] = {number, sizeof(std::int64_t), pointer};
  sim_register_kernel(name, fill, 3, sizes);
}

// For torch.cuda.memory.CUDAPluggableAllocator.
__attribute__((visibility("default"))) void* plain_malloc(std::size_t bytes, int /*device*/, void* /*stream*/) {
  void* address = nullptr;
  return cudaMalloc(&address, bytes) == 0 ? address : nullptr;
}

__attribute__((visibility("default"))) void plain_free(void* address, std::size_t /*bytes*/, int /*device*/,
                                                       void* /*stream*/) {
  cudaFree(address);
}

// Triton's module for the driver links against these, and calls them for kernels that print or use clusters only.
__attribute__((visibility("default"))) int cuCtxGetLimit(std::size_t* /*value*/, int /*limit*/) { return 801; }
__attribute__((visibility("default"))) int cuCtxSetLimit(int /*limit*/, std::size_t /*value*/) { return 801; }
}

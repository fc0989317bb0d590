// Kernels that programs call by raw pointer, as extensions do that are not bound as operators.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>

#include "operands.h"

namespace {

struct Scale {
  float* to;
  const float* from;
  std::int64_t count;
  float factor;
  int device;
  bool kept;
};

void run_scale(void* data) {
  auto* const scale = static_cast<Scale*>(data);
  const auto bytes = static_cast<std::uint64_t>(scale->count) * sizeof(float);
  if (operators::check_access(scale->device, {{reinterpret_cast<std::uint64_t>(scale->from), bytes, false},
                                              {reinterpret_cast<std::uint64_t>(scale->to), bytes, true}})) {
    for (std::int64_t index = 0; index < scale->count; ++index) {
      scale->to[index] = scale->factor * scale->from[index];
    }
  }
  if (!scale->kept) {
    delete scale;
  }
}

}  // namespace

// to[i] = factor * from[i], on the stream. Returns cudaError_t. `kept`: a graph captures it, and may run it again.
extern "C" __attribute__((visibility("default"))) int operators_scale(float* to, const float* from, std::int64_t count,
                                                                      float factor, int device, void* stream,
                                                                      int kept) {
  return cudaLaunchHostFunc(static_cast<cudaStream_t>(stream), &run_scale,
                            new Scale{to, from, count, factor, device, kept != 0});
}

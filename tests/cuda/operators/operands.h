// Device memory as CPU tensors.
//
// A kernel is given addresses; it does not keep the tensors that lie there. So neither do these: what the program frees
// too early is gone when the kernel runs, as on a device.
#ifndef OPERANDS_H
#define OPERANDS_H

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace operators {

// What a kernel may touch: the bytes that a tensor spans.
struct Span {
  std::uint64_t address;
  std::uint64_t bytes;
  bool written;
  std::uint64_t own_bytes = 0;  // of the tensor's elements, fewer where it is a part of a larger one
};

// A CPU tensor over the memory of a device's tensor, without owning it. The simulation's mappings are real, so a CPU
// function finds the device's bytes at the device's address.
at::Tensor alias_of(const at::Tensor& tensor);

// A copy of a CPU tensor, which the program may change before a kernel that was given it runs.
at::Tensor copy_of(const at::Tensor& tensor);

// The bytes from the tensor's first to its last element; none for an empty tensor.
Span span_of(const at::Tensor& tensor, bool written);

// A tensor of this geometry without memory, for functions that compute the geometry of results.
at::Tensor without_memory(const at::Tensor& tensor);

// A CPU tensor of zeros that lies as this one.
at::Tensor zeros_of(const at::Tensor& tensor);

// New memory of the device by way of its allocator, as the wheel's own kernels ask for their results' memory: below
// the dispatcher.
at::Tensor allocate_like(const at::Tensor& geometry, at::Device device);

// Whether the device may touch all of it; where not, the device is lost as by an illegal address.
bool check_access(int device, const std::vector<Span>& spans);

}  // namespace operators

#endif  // OPERANDS_H

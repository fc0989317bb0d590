#include "operands.h"

#include <ATen/EmptyTensor.h>
#include <ATen/cuda/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "sim.h"

namespace operators {

namespace {

void keep_bits(const at::Tensor& from, const at::Tensor& to) {
  if (from.is_conj()) {
    to._set_conj(true);
  }
  if (from.is_neg()) {
    to._set_neg(true);
  }
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) {
    to.unsafeGetTensorImpl()->set_wrapped_number(true);  // decides the type of results
  }
}

}  // namespace

at::Tensor alias_of(const at::Tensor& tensor) {
  const auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  at::Tensor alias = tensor.numel() == 0
                         ? at::empty_strided(tensor.sizes(), tensor.strides(), options)
                         : at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), options);
  keep_bits(tensor, alias);
  return alias;
}

at::Tensor copy_of(const at::Tensor& tensor) {
  at::Tensor copy = tensor.clone();
  keep_bits(tensor, copy);
  return copy;
}

Span span_of(const at::Tensor& tensor, bool written) {
  if (tensor.numel() == 0) {
    return {0, 0, written, 0};
  }
  std::uint64_t elements = 1;
  for (std::int64_t dimension = 0; dimension < tensor.dim(); ++dimension) {
    elements += static_cast<std::uint64_t>((tensor.size(dimension) - 1) * tensor.stride(dimension));
  }
  const std::uint64_t bytes = elements * tensor.element_size();
  return {reinterpret_cast<std::uint64_t>(tensor.const_data_ptr()), bytes, written,
          std::min<std::uint64_t>(bytes, tensor.nbytes())};
}

at::Tensor without_memory(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    return tensor;  // a number of the program's; Python's meta kernels are given it as one
  }
  at::Tensor result = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  keep_bits(tensor, result);
  return result;
}

at::Tensor zeros_of(const at::Tensor& tensor) {
  at::Tensor result =
      at::empty_strided(tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.scalar_type())).zero_();
  keep_bits(tensor, result);
  return result;
}

at::Tensor allocate_like(const at::Tensor& geometry, at::Device device) {
  return at::detail::empty_strided_cuda(geometry.sizes(), geometry.strides(), geometry.scalar_type(), device);
}

bool check_access(int device, const std::vector<Span>& spans) {
  for (const Span& span : spans) {
    if (span.bytes != 0 && sim_accessible(device, span.address, span.bytes, span.written ? 3 : 1) == 0) {
      sim_illegal_access(device);
      return false;
    }
  }
  return true;
}

}  // namespace operators

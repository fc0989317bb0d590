#include "adapters.h"

#include <ATen/Functions.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_native.h>

#include <map>
#include <tuple>

namespace operators {

namespace {

using Stack = torch::jit::Stack;
using Tensors = std::vector<at::Tensor>;

std::optional<at::Tensor> optional_tensor(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() ? std::optional<at::Tensor>(value.toTensor()) : std::nullopt;
}

// --- dropout, which the CPU makes of other operators

at::Tensor draw_dropout(const Stack& arguments, const at::Generator& generator) {
  const double kept = 1 - arguments[1].toDouble();
  return at::empty_like(arguments[0].toTensor()).bernoulli_(kept, generator).div_(kept);
}

Tensors dropout(const Stack& arguments) {
  const at::Tensor& noise = arguments.back().toTensor();
  return {arguments[0].toTensor().mul(noise), noise.ne(0)};
}

Tensors dropout_backward(const Stack& arguments) {
  const at::Tensor& gradient = arguments[0].toTensor();
  return {gradient.mul(arguments[1].toTensor().to(gradient.scalar_type()).div_(1 / arguments[2].toDouble()))};
}

// --- what cuDNN has

Tensors grid_sampler(const Stack& arguments) {
  return {at::grid_sampler_2d(arguments[0].toTensor(), arguments[1].toTensor(), 0, 0, /*align_corners=*/true)};
}

Tensors grid_sampler_backward(const Stack& arguments) {
  auto [input, grid] =
      at::grid_sampler_2d_backward(arguments[2].toTensor(), arguments[0].toTensor(), arguments[1].toTensor(), 0, 0,
                                   /*align_corners=*/true, {true, true});
  return {input, grid};
}

// --- attention

// The device's kernel pads this result to whole rows of 32.
at::Tensor pad_rows(const at::Tensor& logsumexp) {
  const std::int64_t rows = logsumexp.size(2);
  return at::constant_pad_nd(logsumexp, {0, (rows + 31) / 32 * 32 - rows});
}

Tensors attention(const Stack& arguments) {
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toTensor(), arguments[5].toDouble(),
      arguments[6].toBool(), optional_tensor(arguments[3]), arguments[7].toOptional<double>());
  const at::Tensor none = at::zeros({}, at::kLong);
  return {output, arguments[4].toBool() ? pad_rows(logsumexp) : at::Tensor(), none, none};
}

Tensors attention_backward(const Stack& arguments) {
  const at::Tensor& query = arguments[1].toTensor();
  // As the CPU's forward function lays it out.
  const at::Tensor logsumexp =
      arguments[6].toTensor().narrow(2, 0, query.size(2)).transpose(1, 2).contiguous().transpose(1, 2);
  auto [query_gradient, key_gradient, value_gradient] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      arguments[0].toTensor(), query, arguments[2].toTensor(), arguments[3].toTensor(), arguments[5].toTensor(),
      logsumexp, arguments[9].toDouble(), arguments[11].toBool(), optional_tensor(arguments[4]),
      arguments[12].toOptional<double>());
  return {query_gradient, key_gradient, value_gradient, at::Tensor()};
}

std::int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const std::optional<at::Tensor>& mask, double dropout, bool causal,
                              std::optional<double> scale, bool grouped) {
  const auto chosen = static_cast<sdp::SDPBackend>(
      at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale, grouped));
  // The device's operator that takes what the CPU's takes, without padding it.
  return static_cast<std::int64_t>(chosen == sdp::SDPBackend::flash_attention ? sdp::SDPBackend::efficient_attention
                                                                              : chosen);
}

}  // namespace

const Adapted* adapted(const std::string& name) {
  static const std::map<std::string, Adapted> all = {
      {"aten::native_dropout", {dropout, draw_dropout}},
      {"aten::native_dropout_backward", {dropout_backward, nullptr}},
      {"aten::cudnn_grid_sampler", {grid_sampler, nullptr}},
      {"aten::cudnn_grid_sampler_backward", {grid_sampler_backward, nullptr}},
      {"aten::_scaled_dot_product_efficient_attention", {attention, nullptr}},
      {"aten::_scaled_dot_product_efficient_attention_backward", {attention_backward, nullptr}},
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

void choose_attention_as_on_cpu() { at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention); }

}  // namespace operators

#include "cost.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <set>

namespace operators {

namespace {

using Stack = torch::jit::Stack;
using Tensors = std::vector<at::Tensor>;

double elements(const at::Tensor& tensor) { return static_cast<double>(tensor.numel()); }

double size(const at::Tensor& tensor, std::int64_t dimension) { return static_cast<double>(tensor.size(dimension)); }

// Of matrices, or of batches of them; `left` is the number of the argument that is multiplied from the left.
template <std::size_t left>
double product(const Stack& arguments, const Tensors& /*results*/) {
  const at::Tensor& one = arguments[left].toTensor();
  const at::Tensor& other = arguments[left + 1].toTensor();
  return 2 * elements(one) * (other.dim() < 2 ? 1 : size(other, -1));
}

// Every element of the output meets the weights of one filter.
double convolution(const Stack& arguments, const Tensors& results) {
  const at::Tensor& weight = arguments[1].toTensor();
  const bool transposed = arguments[6].toBool();
  const at::Tensor& positions = transposed ? arguments[0].toTensor() : results[0];
  return 2 * elements(positions) * elements(weight) / size(weight, 0);
}

// As much for the gradient of the input, and for that of the weights.
double convolution_backward(const Stack& arguments, const Tensors& /*results*/) {
  const at::Tensor& weight = arguments[2].toTensor();
  const bool transposed = arguments[7].toBool();
  const at::Tensor& positions = arguments[transposed ? 1 : 0].toTensor();
  const auto wanted = arguments[10].toBoolList();
  return (wanted[0] + wanted[1]) * 2 * elements(positions) * elements(weight) / size(weight, 0);
}

// Two products: scores, and what they weigh. Half of them where only earlier tokens count.
double attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, bool causal) {
  const double scores = elements(query) * size(key, -2);
  const double rows = elements(query) / size(query, -1);
  return 2 * (scores + rows * size(key, -2) * size(value, -1)) * (causal ? 0.5 : 1);
}

double attention_forward(const Stack& arguments, const Tensors& /*results*/) {
  return attention(arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toTensor(), arguments[6].toBool());
}

// Five products: the scores again, and a gradient for either factor of both.
double attention_backward(const Stack& arguments, const Tensors& /*results*/) {
  return 2.5 *
         attention(arguments[1].toTensor(), arguments[2].toTensor(), arguments[3].toTensor(), arguments[11].toBool());
}

// A layer of an LSTM: the input and the hidden state with their weights, at every step.
double recurrent(const Stack& arguments, const Tensors& /*results*/) {
  const at::Tensor& input = arguments[0].toTensor();
  const double steps = elements(input) / size(input, -1);
  return 2 * steps * (elements(arguments[1].toTensor()) + elements(arguments[2].toTensor()));
}

double recurrent_backward(const Stack& arguments, const Tensors& results) { return 2 * recurrent(arguments, results); }

using Formula = double (*)(const Stack&, const Tensors&);

const std::map<std::string, Formula>& formulas() {
  static const std::map<std::string, Formula> all = {
      {"aten::mm", product<0>},
      {"aten::mm.out", product<0>},
      {"aten::bmm", product<0>},
      {"aten::bmm.out", product<0>},
      {"aten::mv", product<0>},
      {"aten::dot", product<0>},
      {"aten::addmm", product<1>},
      {"aten::addmm.out", product<1>},
      {"aten::addmm_", product<1>},
      {"aten::_addmm_activation", product<1>},
      {"aten::baddbmm", product<1>},
      {"aten::baddbmm.out", product<1>},
      {"aten::addbmm", product<1>},
      {"aten::addmv.out", product<1>},
      {"aten::convolution", convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::_scaled_dot_product_efficient_attention", attention_forward},
      {"aten::_scaled_dot_product_efficient_attention_backward", attention_backward},
      {"aten::mkldnn_rnn_layer", recurrent},
      {"aten::mkldnn_rnn_layer_backward", recurrent_backward},
  };
  return all;
}

bool is_convolution(const std::string& name) {
  return name.find("convolution") != std::string::npos || name.find("rnn") != std::string::npos;
}

}  // namespace

double flop_of(const std::string& name, const Stack& arguments, const Tensors& results) {
  const auto found = formulas().find(name);
  return found == formulas().end() ? 0 : found->second(arguments, results);
}

const char* peak_of(const std::string& name, const Stack& arguments) {
  for (const c10::IValue& argument : arguments) {
    if (!argument.isTensor() || !argument.toTensor().defined()) {
      continue;
    }
    switch (argument.toTensor().scalar_type()) {
      case at::kHalf:
      case at::kBFloat16:
        return "flops.float16";
      case at::kDouble:
      case at::kComplexDouble:
        return "flops.float64";
      default:
        break;
    }
    const at::Context& context = at::globalContext();
    const bool narrow = is_convolution(name) ? context.allowTF32CuDNN() : context.allowTF32CuBLAS();
    return narrow ? "flops.tfloat32" : "flops.float32";
  }
  return "flops.float32";
}

std::uint64_t bytes_of(const std::string& name, const std::vector<Span>& spans) {
  static const std::set<std::string> pickers = {"aten::embedding", "aten::index_select", "aten::gather",
                                                "aten::index.Tensor"};
  const bool picks = pickers.count(name) != 0;
  std::set<std::uint64_t> seen;
  std::uint64_t bytes = 0;
  for (const Span& span : spans) {
    if (seen.insert(span.address).second && !(picks && !span.written)) {
      bytes += picks ? 2 * span.own_bytes : span.own_bytes;
    }
  }
  return bytes;
}

}  // namespace operators

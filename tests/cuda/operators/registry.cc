// Which operators have a stand-in, which stay the wheel's own, and which are refused; done when the library is loaded.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy_native.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "adapters.h"
#include "recurrent.h"
#include "stand_in.h"

namespace operators {

namespace {

using Stack = torch::jit::Stack;

// They make tensors, or say what is known of them, and run no kernel.
const std::set<std::string>& wheels_own() {
  static const std::set<std::string> names = {"aten::empty.memory_format",
                                              "aten::empty_strided",
                                              "aten::resize_",
                                              "aten::set_",
                                              "aten::set_.source_Storage",
                                              "aten::set_.source_Storage_storage_offset",
                                              "aten::set_.source_Tensor",
                                              "aten::record_stream",
                                              "aten::_local_scalar_dense",
                                              "aten::is_pinned",
                                              "aten::_pin_memory",
                                              "aten::pin_memory",
                                              "aten::is_set_to",
                                              "aten::_efficientzerotensor",
                                              "aten::_fused_sdp_choice"};
  return names;
}

// What the wheel makes of other operators, or of a library's, and the CPU by a kernel of its own.
const std::vector<std::string>& also() {
  static const std::vector<std::string> names = {"aten::convolution",      "aten::convolution_backward",
                                                 "aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward",
                                                 "aten::pixel_shuffle",    "aten::pixel_unshuffle"};
  return names;
}

bool is_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) {
      return true;
    }
  }
  return false;
}

bool on_cpu(const c10::OperatorHandle& op) {
  for (const c10::DispatchKey key :
       {c10::DispatchKey::CPU, c10::DispatchKey::CompositeExplicitAutograd, c10::DispatchKey::CompositeImplicitAutograd,
        c10::DispatchKey::CompositeExplicitAutogradNonFunctional}) {
    if (op.hasKernelForDispatchKey(key)) {
      return true;
    }
  }
  return adapted(c10::toString(op.operator_name())) != nullptr;
}

void refuse(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* /*stack*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "simulated CUDA: the operator ", op.operator_name(), " has no stand-in");
}

void make_of_others(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
}

// The library is not there.
bool has_no_cudnn(const at::Tensor&, const at::Tensor&, at::IntArrayRef, at::IntArrayRef, std::int64_t) {
  return false;
}
bool has_no_cudnn_for(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, std::int64_t) {
  return false;
}

// cuDNN wants all weights of an RNN in one tensor. The parameters become parts of it, each at a multiple of 64 bytes,
// as tensors of the CPU are.
at::Tensor flatten_weights(at::TensorList weights, std::int64_t /*stride*/, std::int64_t /*input*/,
                           std::int64_t /*mode*/, std::int64_t /*hidden*/, std::int64_t /*projection*/,
                           std::int64_t /*layers*/, bool /*batch_first*/, bool /*bidirectional*/) {
  constexpr std::int64_t unit = 64;
  std::int64_t elements = 0;
  for (const at::Tensor& weight : weights) {
    elements += (weight.numel() + unit - 1) / unit * unit;
  }
  const at::Tensor whole = at::empty({elements}, weights[0].options());
  std::int64_t offset = 0;
  for (at::Tensor weight : weights) {
    const at::Tensor part = whole.narrow(0, offset, weight.numel()).view(weight.sizes());
    part.copy_(weight);
    weight.set_(part);
    offset += (weight.numel() + unit - 1) / unit * unit;
  }
  return whole;
}

// Without cuDNN, which has its arguments laid out alike first.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, std::int64_t> batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& variance, bool training, double momentum,
    double eps, bool /*cudnn*/) {
  const at::Tensor nothing = at::empty({0}, input.options().dtype(at::kByte));
  if (input.numel() == 0) {
    at::Tensor output = input.clone();
    output = weight.has_value() && weight->defined() ? output * (*weight)[0] : output;
    output = bias.has_value() && bias->defined() ? output + (*bias)[0] : output;
    return {output, at::empty({0}, input.options()), at::empty({0}, input.options()), nothing, -1};
  }
  auto [output, used_mean, deviation] =
      at::native_batch_norm(input, weight, bias, mean, variance, training, momentum, eps);
  return {output, used_mean, deviation, nothing, 0};
}

// --- copies

bool lies_alike(const at::Tensor& one, const at::Tensor& other) {
  return one.scalar_type() == other.scalar_type() && one.sizes() == other.sizes() && one.is_conj() == other.is_conj() &&
         one.is_neg() == other.is_neg() && one.is_non_overlapping_and_dense() && one.strides() == other.strides();
}

// Copies of bytes are the wheel's own, by the driver; a kernel makes the others, on one device.
at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  const bool between_devices = self.is_cuda() && source.is_cuda();
  if (!between_devices || self.numel() == 0 || (lies_alike(self, source) && source.layout() == at::kStrided)) {
    return at::native::copy_(self, source, non_blocking);
  }
  if (self.device() == source.device()) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
    static const StandIn& stand_in = *new StandIn(op);  // kernels refer to it
    Stack stack{self, source, non_blocking};
    stand_in(op, c10::DispatchKeySet(c10::DispatchKey::CUDA), &stack);
    return self;
  }
  const at::Tensor whole =
      at::empty_like(self, source.options().dtype(self.scalar_type()), at::MemoryFormat::Contiguous);
  whole.copy_(source.expand_as(self));
  if (self.is_contiguous()) {
    return at::native::copy_(self, whole, non_blocking);
  }
  at::Tensor arrived = at::empty_like(self, at::MemoryFormat::Contiguous);
  at::native::copy_(arrived, whole, non_blocking);
  return self.copy_(arrived);
}

// Every operator is overridden on purpose.
class Quiet final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

struct Registered {
  std::vector<std::unique_ptr<torch::Library>> libraries;

  torch::Library& library(c10::DispatchKey key) {
    libraries.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__));
    return *libraries.back();
  }
};

Registered* register_all() {
  Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  auto* const registered = new Registered;
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  torch::Library& cuda = registered->library(c10::DispatchKey::CUDA);
  std::set<std::string> names;
  for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CUDA)) {
    names.insert(c10::toString(name));
  }
  names.insert(also().begin(), also().end());
  for (const std::string& name : names) {
    const std::size_t dot = name.find('.');
    const auto op = dispatcher.findSchema({name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
    if (!op.has_value() || name.rfind("aten::", 0) != 0 || wheels_own().count(name) != 0 || is_view(op->schema())) {
      continue;
    }
    if (name == "aten::_use_cudnn_ctc_loss" || name == "aten::_use_miopen_ctc_loss") {
      cuda.impl(name.c_str(), &has_no_cudnn);
    } else if (name == "aten::_use_cudnn_ctc_loss.Tensor" || name == "aten::_use_miopen_ctc_loss.Tensor") {
      cuda.impl(name.c_str(), &has_no_cudnn_for);
    } else if (name == "aten::_cudnn_rnn_flatten_weight") {
      cuda.impl(name.c_str(), &flatten_weights);
    } else if (on_cpu(*op)) {
      cuda.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<StandIn>(*op)));
    } else {
      cuda.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&refuse>());
    }
  }
  cuda.impl("aten::copy_", &copy);
  // The wheel makes these of others, and not of the same on a device and on the CPU.
  const auto rms_norm = dispatcher.findSchema({"aten::_fused_rms_norm", ""});  // only later releases have it
  for (const c10::DispatchKey key : {c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCUDA}) {
    torch::Library& made = registered->library(key);
    made.impl("aten::_batch_norm_impl_index", &batch_norm);
    made.impl("aten::lstm_cell", &lstm_cell);
    made.impl("aten::gru_cell", &gru_cell);
    if (rms_norm.has_value()) {
      made.impl("aten::_fused_rms_norm", torch::CppFunction::makeFromBoxedFunction<&make_of_others>());
    }
  }
  for (const c10::DispatchKey key : {c10::DispatchKey::SparseCUDA, c10::DispatchKey::SparseCsrCUDA,
                                     c10::DispatchKey::QuantizedCUDA, c10::DispatchKey::NestedTensorCUDA}) {
    torch::Library& other = registered->library(key);
    for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(key)) {
      if (name.name.rfind("aten::", 0) == 0) {
        other.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&refuse>());
      }
    }
  }
  choose_attention_as_on_cpu();
  run_recurrent_networks_as_on_cpu();
  return registered;
}

const Registered* const registered = register_all();

}  // namespace

}  // namespace operators

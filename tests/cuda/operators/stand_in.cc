#include "stand_in.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/Resize.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <functional>
#include <set>
#include <utility>

#include "cost.h"
#include "generators.h"
#include "operands.h"
#include "sim.h"
#include "tape.h"

namespace operators {

namespace {

using Stack = torch::jit::Stack;
using Transform = std::function<at::Tensor(const at::Tensor&)>;

constexpr int device_assert = 710;  // CUDA's code for a kernel that gave up

// The state of a thread that has no modes, no autograd and no observers: what a kernel runs in, and what computes the
// geometry of results.
const at::ThreadLocalState& plain_state() {
  static const at::ThreadLocalState* const state = [] {
    const at::DisableRecordFunctionGuard unseen;
    return new at::ThreadLocalState;
  }();
  return *state;
}

// But for whether gradients are wanted, which some kernels of the CPU ask.
class PlainState {
 public:
  explicit PlainState(bool gradients) : state_(plain_state()), gradients_(gradients) {}

 private:
  at::ThreadLocalStateGuard state_;
  at::AutoGradMode gradients_;
  at::AutoDispatchBelowADInplaceOrView below_;
};

// The value with its tensors changed, and with `device` for a device that it may be.
c10::IValue transform(const c10::IValue& value, at::Device device, const Transform& change) {
  if (value.isDevice()) {
    return device;
  }
  const auto changed = [&](const at::Tensor& tensor) { return tensor.defined() ? change(tensor) : tensor; };
  if (value.isTensor()) {
    return changed(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(changed(tensor));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor.has_value() ? std::optional<at::Tensor>(changed(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

void visit(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visitor) {
  transform(value, at::kCPU, [&](const at::Tensor& tensor) {
    visitor(tensor);
    return tensor;
  });
}

// Results, or parts of them, as one list; undefined ones too.
void flatten(const c10::IValue& value, std::vector<at::Tensor>* tensors) {
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      tensors->push_back(tensor);
    }
  } else {
    tensors->push_back(value.isTensor() ? value.toTensor() : at::Tensor());
  }
}

// --- kernels

// What a host function of the stream does. Everything in it is on the CPU; nothing in it owns memory of the device.
struct Kernel {
  std::string name;
  int device = 0;
  bool gradients = at::GradMode::is_enabled();
  bool kept = false;  // by a graph, which may run it any number of times
  std::vector<Span> spans;
  std::function<void()> run;
  double flop = 0;
  const char* peak = "";
};

void give_up(const Kernel& kernel, const char* why) {
  std::fprintf(stderr, "simulated CUDA: the kernel of %s gave up: %s\n", kernel.name.c_str(), why);
  sim_device_lost(kernel.device, device_assert);
}

void run_kernel(void* data) {
  auto* const kernel = static_cast<Kernel*>(data);
  if (!check_access(kernel->device, kernel->spans)) {
    std::fprintf(stderr, "simulated CUDA: %s touches memory that device %d may not\n", kernel->name.c_str(),
                 kernel->device);
  } else if (sim_works() != 0) {
    try {
      const PlainState plain(kernel->gradients);
      kernel->run();
    } catch (const c10::Error& error) {
      give_up(*kernel, error.what_without_backtrace());
    } catch (const std::exception& error) {
      give_up(*kernel, error.what());
    }
  }
  if (!kernel->kept) {
    delete kernel;
  }
}

void launch(std::unique_ptr<Kernel> kernel) {
  const auto stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(kernel->device));
  kernel->kept = c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  if (sim_timed() != 0) {
    const std::uint64_t bytes = bytes_of(kernel->name, kernel->spans);
    const std::uint64_t time = sim_next_kernel(kernel->name.c_str(), kernel->flop, kernel->peak, bytes);
    record_kernel(kernel->name, time, kernel->spans);
  }
  C10_CUDA_CHECK(cudaLaunchHostFunc(stream.stream(), &run_kernel, kernel.get()));
  static_cast<void>(kernel.release());  // run_kernel's from now on
}

void copy_results(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  for (std::size_t index = 0; index < to.size(); ++index) {
    if (to[index].defined() && from.at(index).defined() && from[index].numel() != 0) {
      TORCH_CHECK(to[index].sizes() == from[index].sizes(), "its result has the shape ", from[index].sizes(),
                  " on the CPU and ", to[index].sizes(), " on a device");
      TORCH_CHECK(to[index].scalar_type() == from[index].scalar_type(), "its result has the type ",
                  from[index].scalar_type(), " on the CPU and ", to[index].scalar_type(), " on a device");
      to[index].copy_(from[index]);
    }
  }
}

// These fill a tensor without looking at it.
const std::set<std::string>& fillers() {
  static const std::set<std::string> names = {"aten::uniform_",
                                              "aten::normal_",
                                              "aten::random_",
                                              "aten::random_.from",
                                              "aten::random_.to",
                                              "aten::exponential_",
                                              "aten::geometric_",
                                              "aten::cauchy_",
                                              "aten::log_normal_",
                                              "aten::bernoulli_.float",
                                              "aten::randperm.generator_out"};
  return names;
}

// What the CPU's kernels say of types that they were not made for; others fail for want of sensible values.
void refuse_types(const std::string& name, const c10::Error& error) {
  const std::string why = error.what_without_backtrace();
  for (const char* sign : {"not implemented for", "nsupported dtype", "does not support", "only supports",
                           "expected scalar type", "mixed dtype"}) {
    TORCH_CHECK_NOT_IMPLEMENTED(why.find(sign) == std::string::npos, "simulated CUDA: ", name,
                                " has no stand-in for these types: ", why);
  }
}

// The CPU's results lie otherwise than the meta kernels say, or an argument that is no out= grows.
const std::set<std::string>& unlike_meta() {
  static const std::set<std::string> names = {"aten::repeat_interleave.Tensor",  // its size is in the data
                                              "aten::nonzero",
                                              "aten::nonzero.out",
                                              "aten::_embedding_bag",
                                              "aten::_embedding_bag_forward_only",
                                              "aten::_fused_moving_avg_obs_fq_helper"};
  return names;
}

// So does what a library keeps for the backward pass; and gradients where there are no biases.
const std::set<std::string>& with_workspace() {
  static const std::set<std::string> names = {"aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"};
  return names;
}

}  // namespace

struct StandIn::Call {
  std::vector<c10::IValue> arguments;
  at::Device device;
};

StandIn::StandIn(const c10::OperatorHandle& op)
    : name_(c10::toString(op.operator_name())), op_(op), adapted_(adapted(name_)) {
  const c10::FunctionSchema& schema = op.schema();
  for (const c10::Argument& argument : schema.arguments()) {
    const c10::AliasInfo* alias = argument.alias_info();
    if (argument.name() == "generator") {
      generator_ = static_cast<int>(written_.size());
    }
    has_outputs_ = has_outputs_ || argument.is_out();
    written_.push_back(alias != nullptr && alias->isWrite());
  }
  for (const c10::Argument& result : schema.returns()) {
    int same = -1;
    for (std::size_t index = 0; index < written_.size() && result.alias_info() != nullptr; ++index) {
      if (written_[index] && *schema.arguments()[index].alias_info() == *result.alias_info()) {
        same = static_cast<int>(index);
      }
    }
    same_as_.push_back(same);
    const c10::TypeKind kind = result.type()->kind();
    returns_data_ = returns_data_ || (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType &&
                                      kind != c10::TypeKind::OptionalType);
    makes_new_ = makes_new_ || same < 0;
  }
  for (const c10::DispatchKey key :
       {c10::DispatchKey::Meta, c10::DispatchKey::CompositeExplicitAutograd,
        c10::DispatchKey::CompositeExplicitAutogradNonFunctional, c10::DispatchKey::CompositeImplicitAutograd}) {
    has_meta_ = has_meta_ || op.hasKernelForDispatchKey(key);
  }
  drawn_apart_ = adapted_ != nullptr && adapted_->draw != nullptr;
  random_ = generator_ >= 0 || (adapted_ == nullptr && op.hasTag(at::Tag::nondeterministic_seeded));
  only_draws_ = fillers().count(name_) != 0;
}

void StandIn::operator()(const c10::OperatorHandle& /*op*/, c10::DispatchKeySet /*keys*/, Stack* stack) const {
  const std::size_t count_of = written_.size();
  Call call{{stack->end() - static_cast<std::ptrdiff_t>(count_of), stack->end()}, at::kCPU};
  torch::jit::drop(*stack, count_of);
  std::optional<at::Tensor> host;
  for (const c10::IValue& argument : call.arguments) {
    visit(argument, [&](const at::Tensor& tensor) {
      TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested(),
                                  "simulated CUDA: ", name_, " has no stand-in for tensors that are not strided");
      if (tensor.is_cuda()) {
        TORCH_CHECK(call.device.is_cpu() || call.device == tensor.device(),
                    "Expected all tensors to be on the same device, but found at least two devices, ", call.device,
                    " and ", tensor.device(), "! (", name_, ")");
        call.device = tensor.device();
      } else if (tensor.dim() != 0) {
        host = tensor;
      }
    });
  }
  // Indices may be on the CPU.
  TORCH_CHECK(!host.has_value() || name_.find("index") != std::string::npos,
              "Expected all tensors to be on the same device, but found at least two devices, ", call.device,
              " and cpu! (", name_, ")");
  for (const c10::IValue& argument : call.arguments) {
    if (call.device.is_cpu() && argument.isDevice()) {  // it makes a tensor of nothing
      call.device = argument.toDevice();
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(call.device.is_cuda(), "simulated CUDA: ", name_, " has no stand-in without a device");
  if (!call.device.has_index()) {
    call.device.set_index(c10::cuda::current_device());
  }
  const c10::DeviceGuard guard(call.device);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !(random_ || drawn_apart_) || c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None,
      "simulated CUDA: ", name_, " has no stand-in in a graph: it would draw the same numbers in every replay");
  // Where there is no work to do, nothing is drawn.
  if (drawn_apart_ || (sim_works() == 0 && only_draws_) || !(random_ || depends_on_data(call))) {
    run_later(call, stack);
  } else {
    run_now(call, stack);
  }
}

bool StandIn::depends_on_data(const Call& call) const {
  if (returns_data_ || (!has_meta_ && (makes_new_ || has_outputs_)) || op_.hasTag(at::Tag::data_dependent_output)) {
    return true;
  }
  if (name_ == "aten::index.Tensor" || name_ == "aten::index.Tensor_out") {
    bool mask = false;
    visit(call.arguments[1], [&](const at::Tensor& index) {
      mask |= index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
    });
    return mask;
  }
  // Where there is no work to do, nobody looks at a workspace.
  return unlike_meta().count(name_) != 0 || (sim_works() != 0 && with_workspace().count(name_) != 0);
}

void StandIn::resize_outputs(const Call& call, const Stack& geometry) const {
  for (std::size_t index = 0; index < written_.size(); ++index) {
    if (op_.schema().arguments()[index].is_out() && call.arguments[index].isTensor()) {
      const at::Tensor output = call.arguments[index].toTensor();
      const at::Tensor wanted = geometry[index].toTensor();
      if (at::native::resize_output(output, wanted.sizes())) {
        output.unsafeGetTensorImpl()->set_sizes_and_strides(wanted.sizes(), wanted.strides());
      }
    }
  }
}

Geometry::Answer StandIn::compute_geometry(const Call& call) const {
  const PlainState plain(at::GradMode::is_enabled());
  Geometry::Answer answer;
  for (const c10::IValue& argument : call.arguments) {
    answer.arguments.push_back(transform(argument, at::kMeta, &without_memory));
  }
  answer.results = answer.arguments;
  try {
    op_.callBoxed(&answer.results);
  } catch (const c10::NotImplementedError&) {
    if (makes_new_ || has_outputs_) {
      throw;
    }
  }
  if (has_to_be_tried(call)) {
    try_out(call, &answer);
  }
  return answer;
}

bool StandIn::has_to_be_tried(const Call& call) const {
  bool contiguous = true;
  bool usual = true;
  bool pivots = false;  // LAPACK's count from one, and it does not look whether they do
  for (const c10::IValue& argument : call.arguments) {
    visit(argument, [&](const at::Tensor& tensor) {
      const at::ScalarType type = tensor.scalar_type();
      contiguous &= tensor.is_contiguous();
      usual &= type == at::kFloat || type == at::kDouble || type == at::kLong;
      pivots |= type == at::kInt;
    });
  }
  const bool lies_plainly = !(makes_new_ || has_outputs_) || (contiguous && op_.hasTag(at::Tag::pointwise));
  return sim_works() != 0 && !drawn_apart_ && !pivots && !(usual && lies_plainly);
}

// The CPU's results, one after the other; undefined ones too.
std::vector<at::Tensor> StandIn::run_on_cpu(const Stack& arguments) const {
  if (adapted_ != nullptr) {
    return adapted_->run(arguments);
  }
  Stack own = arguments;
  op_.callBoxed(&own);
  std::vector<at::Tensor> results;
  for (const c10::IValue& result : own) {
    flatten(result, &results);
  }
  return results;
}

// Results have the types of the CPU's, and lie as they do.
void StandIn::try_out(const Call& call, Geometry::Answer* answer) const {
  Stack arguments;
  for (const c10::IValue& argument : call.arguments) {
    arguments.push_back(transform(argument, at::kCPU, [](const at::Tensor& tensor) {
      return tensor.is_cuda() ? zeros_of(tensor) : copy_of(tensor);
    }));
  }
  std::vector<at::Tensor> found;
  try {
    found = run_on_cpu(arguments);
  } catch (const c10::Error& error) {
    refuse_types(name_, error);
    return;
  } catch (const std::exception&) {
    return;
  }
  const auto lay_out = [](c10::IValue* as_meta, const at::Tensor& as_cpu) {
    // Where the CPU keeps nothing for the backward pass, it returns nothing.
    if (as_meta->isTensor() && as_meta->toTensor().defined() && as_cpu.defined() &&
        (as_cpu.sizes() == as_meta->toTensor().sizes() || as_cpu.numel() == 0)) {
      const at::Tensor& lies = as_cpu.is_non_overlapping_and_dense() ? as_cpu : as_meta->toTensor();
      *as_meta = at::detail::empty_strided_meta(as_cpu.sizes(), lies.strides(), as_cpu.scalar_type());
    }
  };
  std::size_t place = 0;
  for (std::size_t index = 0; index < same_as_.size() && place < found.size(); ++index) {
    c10::IValue& result = answer->results[index];
    if (same_as_[index] < 0) {
      lay_out(&result, found[place]);
    }
    place += result.isTensorList() ? result.toTensorVector().size() : 1;
  }
  for (std::size_t index = 0; index < arguments.size(); ++index) {
    if (op_.schema().arguments()[index].is_out() && arguments[index].isTensor()) {
      lay_out(&answer->arguments[index], arguments[index].toTensor());
    }
  }
}

// What is enqueued is the CPU's kernel.
void StandIn::run_later(const Call& call, Stack* stack) const {
  Stack geometry;
  if (has_meta_) {  // also where nothing is new: it refuses wrong arguments
    const Geometry::Answer answer = geometry_->of(call.arguments, [&] { return compute_geometry(call); });
    geometry = answer.results;
    resize_outputs(call, answer.arguments);
  }
  auto kernel = std::make_unique<Kernel>();
  kernel->name = name_;
  kernel->device = call.device.index();
  Stack arguments;
  for (std::size_t index = 0; index < written_.size(); ++index) {
    arguments.push_back(transform(call.arguments[index], at::kCPU, [&](const at::Tensor& tensor) {
      if (!tensor.is_cuda()) {
        return copy_of(tensor);
      }
      kernel->spans.push_back(span_of(tensor, written_[index]));
      return alias_of(tensor);
    }));
  }
  if (drawn_apart_ && sim_works() != 0) {
    with_cpu_generator(at::Generator(), call.device, [&](const at::Generator& generator) {
      const PlainState plain(at::GradMode::is_enabled());
      arguments.emplace_back(adapted_->draw(arguments, generator));
    });
  }
  std::vector<at::Tensor> targets;
  for (std::size_t index = 0; index < same_as_.size(); ++index) {
    if (same_as_[index] >= 0) {
      stack->push_back(call.arguments[static_cast<std::size_t>(same_as_[index])]);
      std::vector<at::Tensor> same;
      flatten(stack->back(), &same);
      targets.resize(targets.size() + same.size());
      continue;
    }
    stack->push_back(transform(geometry[index], call.device,
                               [&](const at::Tensor& tensor) { return allocate_like(tensor, call.device); }));
    std::vector<at::Tensor> results;
    flatten(stack->back(), &results);
    for (const at::Tensor& result : results) {
      if (result.defined()) {
        kernel->spans.push_back(span_of(result, true));
      }
      targets.push_back(result.defined() ? alias_of(result) : result);
    }
  }
  if (sim_timed() != 0) {
    kernel->flop = flop_of(name_, arguments, targets);
    kernel->peak = peak_of(name_, arguments);
  }
  // Stand-ins are never destroyed.
  kernel->run = [this, arguments, targets] { copy_results(run_on_cpu(arguments), targets); };
  launch(std::move(kernel));
}

// The CPU's kernel runs at once; what is enqueued is the copy of its results.
void StandIn::run_now(const Call& call, Stack* stack) const {
  const auto stream = c10::cuda::getCurrentCUDAStream(call.device.index());
  if (!only_draws_) {
    C10_CUDA_CHECK(cudaStreamSynchronize(stream.stream()));
  }
  std::vector<Span> spans;
  std::vector<at::Tensor> own;  // what takes the place of tensors that are written, and those
  std::vector<at::Tensor> targets;
  Stack arguments;
  for (std::size_t index = 0; index < written_.size(); ++index) {
    arguments.push_back(transform(call.arguments[index], at::kCPU, [&](const at::Tensor& tensor) {
      if (!tensor.is_cuda()) {
        return tensor;
      }
      if (!written_[index]) {
        spans.push_back(span_of(tensor, false));
        return alias_of(tensor);
      }
      own.push_back(at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU)));
      targets.push_back(tensor);
      if (!only_draws_) {
        spans.push_back(span_of(tensor, false));
      }
      return own.back();
    }));
  }
  if (!check_access(call.device.index(), spans)) {
    C10_CUDA_CHECK(cudaStreamSynchronize(stream.stream()));
  }
  Stack results = arguments;
  const auto run = [&] {
    const PlainState plain(at::GradMode::is_enabled());
    for (std::size_t index = 0; index < own.size() && !only_draws_; ++index) {
      own[index].copy_(alias_of(targets[index]));
    }
    try {
      if (adapted_ != nullptr) {
        std::vector<at::Tensor> tensors = adapted_->run(arguments);
        results.assign(tensors.begin(), tensors.end());
      } else {
        op_.callBoxed(&results);
      }
    } catch (const c10::Error& error) {
      refuse_types(name_, error);
      throw;
    }
  };
  if (random_) {
    const c10::IValue given = generator_ >= 0 ? call.arguments[static_cast<std::size_t>(generator_)] : c10::IValue();
    with_cpu_generator(
        given.isNone() ? at::Generator() : given.toGenerator(), call.device, [&](const at::Generator& generator) {
          if (generator_ >= 0) {
            results[static_cast<std::size_t>(generator_)] = generator;
            run();
            return;
          }
          TORCH_CHECK_NOT_IMPLEMENTED(generator == at::detail::getDefaultCPUGenerator(), "simulated CUDA: ", name_,
                                      " has no stand-in while the device's generator is not seeded as the CPU's");
          run();
        });
  } else {
    run();
  }
  for (std::size_t index = 0; index < targets.size(); ++index) {
    at::native::resize_output(targets[index], own[index].sizes());
  }
  for (std::size_t index = 0; index < same_as_.size(); ++index) {
    if (same_as_[index] >= 0) {
      stack->push_back(call.arguments[static_cast<std::size_t>(same_as_[index])]);
      continue;
    }
    stack->push_back(transform(results[index], call.device, [&](const at::Tensor& tensor) {
      TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested(),
                                  "simulated CUDA: ", name_, " has no stand-in where its result is not strided");
      own.push_back(tensor);
      targets.push_back(allocate_like(tensor, call.device));
      return targets.back();
    }));
  }
  if (targets.empty()) {
    return;
  }
  auto kernel = std::make_unique<Kernel>();
  kernel->name = name_;
  kernel->device = call.device.index();
  std::vector<at::Tensor> aliases;
  for (const at::Tensor& target : targets) {
    kernel->spans.push_back(span_of(target, true));
    aliases.push_back(alias_of(target));
  }
  kernel->run = [own, aliases] { copy_results(own, aliases); };
  launch(std::move(kernel));
}

}  // namespace operators

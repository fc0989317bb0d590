#include "kernel_call.h"

#include <atomic>
#include <cfenv>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "host_device.h"
#include "sim.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/platform/denormal.h"
#include "tensorflow/core/platform/setround.h"
#include "variables.h"

namespace stand_in {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::ResourceHandle;
using tensorflow::Tensor;
using tensorflow::TensorValue;
using tensorflow::Var;

Status illegal(const DeviceTensor& tensor) {
  return internal("an illegal address: " + tensor.shape.DebugString() + " of " + std::to_string(tensor.bytes) +
                  " bytes");
}

Status check(int device, const Input& input) {
  if ((input.place == Place::device || input.place == Place::variable) &&
      !accessible(device, input.memory, input.written)) {
    return illegal(input.memory);
  }
  for (const DeviceTensor& element : input.list.elements) {
    if (!accessible(device, element, /*write=*/false)) {
      return illegal(element);
    }
  }
  return Status();
}

// A variable with the same memory, which only this run knows.
class HostVariable {
 public:
  explicit HostVariable(const Input& input) : variable_(new Var(input.memory.dtype)) {
    static std::atomic<std::uint64_t> number{0};
    name_ = std::to_string(++number);
    *variable_->tensor() = alias(input.memory);
    variable_->is_initialized = true;
    variable_->copy_on_read_mode.store(input.copy_on_read);
    created_ = resources().Create(container, name_, variable_);
  }
  ~HostVariable() {
    if (created_.ok()) {
      created_ = resources().Delete<Var>(container, name_);
    }
  }
  HostVariable(const HostVariable&) = delete;
  HostVariable& operator=(const HostVariable&) = delete;

  const Status& created() const { return created_; }

  Tensor handle(const Input& input) const {
    ResourceHandle handle;
    handle.set_device(host_device().attributes().name());
    handle.set_container(container);
    handle.set_name(name_);
    handle.set_hash_code(hash_of_variables());
    handle.set_dtypes_and_shapes({tensorflow::DtypeAndPartialTensorShape{input.memory.dtype, input.memory.shape}});
    Tensor result(tensorflow::DT_RESOURCE, {});
    result.scalar<ResourceHandle>()() = handle;
    return result;
  }

  // What the kernel assigned to the variable is in its own memory, where it did not write in place.
  Status store(const Input& input) const {
    const DeviceTensor now = describe(*variable_->tensor());
    if (now.address == input.memory.address || !input.written) {
      return Status();
    }
    if (now.bytes != input.memory.bytes) {
      return internal("a variable of another size");
    }
    std::memcpy(input.memory.address, now.address, now.bytes);
    return Status();
  }

 private:
  static constexpr const char* container = "stand_in";
  static tensorflow::ResourceMgr& resources() { return *host_device().resource_manager(); }

  Var* variable_;  // the resource manager's
  std::string name_;
  Status created_;
};

// A field for many values is a span, and until 2.9 a pointer.
template <typename Values>
void set(const Values** field, const Values& values) {
  *field = &values;
}
template <typename Span, typename Values>
void set(Span* field, const Values& values) {
  *field = values;
}

}  // namespace

Status KernelCall::run(std::vector<Tensor>* outputs) const {
  // As the threads are set that TensorFlow has for kernels.
  const tensorflow::port::ScopedFlushDenormal flush;
  const tensorflow::port::ScopedSetRound round(FE_TONEAREST);
  for (const Input& input : inputs) {
    Status status = check(device, input);
    if (!status.ok()) {
      sim_illegal_access(device);
      return status;
    }
  }
  std::vector<Tensor> tensors;
  std::vector<std::unique_ptr<HostVariable>> variables(inputs.size());
  for (std::size_t index = 0; index < inputs.size(); ++index) {
    const Input& input = inputs[index];
    switch (input.place) {
      case Place::host:
        tensors.push_back(input.host);
        break;
      case Place::device:
        tensors.push_back(alias(input.memory));
        break;
      case Place::variable:
        variables[index] = std::make_unique<HostVariable>(input);
        if (!variables[index]->created().ok()) {
          return variables[index]->created();
        }
        tensors.push_back(variables[index]->handle(input));
        break;
      case Place::list:
        tensors.push_back(alias(input.list));
        break;
    }
  }
  const std::vector<Tensor> shared = tensors;  // a second reference: no kernel takes an input's memory for its output
  absl::InlinedVector<TensorValue, 4> values;
  values.reserve(tensors.size());
  for (Tensor& tensor : tensors) {
    values.emplace_back(&tensor);
  }

  tensorflow::Device& host = host_device();
  const absl::InlinedVector<tensorflow::AllocatorAttributes, 4> input_attributes(values.size());
  const std::vector<tensorflow::AllocatorAttributes> output_attributes(kernel->num_outputs());
  std::function<void(std::function<void()>)> inline_runner = [](const std::function<void()>& work) { work(); };
  tensorflow::CancellationManager cancellation;
  OpKernelContext::Params parameters;
  parameters.op_kernel = kernel.get();
  parameters.device = &host;
  parameters.resource_manager = host.resource_manager();
  set(&parameters.inputs, values);
  set(&parameters.input_alloc_attrs, input_attributes);
  parameters.output_attr_array = output_attributes.data();
  parameters.runner = &inline_runner;
  parameters.cancellation_manager = &cancellation;
  OpKernelContext context(&parameters, kernel->num_outputs());
  kernel->Compute(&context);
  Status status = context.status();
  for (std::size_t index = 0; index < inputs.size() && status.ok(); ++index) {
    if (variables[index] != nullptr) {
      status = variables[index]->store(inputs[index]);
    }
  }
  outputs->clear();
  for (int index = 0; index < context.num_outputs(); ++index) {
    const Tensor* output = context.mutable_output(index);
    outputs->push_back(output != nullptr ? *output : Tensor(tensorflow::DT_INVALID));
  }
  return status;
}

}  // namespace stand_in

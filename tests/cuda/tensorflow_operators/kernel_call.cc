#include "kernel_call.h"

#include <cfenv>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "host_device.h"
#include "sim.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/platform/denormal.h"
#include "tensorflow/core/platform/setround.h"

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

using VarPointer = tensorflow::core::RefCountPtr<Var>;

// A variable with the same memory, which only this run knows.
Tensor make_variable(const Input& input, VarPointer* variable) {
  variable->reset(new Var(input.memory.dtype));
  *(*variable)->tensor() = alias(input.memory);
  (*variable)->is_initialized = true;
  (*variable)->copy_on_read_mode.store(input.copy_on_read);
  (*variable)->Ref();  // the handle's
  Tensor result(tensorflow::DT_RESOURCE, {});
  result.scalar<ResourceHandle>()() = ResourceHandle::MakeRefCountingHandle(
      variable->get(), host_device().attributes().name(),
      {tensorflow::DtypeAndPartialTensorShape{input.memory.dtype, input.memory.shape}});
  return result;
}

// What the kernel assigned to a variable is in its own memory, where it did not write in place.
Status store(const Input& input, Var* variable) {
  const DeviceTensor now = describe(*variable->tensor());
  if (now.address == input.memory.address || !input.written) {
    return Status();
  }
  if (now.bytes != input.memory.bytes) {
    return internal("a variable of another size");
  }
  std::memcpy(input.memory.address, now.address, now.bytes);
  return Status();
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
  std::vector<VarPointer> variables(inputs.size());
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
        tensors.push_back(make_variable(input, &variables[index]));
        break;
      case Place::list:
        tensors.push_back(alias(input.list));
        break;
    }
  }
  const std::vector<Tensor> shared = tensors;  // a second reference: no kernel takes an input's memory for its output
  std::vector<TensorValue> values;
  values.reserve(tensors.size());
  for (Tensor& tensor : tensors) {
    values.emplace_back(&tensor);
  }

  tensorflow::Device& host = host_device();
  const std::vector<tensorflow::AllocatorAttributes> input_attributes(values.size());
  const std::vector<tensorflow::AllocatorAttributes> output_attributes(kernel->num_outputs());
  std::function<void(std::function<void()>)> inline_runner = [](const std::function<void()>& work) { work(); };
  tensorflow::CancellationManager cancellation;
  OpKernelContext::Params parameters;
  parameters.op_kernel = kernel.get();
  parameters.device = &host;
  parameters.resource_manager = host.resource_manager();
  parameters.inputs = values;
  parameters.input_alloc_attrs = input_attributes;
  parameters.output_attr_array = output_attributes.data();
  parameters.runner = &inline_runner;
  parameters.cancellation_manager = &cancellation;
  OpKernelContext context(&parameters, kernel->num_outputs());
  kernel->Compute(&context);
  Status status = context.status();
  for (std::size_t index = 0; index < inputs.size() && status.ok(); ++index) {
    if (variables[index] != nullptr) {
      status = store(inputs[index], variables[index].get());
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

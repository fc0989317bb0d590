#include "stand_in.h"

#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "host_device.h"
#include "lists.h"
#include "operations.h"
#include "output_shapes.h"

namespace stand_in {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

struct Count {
  int later = 0;
  int at_once = 0;
};

struct Counts {
  std::mutex lock;
  std::map<std::string, Count> of;
};

Counts& counts() {
  static Counts& all = *new Counts;
  return all;
}

void count(const std::string& operation, int Count::* kind) {
  const std::lock_guard<std::mutex> guard(counts().lock);
  ++(counts().of[operation].*kind);
}

bool never_on_device(tensorflow::DataType dtype) {
  return dtype == tensorflow::DT_STRING || dtype == tensorflow::DT_RESOURCE || dtype == tensorflow::DT_VARIANT;
}

// Puts a result, which lives as long as the copy needs it, into memory of the device.
Status enqueue_copy_in(const DeviceStream& stream, const Tensor& result, const Tensor& to) {
  return stream.enqueue("a copy", [result, to = describe(to), device = stream.device()] {
    const DeviceTensor from = describe(result);
    if (from.bytes != to.bytes || !accessible(device, to, /*write=*/true)) {
      return internal("an illegal address");
    }
    if (to.bytes != 0) {
      std::memcpy(to.address, from.address, to.bytes);
    }
    return Status();
  });
}

// The input, or element of one, that has this memory.
const Tensor* find_by_address(OpKernelContext* context, const void* address) {
  for (int index = 0; index < context->num_inputs(); ++index) {
    const Tensor& input = context->input(index);
    if (const TensorList* list = list_in(input)) {
      for (const Tensor& element : list->tensors()) {
        if (element.NumElements() > 0 && address_of(element) == address) {
          return &element;
        }
      }
    } else if (!never_on_device(input.dtype()) && input.NumElements() > 0 && address_of(input) == address) {
      return &input;
    }
  }
  return nullptr;
}

// A list as the CPU's kernel made it, with its elements on the device.
Status to_device(OpKernelContext* context, const DeviceStream& stream, Tensor* tensor) {
  if (list_in(*tensor) == nullptr) {
    return unimplemented("a variant that is no list of tensors");
  }
  TensorList list = list_in(*tensor)->Copy();
  for (Tensor& element : list.tensors()) {
    if (element.dtype() == tensorflow::DT_INVALID || never_on_device(element.dtype())) {
      continue;
    }
    const Tensor* original = element.NumElements() > 0 ? find_by_address(context, address_of(element)) : nullptr;
    if (original != nullptr && original->shape() == element.shape()) {
      element = *original;
      continue;
    }
    Tensor on_device;
    Status status = context->allocate_temp(element.dtype(), element.shape(), &on_device);
    if (status.ok()) {
      status = enqueue_copy_in(stream, element, on_device);
    }
    if (!status.ok()) {
      return status;
    }
    element = on_device;
  }
  *tensor = to_tensor(std::move(list));
  return Status();
}

}  // namespace

std::string report() {
  const std::lock_guard<std::mutex> guard(counts().lock);
  std::string lines;
  for (const auto& entry : counts().of) {
    lines += entry.first + " " + std::to_string(entry.second.later) + " " + std::to_string(entry.second.at_once) + "\n";
  }
  return lines;
}

StandIn::StandIn(OpKernelConstruction* construction)
    : OpKernel(construction), forwards_(may_forward(type_string())), in_place_(is_in_place(type_string())) {
  OP_REQUIRES(construction, !is_compiled(type_string()), refusal("XLA is not simulated"));
  for (int index = 0; index < num_inputs(); ++index) {
    OP_REQUIRES(construction, !tensorflow::IsRefType(input_type(index)),
                refusal("its variable is no resource: use_resource=True makes one"));
  }
  Status status;
  kernel_ = make_host_kernel(construction->def(), construction->graph_def_version(), &status);
  OP_REQUIRES(construction, status.ok(), refusal(status.ToString()));
  OP_REQUIRES(construction, kernel_->AsAsync() == nullptr, refusal("the CPU's kernel is asynchronous"));
}

Status StandIn::refusal(const std::string& why) const {
  return unimplemented("no stand-in for the operation " + type_string() + ": " + why);
}

void StandIn::Compute(OpKernelContext* context) {
  const Status status = compute(context);
  if (!status.ok()) {
    context->SetStatus(status);
  }
}

Status StandIn::compute(OpKernelContext* context) {
  const DeviceStream stream(context);
  Variables variables;
  KernelCall call{kernel_, stream.device(), {}};
  Status status = collect(context, stream, &variables, &call);
  if (!status.ok()) {
    return status;
  }
  bool known = false;
  std::vector<TensorShape> shapes;
  if (!gives_to_host()) {
    status = output_shapes(*kernel_, context, call.inputs, &known, &shapes);
    if (!status.ok()) {
      return status;
    }
  }
  count(type_string(), known ? &Count::later : &Count::at_once);
  return known ? run_later(context, stream, std::move(call), shapes) : run_now(context, stream, call);
}

Status StandIn::collect(OpKernelContext* context, const DeviceStream& stream, Variables* variables,
                        KernelCall* call) const {
  std::vector<int> handles;
  for (int index = 0; index < context->num_inputs(); ++index) {
    if (Variables::is_handle(context, index)) {
      handles.push_back(index);
    }
  }
  Status status = variables->prepare(context, handles, access_of(type_string()), stream);
  if (!status.ok()) {
    return status;
  }
  for (int index = 0; index < context->num_inputs(); ++index) {
    const Tensor& tensor = context->input(index);
    Input input;
    if (Variables::is_handle(context, index)) {
      input = variables->input(index);
    } else if (const TensorList* list = list_in(tensor)) {
      input.place = Place::list;
      input.list = describe(*list);
    } else if (tensor.dtype() == tensorflow::DT_RESOURCE || tensor.dtype() == tensorflow::DT_VARIANT) {
      return refusal("input " + std::to_string(index) + " is neither a variable nor a list");
    } else if (tensor.dtype() == tensorflow::DT_STRING || input_memory_types()[index] == tensorflow::HOST_MEMORY) {
      input.host = tensor;
    } else {
      input.place = Place::device;
      input.memory = describe(tensor);
      input.written = in_place_ && index == 0;
    }
    call->inputs.push_back(std::move(input));
  }
  return Status();
}

bool StandIn::gives_to_host() const {
  for (int index = 0; index < num_outputs(); ++index) {
    if (never_on_device(output_type(index)) || output_memory_types()[index] == tensorflow::HOST_MEMORY) {
      return true;
    }
  }
  return false;
}

Status StandIn::run_later(OpKernelContext* context, const DeviceStream& stream, KernelCall call,
                          const std::vector<TensorShape>& shapes) const {
  std::vector<int> candidates;
  for (int index = 0; index < context->num_inputs() && forwards_; ++index) {
    if (call.inputs[index].place == Place::device && input_type(index) == output_type(0)) {
      candidates.push_back(index);
    }
  }
  std::vector<DeviceTensor> targets;
  for (int index = 0; index < context->num_outputs(); ++index) {
    if (in_place_) {
      context->set_output(index, context->input(0));
      targets.push_back(call.inputs[0].memory);
      continue;
    }
    Tensor* output = nullptr;
    Status status = index == 0 && !candidates.empty()
                        ? context->forward_input_or_allocate_output(candidates, index, shapes[index], &output)
                        : context->allocate_output(index, shapes[index], &output);
    if (!status.ok()) {
      return status;
    }
    targets.push_back(describe(*output));
  }
  return stream.enqueue(type_string().c_str(), [call = std::move(call), targets = std::move(targets)] {
    std::vector<Tensor> results;
    Status status = call.run(&results);
    for (std::size_t index = 0; index < targets.size() && status.ok(); ++index) {
      const DeviceTensor& target = targets[index];
      if (target.bytes == 0 || results[index].dtype() == tensorflow::DT_INVALID) {
        continue;
      }
      const DeviceTensor result = describe(results[index]);
      if (result.bytes != target.bytes || result.dtype != target.dtype) {
        status = internal("output " + std::to_string(index) + " has the shape " + result.shape.DebugString() +
                          " instead of " + target.shape.DebugString());
      } else if (!accessible(call.device, target, /*write=*/true)) {
        status = internal("an illegal address for output " + std::to_string(index));
      } else if (result.address != target.address) {
        std::memcpy(target.address, result.address, target.bytes);
      }
    }
    return status;
  });
}

Status StandIn::run_now(OpKernelContext* context, const DeviceStream& stream, const KernelCall& call) const {
  Status status = stream.wait();
  std::vector<Tensor> results;
  if (status.ok()) {
    status = call.run(&results);
  }
  for (int index = 0; index < context->num_outputs() && status.ok(); ++index) {
    Tensor& result = results[index];
    if (result.dtype() == tensorflow::DT_INVALID) {
      continue;
    }
    if (result.dtype() == tensorflow::DT_VARIANT) {
      status = to_device(context, stream, &result);
      if (status.ok()) {
        context->set_output(index, result);
      }
    } else if (never_on_device(result.dtype()) || output_memory_types()[index] == tensorflow::HOST_MEMORY) {
      context->set_output(index, result);
    } else {
      Tensor* output = nullptr;
      status = context->allocate_output(index, result.shape(), &output);
      if (status.ok()) {
        status = enqueue_copy_in(stream, result, *output);
      }
    }
  }
  return status;
}

}  // namespace stand_in

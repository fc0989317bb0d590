#include "output_shapes.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/public/version.h"

namespace stand_in {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

bool to_shape(InferenceContext* inference, ShapeHandle handle, TensorShape* shape) {
  if (!inference->FullyDefined(handle)) {
    return false;
  }
  TensorShape result;
  for (int axis = 0; axis < InferenceContext::Rank(handle); ++axis) {
    result.AddDim(InferenceContext::Value(inference->Dim(handle, axis)));
  }
  *shape = std::move(result);
  return true;
}

// The function for shapes knows nothing of what is in a list.
bool shape_of_stack(const Tensor& wanted, const List& list, TensorShape* shape) {
  if (!element_shape(list, wanted, shape)) {
    return false;
  }
  shape->InsertDim(0, static_cast<std::int64_t>(list.elements.size()));
  return true;
}

// What only cuDNN's kernel puts something into is a number in the CPU's.
bool is_cudnn_reserve(const std::string& operation, int output) {
  return operation == "FusedBatchNormV3" && output == 5;
}

}  // namespace

Status output_shapes(const OpKernel& kernel, OpKernelContext* context, const std::vector<Input>& inputs, bool* known,
                     std::vector<TensorShape>* shapes) {
  *known = true;
  shapes->clear();
  if (context->num_outputs() == 0) {
    return Status();
  }
  if (kernel.type_string() == "TensorListStack" && inputs.front().place == Place::list) {
    shapes->emplace_back();
    *known = shape_of_stack(context->input(1), inputs.front().list, &shapes->front());
    return Status();
  }
  const tensorflow::OpRegistrationData* registration = nullptr;
  Status status = tensorflow::OpRegistry::Global()->LookUp(kernel.type_string(), &registration);
  if (!status.ok()) {
    return status;
  }
  if (registration->shape_inference_fn == nullptr) {
    *known = false;
    return Status();
  }
  using Handles = std::vector<std::pair<PartialTensorShape, tensorflow::DataType>>;
  std::vector<PartialTensorShape> input_shapes;
  std::vector<const Tensor*> input_tensors;
  std::vector<std::unique_ptr<Handles>> handles;
  for (const Input& input : inputs) {
    const bool on_host = input.place == Place::host;
    const bool shaped = on_host || input.place == Place::device;
    input_shapes.emplace_back(on_host ? input.host.shape() : shaped ? input.memory.shape : TensorShape());
    input_tensors.push_back(on_host ? &input.host : nullptr);
    handles.push_back(input.place == Place::variable
                          ? std::make_unique<Handles>(Handles{{input.memory.shape, input.memory.dtype}})
                          : nullptr);
  }
  InferenceContext inference(TF_GRAPH_DEF_VERSION, kernel.def(), registration->op_def, input_shapes, input_tensors, {},
                             handles);
  status = inference.construction_status();
  if (status.ok()) {
    status = inference.Run(registration->shape_inference_fn);
  }
  for (int output = 0; output < inference.num_outputs() && status.ok(); ++output) {
    TensorShape shape;
    if (!is_cudnn_reserve(kernel.type_string(), output) && !to_shape(&inference, inference.output(output), &shape)) {
      *known = false;
    }
    shapes->push_back(std::move(shape));
  }
  return status;
}

}  // namespace stand_in

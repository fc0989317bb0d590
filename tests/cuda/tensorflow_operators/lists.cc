#include "lists.h"

#include <cstdint>
#include <utility>

namespace stand_in {

using tensorflow::DT_INVALID;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;

const TensorList* list_in(const Tensor& tensor) {
  return tensor.dtype() == tensorflow::DT_VARIANT && tensor.dims() == 0
             ? tensor.scalar<tensorflow::Variant>()().get<TensorList>()
             : nullptr;
}

List describe(const TensorList& list) {
  List result{list.element_shape, list.element_dtype, list.max_num_elements, {}};
  for (const Tensor& element : list.tensors()) {
    result.elements.push_back(element.dtype() == DT_INVALID ? DeviceTensor() : describe(element));
  }
  return result;
}

Tensor to_tensor(TensorList list) {
  Tensor tensor(tensorflow::DT_VARIANT, {});
  tensor.scalar<tensorflow::Variant>()() = std::move(list);
  return tensor;
}

Tensor alias(const List& list) {
  TensorList result;
  result.element_shape = list.element_shape;
  result.element_dtype = list.element_dtype;
  result.max_num_elements = list.max_num_elements;
  for (const DeviceTensor& element : list.elements) {
    result.tensors().push_back(element.dtype == DT_INVALID ? Tensor(DT_INVALID) : alias(element));
  }
  return to_tensor(std::move(result));
}

bool element_shape(const List& list, const Tensor& wanted, TensorShape* shape) {
  PartialTensorShape element = list.element_shape;
  if (wanted.dtype() == tensorflow::DT_INT32 && wanted.dims() == 1) {
    PartialTensorShape given;
    PartialTensorShape merged;
    if (PartialTensorShape::MakePartialShape(wanted.vec<std::int32_t>().data(), wanted.NumElements(), &given).ok() &&
        element.MergeWith(given, &merged).ok()) {
      element = merged;
    }
  }
  for (const DeviceTensor& item : list.elements) {
    if (item.dtype != DT_INVALID) {
      element = item.shape;
    }
  }
  return element.AsTensorShape(shape);
}

}  // namespace stand_in

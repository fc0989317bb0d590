// Lists of tensors of a device, which are variants on the host.
#ifndef TESTS_CUDA_TENSORFLOW_OPERATORS_LISTS_H_
#define TESTS_CUDA_TENSORFLOW_OPERATORS_LISTS_H_

#include <string>
#include <vector>

#include "device_tensor.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#if __has_include("tensorflow/core/kernels/tensor_list.h")
#include "tensorflow/core/kernels/tensor_list.h"
#endif

namespace stand_in {

#if __has_include("tensorflow/core/kernels/tensor_list.h")
using tensorflow::TensorList;
#else
// The wheel of 2.1 does not show the class: no variant is seen as a list there, and the operations on lists are
// refused.
struct TensorList {
  std::string TypeName() const { return "hidden"; }
  void Encode(tensorflow::VariantTensorData* /*data*/) const {}
  bool Decode(const tensorflow::VariantTensorData& /*data*/) { return false; }
  std::vector<tensorflow::Tensor>& tensors() { return elements; }
  const std::vector<tensorflow::Tensor>& tensors() const { return elements; }
  TensorList Copy() const { return *this; }

  tensorflow::PartialTensorShape element_shape;
  tensorflow::DataType element_dtype = tensorflow::DT_INVALID;
  int max_num_elements = -1;
  std::vector<tensorflow::Tensor> elements;
};
#endif

// What a list has, by address. An element that was never set has the type DT_INVALID.
struct List {
  tensorflow::PartialTensorShape element_shape;
  tensorflow::DataType element_dtype = tensorflow::DT_INVALID;
  int max_num_elements = -1;
  std::vector<DeviceTensor> elements;
};

// The list that a tensor is; null if it is something else.
const TensorList* list_in(const tensorflow::Tensor& tensor);

List describe(const TensorList& list);

// A tensor that is this list.
tensorflow::Tensor to_tensor(TensorList list);

// A list of tensors that show the same memory, for the CPU.
tensorflow::Tensor alias(const List& list);

// The shape of a list's elements, by what an operation's input says of it and by those that are set. False: not known.
bool element_shape(const List& list, const tensorflow::Tensor& wanted, tensorflow::TensorShape* shape);

}  // namespace stand_in

#endif  // TESTS_CUDA_TENSORFLOW_OPERATORS_LISTS_H_

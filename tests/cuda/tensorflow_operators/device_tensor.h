// A tensor in a device's memory, by address only: like a kernel on a device, what refers to it does not keep it alive,
// so that memory which was taken too early is seen as such.
#ifndef TESTS_CUDA_TENSORFLOW_OPERATORS_DEVICE_TENSOR_H_
#define TESTS_CUDA_TENSORFLOW_OPERATORS_DEVICE_TENSOR_H_

#include <cstdint>

#include "tensorflow/core/framework/tensor.h"

namespace stand_in {

struct DeviceTensor {
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  tensorflow::TensorShape shape;
  void* address = nullptr;
  std::uint64_t bytes = 0;
};

// Where its elements are.
void* address_of(const tensorflow::Tensor& tensor);

DeviceTensor describe(const tensorflow::Tensor& tensor);

// A tensor that shows the same memory, for the CPU. It is nobody's to write into unless it is the only reference.
tensorflow::Tensor alias(const DeviceTensor& tensor);

// Whether the device may read the tensor's memory, or also write it, at this moment.
bool accessible(int device, const DeviceTensor& tensor, bool write);

}  // namespace stand_in

#endif  // TESTS_CUDA_TENSORFLOW_OPERATORS_DEVICE_TENSOR_H_

// What shapes the outputs of an operation will have, where that can be told before its kernel has run.
#ifndef TESTS_CUDA_TENSORFLOW_OPERATORS_OUTPUT_SHAPES_H_
#define TESTS_CUDA_TENSORFLOW_OPERATORS_OUTPUT_SHAPES_H_

#include <vector>

#include "kernel_call.h"
#include "status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace stand_in {

// Sets `known`, and the shapes if so. Fails where TensorFlow's function for shapes finds the inputs wrong.
Status output_shapes(const tensorflow::OpKernel& kernel, tensorflow::OpKernelContext* context,
                     const std::vector<Input>& inputs, bool* known, std::vector<tensorflow::TensorShape>* shapes);

}  // namespace stand_in

#endif  // TESTS_CUDA_TENSORFLOW_OPERATORS_OUTPUT_SHAPES_H_

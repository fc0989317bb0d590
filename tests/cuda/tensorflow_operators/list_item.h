// Takes an element out of a list: TensorListGetItem and TensorListPopBack. One that was never set is zeros, which the
// device writes.
#ifndef TESTS_CUDA_TENSORFLOW_OPERATORS_LIST_ITEM_H_
#define TESTS_CUDA_TENSORFLOW_OPERATORS_LIST_ITEM_H_

#include "tensorflow/core/framework/op_kernel.h"

namespace stand_in {

class ListItem final : public tensorflow::OpKernel {
 public:
  explicit ListItem(tensorflow::OpKernelConstruction* construction) : OpKernel(construction) {}

  void Compute(tensorflow::OpKernelContext* context) override;
};

}  // namespace stand_in

#endif  // TESTS_CUDA_TENSORFLOW_OPERATORS_LIST_ITEM_H_

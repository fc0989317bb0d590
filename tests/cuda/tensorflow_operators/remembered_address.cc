// Two operations with which a program touches memory that it did not announce: one remembers its input's address, the
// other reads there when the stream comes to it.
#include <atomic>

#include "device_stream.h"
#include "device_tensor.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace stand_in {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

DeviceTensor& remembered() {
  static DeviceTensor& tensor = *new DeviceTensor;
  return tensor;
}

class RememberAddress final : public tensorflow::OpKernel {
 public:
  explicit RememberAddress(OpKernelConstruction* construction) : OpKernel(construction) {}
  void Compute(OpKernelContext* context) override { remembered() = describe(context->input(0)); }
};

class ReadRememberedAddress final : public tensorflow::OpKernel {
 public:
  explicit ReadRememberedAddress(OpKernelConstruction* construction) : OpKernel(construction) {}
  void Compute(OpKernelContext* context) override {
    const DeviceStream stream(context);
    const DeviceTensor tensor = remembered();
    context->SetStatus(stream.enqueue("ReadRememberedAddress", [tensor, device = stream.device()] {
      return accessible(device, tensor, /*write=*/false) ? Status() : internal("an illegal address");
    }));
  }
};

REGISTER_OP("RememberAddress")
    .Input("tensor: float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);
REGISTER_OP("ReadRememberedAddress").SetIsStateful().SetShapeFn(tensorflow::shape_inference::NoOutputs);
REGISTER_KERNEL_BUILDER(Name("RememberAddress").Device(tensorflow::DEVICE_GPU), RememberAddress);
REGISTER_KERNEL_BUILDER(Name("ReadRememberedAddress").Device(tensorflow::DEVICE_GPU), ReadRememberedAddress);

}  // namespace
}  // namespace stand_in

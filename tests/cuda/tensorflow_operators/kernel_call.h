// One run of a CPU's kernel on the memory of a device: all that it needs, and nothing that keeps tensors of the device.
#ifndef TESTS_CUDA_TENSORFLOW_OPERATORS_KERNEL_CALL_H_
#define TESTS_CUDA_TENSORFLOW_OPERATORS_KERNEL_CALL_H_

#include <memory>
#include <vector>

#include "device_tensor.h"
#include "lists.h"
#include "status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace stand_in {

enum class Place {
  host,  // `host`
  device,  // `memory`
  variable,  // a resource variable, whose tensor is `memory`
  list,  // a scalar variant that is `list`
};

struct Input {
  Place place = Place::host;
  tensorflow::Tensor host;
  DeviceTensor memory;
  bool written = false;  // the kernel writes its input
  bool copy_on_read = false;  // of a variable: it is in the mode for sparse access
  List list;
};

struct KernelCall {
  std::shared_ptr<tensorflow::OpKernel> kernel;
  int device = -1;
  std::vector<Input> inputs;

  // An input that the device may not touch is an illegal address: the device is lost. Calls nothing of CUDA. The
  // outputs are on the host, or are inputs that the kernel handed on.
  Status run(std::vector<tensorflow::Tensor>* outputs) const;
};

}  // namespace stand_in

#endif  // TESTS_CUDA_TENSORFLOW_OPERATORS_KERNEL_CALL_H_

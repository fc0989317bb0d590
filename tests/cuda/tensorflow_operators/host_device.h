// The CPU device that the kernels of the stand-ins are for: one thread, so that results do not depend on how work was
// divided, and memory that no program's devices know of.
#ifndef TESTS_CUDA_TENSORFLOW_OPERATORS_HOST_DEVICE_H_
#define TESTS_CUDA_TENSORFLOW_OPERATORS_HOST_DEVICE_H_

#include <memory>

#include "status.h"
#if __has_include("tensorflow/core/framework/device.h")
#include "tensorflow/core/framework/device.h"
#else  // until 2.4
#include "tensorflow/core/common_runtime/device.h"
#endif
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace stand_in {

// Lives as long as the process.
tensorflow::Device& host_device();

// The CPU's kernel for a node, or why there is none.
std::unique_ptr<tensorflow::OpKernel> make_host_kernel(const tensorflow::NodeDef& node, int graph_version,
                                                       Status* status);

}  // namespace stand_in

#endif  // TESTS_CUDA_TENSORFLOW_OPERATORS_HOST_DEVICE_H_

// What the rest of LMS needs of the GPUs, which only a build with CUDA has: everywhere else these functions are null.
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_GPU_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_GPU_H_

#include "tensorflow/core/common_runtime/lms/pager/status.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace lms_tensorflow {

// Registers the factory of GPU devices with LMS, in place of the stock one, when it is first called: a program that
// does not ask for LMS keeps the stock devices. A CPU device's factory may call it; a GPU's may not, since the list of
// factories is locked then. LMS_UNSUPPORTED: there are GPU devices already, stock ones or a plug-in's.
__attribute__((weak)) lms::Status take_over_gpus();

// Apply what the program requested (lms_request.h) to the GPUs that have devices; those that get some later are looked
// at then. GPUs that the program enabled itself are left alone.
__attribute__((weak)) lms::Status enable_gpus_as_requested();
__attribute__((weak)) lms::Status disable_gpus();
__attribute__((weak)) lms::Status limit_gpus_as_requested();

// Host memory that GPUs copy from and to quickly; the plain allocator where there is no GPU.
__attribute__((weak)) tensorflow::Allocator* gpu_host_allocator(const tensorflow::GPUOptions& options, int numa_node);

}  // namespace lms_tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_GPU_H_

// The memory of the CPU devices, which share one pager, and how LMS is switched on and off for it. All functions are
// thread-safe; those for programs are in lms_tensorflow.h.
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_CPU_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_CPU_H_

#include "tensorflow/core/common_runtime/lms/lms_allocator.h"
#include "tensorflow/core/common_runtime/lms/pager/status.h"

namespace lms_tensorflow {

const Memory& cpu_memory();

// Enables LMS for the CPU with the requested limit (lms_request.h), or that of BFC. Does nothing when neither says one,
// which lms_tensorflow_without_effect() tells where there is no GPU either, or when it is enabled already.
lms::Status enable_cpu_as_requested();

// These do nothing for a CPU that the program enabled itself since.
lms::Status disable_cpu_as_requested();

// Applies the requested limit, unless that is the GPU's, also to a CPU that had none so far. On failure the CPU keeps
// its earlier one. LMS_UNSUPPORTED: none is requested, and BFC has none.
lms::Status limit_cpu_as_requested();

}  // namespace lms_tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_CPU_H_

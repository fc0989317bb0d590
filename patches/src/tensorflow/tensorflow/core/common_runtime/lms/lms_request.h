// What the program and its sessions ask for: whether devices page their tensors, and within which limits.
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_REQUEST_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_REQUEST_H_

#include <cstdint>
#include <string>

#include "tensorflow/core/common_runtime/lms/pager/status.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace lms_tensorflow {

// The number of lms_enabled in GPUOptions.Experimental of a ConfigProto. A stock build keeps it as an unknown field.
constexpr int lms_enabled_field = 10001;

// Whether the ConfigProto has the field, and it is true.
bool asks_for_lms(const tensorflow::ConfigProto& config);

// Whether devices that are made for a session with that ConfigProto use LMS: what the program decided, else what the
// session asks for. LMS_INVALID_ARGUMENT: the session asks for what the program has disabled.
lms::Status wanted(const tensorflow::ConfigProto& config, bool* out);

// What lms_tensorflow_set_limit said, in bytes; 0: the device's own limit.
std::uint64_t requested_limit();

// Enables LMS for the CPU with the requested limit, or that of BFC. Does nothing when neither says one and there is a
// GPU, or when the program enabled it itself. LMS_UNSUPPORTED: there is no GPU and no limit.
lms::Status enable_cpu_as_requested();

// The program enabled or disabled the CPU itself: what it requested for all devices is not for that one any more.
void cpu_was_switched();

}  // namespace lms_tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_REQUEST_H_

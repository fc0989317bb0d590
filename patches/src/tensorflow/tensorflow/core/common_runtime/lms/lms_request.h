// What the program and its sessions ask for: whether devices page their tensors, and within which limits. Nothing here
// touches a device. All functions are thread-safe.
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_REQUEST_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_REQUEST_H_

#include <cstdint>

#include "tensorflow/core/common_runtime/lms/pager/lms.h"
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

// The decision of the program: 1 or 0, or -1 while there is none.
int decision();
void decide(bool enabled);

// What lms_tensorflow_set_limit said, in bytes; 0: the device's own limit.
std::uint64_t requested_limit();

// Makes the options those of the limit, and of the budget that it is of if it is shared.
void limit_as_requested(std::uint64_t bytes, lms_options* options);

// Returns the earlier one.
std::uint64_t request_limit(std::uint64_t bytes);

}  // namespace lms_tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_REQUEST_H_

// The pager's failures as TensorFlow's.
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_STATUS_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_STATUS_H_

#include <string>

#include "tensorflow/core/common_runtime/lms/pager/status.h"
#include "tensorflow/core/lib/core/errors.h"

namespace lms_tensorflow {

// Newer releases have absl's Status instead, and say that these functions are deprecated; the older have nothing else.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

using TensorflowStatus = decltype(tensorflow::errors::Internal(""));

inline TensorflowStatus to_tensorflow(const lms::Status& status) {
  const std::string sentence = "LMS: " + status.message;
  switch (status.code) {
    case LMS_OK:
      return TensorflowStatus();
    case LMS_OUT_OF_MEMORY:
    case LMS_STORE_FAILED:
      return tensorflow::errors::ResourceExhausted(sentence);
    case LMS_INVALID_ARGUMENT:
      return tensorflow::errors::InvalidArgument(sentence);
    case LMS_READ_FAILED:
      return tensorflow::errors::DataLoss(sentence);
    case LMS_UNSUPPORTED:
      return tensorflow::errors::FailedPrecondition(sentence);
    default:
      return tensorflow::errors::Internal(sentence);
  }
}

#pragma GCC diagnostic pop

}  // namespace lms_tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_STATUS_H_

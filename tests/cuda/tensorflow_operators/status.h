// TensorFlow's status. Until 2.11 it is a class of its own, since then absl's.
#ifndef TESTS_CUDA_TENSORFLOW_OPERATORS_STATUS_H_
#define TESTS_CUDA_TENSORFLOW_OPERATORS_STATUS_H_

#include <string>

#include "tensorflow/core/lib/core/errors.h"

namespace stand_in {

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // where there is absl's

using Status = decltype(tensorflow::errors::Internal(""));

inline Status internal(const std::string& text) { return tensorflow::errors::Internal(text); }
inline Status failed_precondition(const std::string& text) { return tensorflow::errors::FailedPrecondition(text); }
inline Status invalid_argument(const std::string& text) { return tensorflow::errors::InvalidArgument(text); }
inline Status unimplemented(const std::string& text) { return tensorflow::errors::Unimplemented(text); }

#pragma GCC diagnostic pop

}  // namespace stand_in

#endif  // TESTS_CUDA_TENSORFLOW_OPERATORS_STATUS_H_

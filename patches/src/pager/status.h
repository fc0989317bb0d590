// The outcome of a call: a code and, unless it is LMS_OK, a sentence for the user.
#ifndef LMS_STATUS_H
#define LMS_STATUS_H

#include <string>
#include <utility>

#include "status_code.h"

namespace lms {

struct Status {
  Status() = default;
  Status(lms_status outcome, std::string sentence) : code(outcome), message(std::move(sentence)) {}
  bool ok() const { return code == LMS_OK; }

  lms_status code = LMS_OK;
  std::string message;
};

}  // namespace lms
#endif  // LMS_STATUS_H

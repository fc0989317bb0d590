// For glue that enables a device later than it is asked to: a copy of the options, with what their texts point at.
#ifndef LMS_KEPT_OPTIONS_H
#define LMS_KEPT_OPTIONS_H

#include <string>

#include "lms.h"

namespace lms {

class KeptOptions {
 public:
  KeptOptions() = default;
  KeptOptions(const KeptOptions&) = delete;
  KeptOptions& operator=(const KeptOptions&) = delete;

  void set(const lms_options& given) {
    options_ = given;
    options_.store = keep(given.store, &store_);
    options_.policy = keep(given.policy, &policy_);
    options_.share = keep(given.share, &share_);
  }

  // Valid until the next set().
  const lms_options& get() const { return options_; }

 private:
  static const char* keep(const char* text, std::string* kept) {
    *kept = text != nullptr ? text : "";
    return text != nullptr ? kept->c_str() : nullptr;
  }

  lms_options options_{};
  std::string store_;
  std::string policy_;
  std::string share_;
};

}  // namespace lms
#endif  // LMS_KEPT_OPTIONS_H

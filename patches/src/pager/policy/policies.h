// The policies that there are: one table, which gives every interface their names.
#ifndef LMS_POLICIES_H
#define LMS_POLICIES_H

#include <cstddef>
#include <memory>
#include <string>

#include "policy.h"

namespace lms {

constexpr const char* default_policy = "iteration";

// The name of the policy with that number, from 0 on; null past the last one.
const char* policy_name(std::size_t index);

// All names, as the end of a sentence: 'a', 'b' or 'c'.
std::string policy_names();

// A new policy of that name; null when there is none.
std::unique_ptr<Policy> make_policy(const std::string& name);

}  // namespace lms
#endif  // LMS_POLICIES_H

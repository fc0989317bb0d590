// On what terms a process shares a budget, and the text in which they are given:
//
//   NAME,weight=2,minimum=1073741824,priority=-1,group=docker
//
// Each part may be left out; without a NAME the budget is the device's own.
#ifndef LMS_SHARE_TERMS_H
#define LMS_SHARE_TERMS_H

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "../status.h"

namespace lms {

struct ShareTerms {
  std::string name;
  double weight = 1;  // share_least_weight to share_most_weight
  std::uint64_t minimum = 0;  // bytes
  std::int64_t priority = 0;  // -1000 to 1000; higher is served first
  std::string group;  // whose members may share, too; empty: only the same user
  gid_t gid = 0;  // of the group
};

constexpr double share_least_weight = 1e-3;
constexpr double share_most_weight = 1e6;
constexpr std::int64_t share_most_priority = 1000;
constexpr std::size_t share_longest_name = 64;

// LMS_INVALID_ARGUMENT: something in the text is wrong; the sentence says what.
Status read_share_terms(const std::string& text, ShareTerms* terms);

}  // namespace lms
#endif  // LMS_SHARE_TERMS_H

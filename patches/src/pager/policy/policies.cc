#include "policies.h"

#include "iteration_policy.h"
#include "lru_policy.h"

namespace lms {

namespace {

struct PolicyRow {
  const char* name;
  std::unique_ptr<Policy> (*make)();
};

template <typename Kind>
std::unique_ptr<Policy> policy_of_kind() {
  return std::unique_ptr<Policy>(new Kind);
}

const PolicyRow policy_table[] = {
    {"lru", &policy_of_kind<LruPolicy>},
    {"iteration", &policy_of_kind<IterationPolicy>},
};
constexpr std::size_t policy_count = sizeof(policy_table) / sizeof(policy_table[0]);

}  // namespace

const char* policy_name(std::size_t index) { return index < policy_count ? policy_table[index].name : nullptr; }

std::string policy_names() {
  std::string text;
  for (std::size_t index = 0; index < policy_count; ++index) {
    text += index == 0 ? "" : index + 1 < policy_count ? ", " : " or ";
    text += std::string("'") + policy_table[index].name + "'";
  }
  return text;
}

std::unique_ptr<Policy> make_policy(const std::string& name) {
  for (const PolicyRow& row : policy_table) {
    if (name == row.name) {
      return row.make();
    }
  }
  return nullptr;
}

}  // namespace lms

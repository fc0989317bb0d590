#include "policy.h"

#include "iteration_policy.h"
#include "lru_policy.h"

namespace lms {

BlockId Policy::early_victim(const BlockSource&) { return no_block; }

BlockId Policy::prefetch(const BlockSource&) { return no_block; }

std::uint64_t Policy::foreseen() const { return 0; }

std::uint64_t Policy::departures() const { return 0; }

std::unique_ptr<Policy> make_policy(const std::string& name) {
  if (name == "lru") {
    return std::unique_ptr<Policy>(new LruPolicy);
  }
  if (name == "iteration") {
    return std::unique_ptr<Policy>(new IterationPolicy);
  }
  return nullptr;
}

}  // namespace lms

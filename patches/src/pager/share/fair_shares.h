// Who may have how much of a budget: weighted max-min fairness with minima and priorities.
//
// Nobody gets more than it could use. Minima come first; then, from the highest priority to the lowest, what remains is
// divided so that no share can grow but at the cost of one that is smaller by weight (max-min fairness: D. Bertsekas,
// R. Gallager, Data Networks, 2nd edition, 6.5.2). A function of its arguments alone, so that all sharers who see the
// same claims come to the same shares.
#ifndef LMS_FAIR_SHARES_H
#define LMS_FAIR_SHARES_H

#include <cstdint>
#include <vector>

namespace lms {

struct Claim {
  double weight = 1;  // > 0
  std::uint64_t minimum = 0;  // bytes that it gets before anybody gets more than that, as far as it could use them
  std::int64_t priority = 0;  // higher is served first
  std::uint64_t demand = 0;  // bytes that it could use
};

// The share of each claim, in bytes; together at most `budget`, and that much if the demands are.
std::vector<std::uint64_t> fair_shares(std::uint64_t budget, const std::vector<Claim>& claims);

}  // namespace lms
#endif  // LMS_FAIR_SHARES_H

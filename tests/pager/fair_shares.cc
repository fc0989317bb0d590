// The division of a budget, alone: against what makes a division fair, for claims at random.
#include "share/fair_shares.h"

#include <algorithm>
#include <cmath>

#include "check.h"

using check::Random;
using lms::Claim;
using lms::fair_shares;

namespace {

Claim claim(std::uint64_t demand, double weight = 1, std::uint64_t minimum = 0, std::int64_t priority = 0) {
  Claim result;
  result.demand = demand;
  result.weight = weight;
  result.minimum = minimum;
  result.priority = priority;
  return result;
}

void check_shares(std::uint64_t budget, const std::vector<Claim>& claims, const std::vector<std::uint64_t>& expected) {
  const std::vector<std::uint64_t> shares = fair_shares(budget, claims);
  CHECK_EQ(shares.size(), expected.size());
  for (std::size_t index = 0; index < shares.size(); ++index) {
    CHECK(shares[index] + 1 >= expected[index] && shares[index] <= expected[index]);  // a byte may be lost
  }
}

}  // namespace

CASE(shares_that_can_be_told_by_hand) {
  check_shares(100, {}, {});
  check_shares(100, {claim(30)}, {30});
  check_shares(100, {claim(300)}, {100});
  check_shares(100, {claim(300), claim(300)}, {50, 50});
  check_shares(100, {claim(20), claim(300), claim(300)}, {20, 40, 40});
  check_shares(90, {claim(300, 2), claim(300, 1)}, {60, 30});
  check_shares(90, {claim(30, 2), claim(300, 1)}, {30, 60});
  check_shares(100, {claim(300, 1, 70), claim(300)}, {70, 30});
  check_shares(100, {claim(10, 1, 70), claim(300)}, {10, 90});  // a minimum that is not used is nobody's
  check_shares(100, {claim(80, 1, 0, 1), claim(300)}, {80, 20});
  check_shares(100, {claim(300, 1, 0, 1), claim(300, 9, 10, 0)}, {90, 10});
  check_shares(100, {claim(UINT64_MAX), claim(UINT64_MAX / 2)}, {50, 50});
  check_shares(0, {claim(5), claim(7, 1, 7)}, {0, 0});
  check_shares(100, {claim(90, 1, 90), claim(90, 1, 90)}, {90, 10});  // minima that cannot all be kept
}

CASE(shares_are_fair) {
  Random random(check::seed());
  for (std::uint64_t step = 0; step < check::steps(20000); ++step) {
    const std::uint64_t budget = random.below(random.chance(20) ? 50 : std::uint64_t{1} << 36);
    std::vector<Claim> claims(random.below(9));
    std::uint64_t minima = 0;
    for (Claim& each : claims) {
      each = claim(random.below(budget * 2 + 2), static_cast<double>(1 + random.below(4000)) / 1000,
                   random.chance(50) ? random.below((budget - minima) / 2 + 1) : 0,
                   static_cast<std::int64_t>(random.below(3)) - 1);
      minima += each.minimum;
    }
    const std::vector<std::uint64_t> shares = fair_shares(budget, claims);
    std::uint64_t sum = 0;
    std::uint64_t demands = 0;
    for (std::size_t index = 0; index < claims.size(); ++index) {
      CHECK(shares[index] <= claims[index].demand);
      CHECK(shares[index] >= std::min(claims[index].minimum, claims[index].demand));
      sum += shares[index];
      demands += claims[index].demand;
    }
    CHECK(sum <= budget);
    const std::uint64_t lost = 2 * claims.size();  // to rounding
    CHECK(sum + lost >= std::min(budget, demands));
    for (std::size_t i = 0; i < claims.size(); ++i) {
      for (std::size_t j = 0; j < claims.size(); ++j) {
        const bool above_minimum = shares[i] > std::min(claims[i].minimum, claims[i].demand);
        const bool satisfied = shares[j] + lost >= claims[j].demand;
        const double level = static_cast<double>(shares[i]) / claims[i].weight;
        const double other = static_cast<double>(shares[j] + lost) / claims[j].weight;
        // Who has more than the minimum has it at the cost of nobody of a higher priority, nor of a lower level.
        if (above_minimum && !satisfied && claims[i].priority < claims[j].priority) {
          CHECK(shares[i] <= std::min(claims[i].minimum, claims[i].demand) + lost);
        }
        if (above_minimum && !satisfied && claims[i].priority == claims[j].priority) {
          CHECK(level <= other * (1 + 1e-9) + 1 / claims[i].weight);
        }
      }
    }
  }
}

#include "fair_shares.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>

namespace lms {

namespace {

constexpr int fair_halvings = 80;  // of the level of all shares; a double has no more digits

std::uint64_t fair_share_at(double level, const Claim& claim, std::uint64_t least) {
  const double share = level * claim.weight;
  return share >= static_cast<double>(claim.demand) ? claim.demand : std::max(least, static_cast<std::uint64_t>(share));
}

}  // namespace

std::vector<std::uint64_t> fair_shares(std::uint64_t budget, const std::vector<Claim>& claims) {
  std::vector<std::uint64_t> shares(claims.size());
  std::map<std::int64_t, std::vector<std::size_t>, std::greater<>> priorities;
  std::uint64_t rest = budget;
  for (std::size_t index = 0; index < claims.size(); ++index) {
    shares[index] = std::min({claims[index].minimum, claims[index].demand, rest});
    rest -= shares[index];
    priorities[claims[index].priority].push_back(index);
  }
  for (const auto& entry : priorities) {
    const std::vector<std::size_t>& members = entry.second;
    // By how much the members' shares exceed their minima when the level of all is that: grows with the level.
    const auto excess_at = [&](double level, std::uint64_t most) {
      std::uint64_t excess = 0;
      for (const std::size_t index : members) {
        excess += fair_share_at(level, claims[index], shares[index]) - shares[index];
        if (excess > most) {
          break;
        }
      }
      return excess;
    };
    double high = 0;
    for (const std::size_t index : members) {
      high = std::max(high, static_cast<double>(claims[index].demand) / claims[index].weight * 2);
    }
    double low = high;
    if (excess_at(high, rest) > rest) {
      low = 0;
      for (int count = 0; count < fair_halvings; ++count) {
        const double middle = (low + high) / 2;
        (excess_at(middle, rest) <= rest ? low : high) = middle;
      }
    }
    for (const std::size_t index : members) {
      const std::uint64_t share = fair_share_at(low, claims[index], shares[index]);
      rest -= share - shares[index];
      shares[index] = share;
    }
  }
  return shares;
}

}  // namespace lms

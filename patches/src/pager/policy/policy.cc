#include "policy.h"

namespace lms {

BlockId Policy::early_victim(const BlockSource&) { return no_block; }

BlockId Policy::prefetch(const BlockSource&) { return no_block; }

void Policy::set_distances(const Distances&) {}

std::uint64_t Policy::foreseen() const { return 0; }

std::uint64_t Policy::departures() const { return 0; }

}  // namespace lms

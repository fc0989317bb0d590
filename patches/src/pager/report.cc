#include "report.h"

#include <atomic>

#include "thread.h"

namespace lms {
namespace report {

void count_states(const BlockTable& blocks, Statistics* result) {
  for (BlockId id = 0; id < blocks.end(); ++id) {
    const Block& block = *blocks.at(id);
    const std::uint64_t found = block.word.load(std::memory_order_acquire);
    result->away_blocks += word::state(found) == State::away ? 1 : 0;
    if (word::state(found) != State::resident) {
      continue;
    }
    if (word::pins(found) > 0 || (found & word::held) != 0) {
      result->pinned_bytes += block.bytes;
    } else if (BlockTable::can_leave(block, false)) {
      result->inactive_bytes += block.bytes;
      ++result->inactive_blocks;
    } else {
      result->protected_bytes += block.bytes;
    }
    if ((found & word::clean) != 0) {
      result->clean_bytes += block.bytes;
    }
  }
}

std::vector<ResidentRange> resident_ranges(const BlockTable& blocks) {
  std::vector<ResidentRange> ranges;
  for (BlockId id = 0; id < blocks.end(); ++id) {
    const Block& block = *blocks.at(id);
    if (block.state() == State::resident) {
      ranges.push_back(ResidentRange{block.address, block.bytes});
    }
  }
  return ranges;
}

namespace {
std::atomic<NameOperation> name_operation{nullptr};
}  // namespace

void set_name_operation(NameOperation name) { name_operation.store(name); }

std::string running_operation() {
  const NameOperation name = name_operation.load();
  const char* found = name == nullptr ? nullptr : name();
  return found == nullptr ? "" : found;
}

std::string request(std::uint64_t bytes) {
  const std::string operation = running_operation();
  return std::to_string(bytes) + " bytes requested" + (operation.empty() ? "" : " in " + operation);
}

std::string whereabouts(const BlockTable& blocks, std::uint64_t resident, std::uint64_t allocated) {
  std::uint64_t pinned = 0;
  std::uint64_t protected_or_unseen = 0;
  for (BlockId id = 0; id < blocks.end(); ++id) {
    const Block& block = *blocks.at(id);
    const std::uint64_t found = block.word.load(std::memory_order_acquire);
    if (word::state(found) == State::resident) {
      (word::pins(found) > 0 ? pinned : protected_or_unseen) += block.bytes;
    }
  }
  return "resident " + std::to_string(resident) + " (pinned by operations or views " + std::to_string(pinned) +
         ", protected by a running operation or not yet seen as a tensor " + std::to_string(protected_or_unseen) +
         "), away " + std::to_string(allocated - resident) + " bytes";
}

std::string out_of_memory(const BlockTable& blocks, std::uint64_t bytes, std::uint64_t limit, std::uint64_t resident,
                          std::uint64_t allocated) {
  return "out of memory under the limit: " + request(bytes) + ", limit " + std::to_string(limit) + ", " +
         whereabouts(blocks, resident, allocated) + "; raise the limit, or make the largest operation smaller";
}

}  // namespace report
}  // namespace lms

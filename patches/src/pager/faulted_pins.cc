#include "faulted_pins.h"

#include <algorithm>

namespace lms {

namespace {

// At most so many in all, and the last of each thread even when memory is short, since one instruction may need two
// blocks at once (a copy from one to another).
constexpr std::size_t faulted_most = 64;
constexpr std::ptrdiff_t faulted_in_use = 2;

}  // namespace

void FaultedPins::release_front() {
  entries_.front().pin.release();
  entries_.pop_front();
}

void FaultedPins::hold(Block* block, std::uint64_t now) {
  while (entries_.size() >= faulted_most) {
    release_front();
  }
  const std::uint64_t found = block->word.fetch_add(word::pin, std::memory_order_acq_rel);
  entries_.push_back(Entry{Pin{block, word::generation(found)}, &Thread::current(), now});
}

bool FaultedPins::release_older(std::uint64_t age, std::uint64_t now) {
  bool some = false;
  while (!entries_.empty() && now - entries_.front().when >= age) {
    release_front();
    some = true;
  }
  return some;
}

bool FaultedPins::release_idle() {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const auto newer =
        std::count_if(entry + 1, entries_.end(), [&](const Entry& other) { return other.thread == entry->thread; });
    if (newer >= faulted_in_use) {
      entry->pin.release();
      entries_.erase(entry);
      return true;
    }
  }
  return false;
}

}  // namespace lms

#include "faulted_pins.h"

#include <algorithm>
#include <utility>

namespace lms {

namespace {

// Of the program's own accesses at most so many are pinned, and a loop over so many blocks is noticed.
constexpr std::size_t faulted_most = 64;
// The last of each thread stay even when memory is short, since one instruction may need two blocks at once (a copy
// from one to another).
constexpr std::ptrdiff_t faulted_in_use = 2;
// Ticks of the clock after which a program's own access no longer counts as in use.
constexpr std::uint64_t faulted_lifetime = 256;

}  // namespace

template <typename Condition>
bool FaultedPins::release_if(const Condition& condition) {
  const auto kept =
      std::stable_partition(entries_.begin(), entries_.end(), [&](const Entry& entry) { return !condition(entry); });
  const bool some = kept != entries_.end();
  std::for_each(kept, entries_.end(), [](const Entry& entry) { entry.pin.release(); });
  entries_.erase(kept, entries_.end());
  return some;
}

bool FaultedPins::came_back_soon(const Pin& pin, const Thread* thread) const {
  return std::any_of(recent_.begin(), recent_.end(), [&](const Entry& entry) {
    return entry.thread == thread && entry.pin.block == pin.block && entry.pin.generation == pin.generation;
  });
}

void FaultedPins::hold(Block* block, std::uint64_t now) {
  const std::uint64_t found = block->word.fetch_add(word::pin, std::memory_order_acq_rel);
  const Thread& thread = Thread::current();
  Entry entry{Pin{block, word::generation(found)}, &thread, now, false, thread.scopes_served()};
  if (entry.scopes.empty()) {
    entry.looping = came_back_soon(entry.pin, entry.thread);
    recent_.push_back(entry);
    if (recent_.size() > faulted_most) {
      const Entry& oldest = recent_.front();
      release_if([&](const Entry& other) { return other.scopes.empty() && other.when <= oldest.when; });
      recent_.pop_front();
    }
  }
  entries_.push_back(std::move(entry));
}

bool FaultedPins::release_ended(std::uint64_t now) {
  return release_if([now](const Entry& entry) {
    return entry.scopes.empty() ? now - entry.when >= faulted_lifetime
                                : std::all_of(entry.scopes.begin(), entry.scopes.end(),
                                              [](const Scope& scope) { return scope.is_over(); });
  });
}

bool FaultedPins::release_idle() {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (!entry->scopes.empty() || entry->looping) {
      continue;
    }
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

bool FaultedPins::release_others() {
  return release_if([](const Entry& entry) { return entry.scopes.empty(); });
}

}  // namespace lms

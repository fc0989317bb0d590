#include "lru_policy.h"

#include <algorithm>

namespace lms {

void LruPolicy::note(const Event& event) {
  if (event.use != Use::allocate && event.use != Use::free) {
    return;
  }
  if (event.block >= freed_.size()) {
    if (event.use == Use::allocate) {
      return;
    }
    freed_.resize(event.block + 1, false);
  }
  freed_[event.block] = event.use == Use::free;
}

void LruPolicy::sort_blocks(const BlockSource& blocks) {
  order_.clear();
  waiting_.clear();
  next_ = 0;
  for (const BlockId id : blocks.present()) {
    const BlockState state = blocks.state(id);
    if (state.away || (id < freed_.size() && freed_[id])) {
      continue;
    }
    order_.push_back(Entry{state.last_use, id});
  }
  std::sort(order_.begin(), order_.end(), [](const Entry& a, const Entry& b) {
    return a.last_use != b.last_use ? a.last_use < b.last_use : a.block < b.block;
  });
}

BlockId LruPolicy::next_listed(const BlockSource& blocks) {
  std::size_t kept = 0;
  BlockId found = no_block;
  for (const Entry entry : waiting_) {
    if (found == no_block) {
      const BlockState state = blocks.state(entry.block);
      if (state.last_use != entry.last_use || state.away) {
        continue;
      }
      if (state.evictable) {
        found = entry.block;
      }
    }
    waiting_[kept++] = entry;
  }
  waiting_.resize(kept);
  while (found == no_block && next_ < order_.size()) {
    const Entry entry = order_[next_++];
    const BlockState state = blocks.state(entry.block);
    if (state.last_use != entry.last_use || state.away) {
      continue;
    }
    if (entry.block < freed_.size() && freed_[entry.block]) {
      continue;
    }
    waiting_.push_back(entry);
    if (state.evictable) {
      found = entry.block;
    }
  }
  return found;
}

BlockId LruPolicy::victim(const BlockSource& blocks, std::uint64_t) {
  const BlockId listed = next_listed(blocks);
  if (listed != no_block) {
    return listed;
  }
  sort_blocks(blocks);
  return next_listed(blocks);
}

}  // namespace lms

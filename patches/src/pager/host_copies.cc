#include "host_copies.h"

#include <algorithm>
#include <utility>

namespace lms {

void HostCopies::set_store(std::unique_ptr<Store> store, const FileStoreOptions& options) {
  retired_.push_back(std::move(store_));
  retired_.erase(std::remove_if(retired_.begin(), retired_.end(),
                                [](const std::unique_ptr<Store>& old) { return !old || old->used_bytes() == 0; }),
                 retired_.end());
  store_ = std::move(store);
  options_ = options;
}

bool HostCopies::allocate(const Batch& blocks) {
  Slot slot;
  if (!store_->allocate(blocks.bytes(), &slot)) {
    return false;
  }
  for (Block* block : blocks) {
    block->slot = slot;
    slot.offset += block->bytes;
  }
  return true;
}

void HostCopies::release(Block* block) {
  if (block->slot.store == nullptr) {
    return;
  }
  if (backend_->over(block->copy)) {
    block->slot.store->release(block->slot, block->bytes);
  } else {
    draining_.push_back(Draining{block->slot, block->bytes, block->copy});
  }
  block->slot = Slot{};
}

void HostCopies::drain() {
  // Copies end about in the order in which their slots were released.
  while (!draining_.empty() && backend_->over(draining_.front().copy)) {
    const Draining& entry = draining_.front();
    entry.slot.store->release(entry.slot, entry.bytes);
    draining_.pop_front();
  }
}

std::vector<std::unique_ptr<Segment>> HostCopies::take_empty() {
  drain();
  return store_ != nullptr ? store_->take_empty() : std::vector<std::unique_ptr<Segment>>();
}

std::vector<std::unique_ptr<Segment>> HostCopies::take_unused() {
  drain();
  return store_ != nullptr ? store_->take_unused() : std::vector<std::unique_ptr<Segment>>();
}

std::uint64_t HostCopies::bytes() const {
  std::uint64_t sum = store_->used_bytes();
  for (const auto& store : retired_) {
    sum += store->used_bytes();
  }
  return sum;
}

void HostCopies::freeze() {
  store_->freeze();
  for (const auto& store : retired_) {
    store->freeze();
  }
}

}  // namespace lms

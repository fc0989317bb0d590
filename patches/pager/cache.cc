#include "cache.h"

namespace lms {

Block* Cache::take(std::uint64_t bytes, std::uint32_t home) {
  for (std::uint32_t step = 0; step < shards_.size(); ++step) {
    Shard& shard = shards_[(home + step) % shards_.size()];
    if (shard.bytes.load(std::memory_order_relaxed) < bytes) {
      continue;
    }
    const std::lock_guard<std::mutex> guard(shard.lock);
    const auto found = shard.lists.find(bytes);
    if (found != shard.lists.end() && found->second.newest != nullptr) {
      Block* block = found->second.newest;
      remove(&shard, &found->second, block);
      return block;
    }
  }
  return nullptr;
}

void Cache::put(Block* block, std::uint32_t home) {
  Shard& shard = shards_[home % shards_.size()];
  const std::lock_guard<std::mutex> guard(shard.lock);
  List& list = shard.lists[block->bytes];
  block->newer = nullptr;
  block->older = list.newest;
  (list.newest != nullptr ? list.newest->newer : list.oldest) = block;
  list.newest = block;
  shard.bytes.store(shard.bytes.load(std::memory_order_relaxed) + block->bytes, std::memory_order_relaxed);
}

Block* Cache::take_oldest() {
  Shard* from = nullptr;
  std::uint64_t when = UINT64_MAX;
  for (Shard& shard : shards_) {
    if (shard.bytes.load(std::memory_order_relaxed) == 0) {
      continue;
    }
    const std::lock_guard<std::mutex> guard(shard.lock);
    for (const auto& entry : shard.lists) {
      const Block* block = entry.second.oldest;
      if (block != nullptr && block->last_use.load(std::memory_order_relaxed) < when) {
        when = block->last_use.load(std::memory_order_relaxed);
        from = &shard;
      }
    }
  }
  if (from == nullptr) {
    return nullptr;
  }
  const std::lock_guard<std::mutex> guard(from->lock);
  for (auto entry = from->lists.begin(); entry != from->lists.end(); ++entry) {
    Block* block = entry->second.oldest;
    if (block != nullptr && block->last_use.load(std::memory_order_relaxed) <= when) {
      remove(from, &entry->second, block);
      if (entry->second.oldest == nullptr) {
        from->lists.erase(entry);  // sizes that no longer occur must not pile up
      }
      return block;
    }
  }
  return nullptr;
}

std::uint64_t Cache::bytes() const {
  std::uint64_t sum = 0;
  for (const Shard& shard : shards_) {
    sum += shard.bytes.load(std::memory_order_relaxed);
  }
  return sum;
}

void Cache::lock() {
  for (Shard& shard : shards_) {
    shard.lock.lock();
  }
}

void Cache::unlock() {
  for (Shard& shard : shards_) {
    shard.lock.unlock();
  }
}

void Cache::remove(Shard* shard, List* list, Block* block) {
  (block->older != nullptr ? block->older->newer : list->oldest) = block->newer;
  (block->newer != nullptr ? block->newer->older : list->newest) = block->older;
  shard->bytes.store(shard->bytes.load(std::memory_order_relaxed) - block->bytes, std::memory_order_relaxed);
}

}  // namespace lms

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
      add(&shard.takes, 1);
      return block;
    }
  }
  return nullptr;
}

// The list of the smallest size above that has a block. Drops empty lists on the way, so that sizes which no longer
// occur do not pile up.
std::map<std::uint64_t, Cache::List>::iterator Cache::above(Shard* shard, std::uint64_t bytes) {
  auto entry = shard->lists.upper_bound(bytes);
  while (entry != shard->lists.end() && entry->second.newest == nullptr) {
    entry = shard->lists.erase(entry);
  }
  return entry;
}

Block* Cache::take_larger(std::uint64_t bytes, std::uint64_t end) {
  while (true) {
    Shard* best = nullptr;
    std::uint64_t best_bytes = end;
    for (Shard& shard : shards_) {
      if (shard.bytes.load(std::memory_order_relaxed) <= bytes) {
        continue;
      }
      const std::lock_guard<std::mutex> guard(shard.lock);
      const auto entry = above(&shard, bytes);
      if (entry != shard.lists.end() && entry->first < best_bytes) {
        best = &shard;
        best_bytes = entry->first;
      }
    }
    if (best == nullptr) {
      return nullptr;
    }
    const std::lock_guard<std::mutex> guard(best->lock);
    const auto entry = above(best, bytes);
    if (entry != best->lists.end() && entry->first <= best_bytes) {
      Block* block = entry->second.newest;
      remove(best, &entry->second, block);
      return block;
    }
  }
}

void Cache::count_take() {
  const std::lock_guard<std::mutex> guard(shards_[0].lock);
  add(&shards_[0].takes, 1);
}

std::vector<Block*> Cache::take_all() {
  std::vector<Block*> blocks;
  for (Shard& shard : shards_) {
    const std::lock_guard<std::mutex> guard(shard.lock);
    for (auto& entry : shard.lists) {
      while (Block* block = entry.second.oldest) {
        remove(&shard, &entry.second, block);
        blocks.push_back(block);
      }
    }
    shard.lists.clear();
  }
  return blocks;
}

void Cache::put(Block* block, std::uint32_t home) {
  Shard& shard = shards_[home % shards_.size()];
  const std::lock_guard<std::mutex> guard(shard.lock);
  insert(&shard, block);
  add(&shard.puts, 1);
}

void Cache::put_back(Block* block) {
  Shard& shard = shards_[0];
  const std::lock_guard<std::mutex> guard(shard.lock);
  insert(&shard, block);
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

std::uint64_t Cache::bytes() const { return sum(&Shard::bytes); }

std::uint64_t Cache::takes() const { return sum(&Shard::takes); }

std::uint64_t Cache::puts() const { return sum(&Shard::puts); }

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

std::uint64_t Cache::sum(std::atomic<std::uint64_t> Shard::* counter) const {
  std::uint64_t total = 0;
  for (const Shard& shard : shards_) {
    total += (shard.*counter).load(std::memory_order_relaxed);
  }
  return total;
}

void Cache::insert(Shard* shard, Block* block) {
  List& list = shard->lists[block->bytes];
  block->newer = nullptr;
  block->older = list.newest;
  (list.newest != nullptr ? list.newest->newer : list.oldest) = block;
  list.newest = block;
  add(&shard->bytes, block->bytes);
}

void Cache::remove(Shard* shard, List* list, Block* block) {
  (block->older != nullptr ? block->older->newer : list->oldest) = block->newer;
  (block->newer != nullptr ? block->newer->older : list->newest) = block->older;
  add(&shard->bytes, -block->bytes);
}

}  // namespace lms

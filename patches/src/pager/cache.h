// Freed blocks that keep their pages, ready for the next request of the same size: mapping and unmapping at every
// allocation costs more than many operations do. Each thread frees to and takes from its own shard first, so that
// threads seldom wait for each other. Thread-safe.
#ifndef LMS_CACHE_H
#define LMS_CACHE_H

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "block.h"

namespace lms {

class Cache {
 public:
  // A cached block of exactly `bytes`, most recently freed first, or null. `home` picks the shard that is tried first.
  Block* take(std::uint64_t bytes, std::uint32_t home);

  // Without counting it: the smallest cached block of more than `bytes`, and less than `end`, or null.
  Block* take_larger(std::uint64_t bytes, std::uint64_t end);

  // Counts a take of a block that take() did not find.
  void count_take();

  // Keeps a freed block. Its last_use is when it was freed.
  void put(Block* block, std::uint32_t home);

  // Undoes the taking of what was not used; does not count.
  void put_back(Block* block);
  std::vector<Block*> take_all();

  // Takes the block out that was freed longest ago; null when there is none.
  Block* take_oldest();

  std::uint64_t bytes() const;

  // How often take() found a block, and how often put() got one, in all. Counted here because the shards' locks are
  // held anyway: a counter that all threads share costs more than the rest of a call.
  std::uint64_t takes() const;
  std::uint64_t puts() const;

  // Around a fork, so that the child finds the shards whole.
  void lock();
  void unlock();

 private:
  struct List {
    Block* oldest = nullptr;
    Block* newest = nullptr;
  };
  struct alignas(64) Shard {
    std::mutex lock;
    std::map<std::uint64_t, List> lists;  // by size in bytes
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> takes{0};
    std::atomic<std::uint64_t> puts{0};
  };

  // Adds to what only the holder of the shard's lock changes.
  static void add(std::atomic<std::uint64_t>* counter, std::uint64_t amount) {
    counter->store(counter->load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  std::uint64_t sum(std::atomic<std::uint64_t> Shard::* counter) const;
  static std::map<std::uint64_t, List>::iterator above(Shard* shard, std::uint64_t bytes);
  static void insert(Shard* shard, Block* block);
  static void remove(Shard* shard, List* list, Block* block);

  std::array<Shard, 8> shards_;
};

}  // namespace lms
#endif  // LMS_CACHE_H

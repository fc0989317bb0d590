// Freed blocks that keep their pages, ready for the next request of the same size: mapping and unmapping at every
// allocation costs more than many operations do. Each thread frees to and takes from its own shard first, so that
// threads seldom wait for each other. Thread-safe.
#ifndef LMS_CACHE_H
#define LMS_CACHE_H

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "block.h"

namespace lms {

class Cache {
 public:
  // A cached block of exactly `bytes`, most recently freed first, or null. `home` picks the shard that is tried first.
  Block* take(std::uint64_t bytes, std::uint32_t home);

  // Keeps a freed block. Its last_use is when it was freed.
  void put(Block* block, std::uint32_t home);

  // Takes the block out that was freed longest ago; null when there is none.
  Block* take_oldest();

  std::uint64_t bytes() const;

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
    std::unordered_map<std::uint64_t, List> lists;  // by size in bytes
    std::atomic<std::uint64_t> bytes{0};
  };

  static void remove(Shard* shard, List* list, Block* block);

  std::array<Shard, 8> shards_;
};

}  // namespace lms
#endif  // LMS_CACHE_H

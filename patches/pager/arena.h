// The address space of one backend: hands out ranges and finds the block that an address belongs to.
//
// Lookup is one table access, takes no lock and may run beside everything else. The other calls need the pager's lock.
// The table has an entry per granule of address space; it is reserved whole and gets memory only where it is used.
#ifndef LMS_ARENA_H
#define LMS_ARENA_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "block.h"
#include "ranges.h"

namespace lms {

class Arena {
 public:
  // Ranges start at multiples of this, in bytes: the largest page size in common use, so that the table stays small.
  // Only address space is rounded up to it, never memory.
  static constexpr std::uint64_t granule = 64 << 10;

  // Null when the system refuses memory for the table.
  static std::unique_ptr<Arena> make(char* base, std::uint64_t span);

  Arena(char* base, std::uint64_t span, std::atomic<Block*>* table);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // The block whose range contains `address`, in any state, or null.
  Block* find(const void* address) const {
    const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(base_);
    if (offset >= span_) {
      return nullptr;
    }
    Block* block = table_[offset / granule].load(std::memory_order_acquire);
    return block != nullptr && static_cast<const char*>(address) < block->address + block->bytes ? block : nullptr;
  }

  // Sets block->address to a free range of block->bytes and makes find() know it. False when there is none.
  bool place(Block* block);

  // Gives the range of a placed block back.
  void remove(const Block* block);

 private:
  void publish(const Block* block, Block* entry);

  char* base_;
  std::uint64_t span_;
  std::atomic<Block*>* table_;
  Ranges ranges_;
};

}  // namespace lms
#endif  // LMS_ARENA_H

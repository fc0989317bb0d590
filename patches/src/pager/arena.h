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
  // Ranges of less than large_block bytes start at multiples of granule: the largest page size in common use, so that
  // the table stays small. Larger ones start at multiples of large_block, so that huge pages fit. Only address space is
  // rounded up to these, never memory.
  static constexpr std::uint64_t granule = 64 << 10;
  static constexpr std::uint64_t large_block = 2 << 20;

  // Bytes of address space that a block of `bytes` takes.
  static constexpr std::uint64_t footprint(std::uint64_t bytes) {
    return bytes < large_block ? (bytes + granule - 1) / granule * granule
                               : (bytes + large_block - 1) / large_block * large_block;
  }

  // `base` is a multiple of large_block. Null when the system refuses memory for the table.
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

  // The largest block that could ever be placed, in bytes.
  std::uint64_t largest() const { return large_.total(); }

  // Sets block->address to a free range of block->bytes and makes find() know it. False when there is none.
  bool place(Block* block);

  // The last two keep small blocks small and large ones large, and find() must know of nobody who still looks for the
  // blocks.
  //
  // Makes `kept` bytes of a placed block, and gives `rest` what follows their footprint; with null, gives that back.
  void part(Block* block, std::uint64_t kept, Block* rest);

  // Gives a placed block the range of the next one, which begins where it ends.
  void join(Block* block, const Block* next);

  // Gives the range of a placed block back.
  void remove(const Block* block);

 private:
  void publish(const Block* block, Block* entry);
  Ranges* ranges_for(const Block* block, std::uint64_t* begin);

  char* base_;
  std::uint64_t span_;
  std::atomic<Block*>* table_;
  std::uint64_t large_begin_;  // offset from which on large blocks live; the others live before it
  Ranges small_;
  Ranges large_;
};

}  // namespace lms
#endif  // LMS_ARENA_H

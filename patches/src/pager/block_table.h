// The table of blocks: every block of a pager, by its id, at an address that stays. Also what of a block can leave.
//
// Thread-safety: can_leave() needs no lock, all else the lock of the pager.
#ifndef LMS_BLOCK_TABLE_H
#define LMS_BLOCK_TABLE_H

#include <cstddef>
#include <vector>

#include "block.h"
#include "policy/policy.h"

namespace lms {

class BlockTable {
 public:
  BlockTable() = default;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  BlockId end() const { return static_cast<BlockId>(count_); }  // ids are below this
  Block* at(BlockId id) const { return &chunks_[id / chunk_blocks][id % chunk_blocks]; }

  // An unused block without a range. Throws std::bad_alloc.
  Block* take();

  // Undoes take(); the block has no range any more.
  void put_back(Block* block);

  // The blocks that have pages, live or cached: a search for one that can leave takes time in proportion to these, not
  // to all there ever were.
  const std::vector<BlockId>& present() const { return present_; }
  void add_present(Block* block);
  void remove_present(const Block* block);

  // True for a resident block that is seen, not pinned, not held and, unless `even_protected`, not protected.
  static bool can_leave(const Block& block, bool even_protected);

  // What a policy may know of the block.
  BlockState state(BlockId id) const;

  // The least recently used of the blocks that can leave, those included that the calling thread's operation protects
  // but does not work on itself: results of the operations within it, each of which may leave and come back once. An
  // operation does not trade its own blocks against each other. `of_innermost`: also those that the innermost one got
  // from within it (thread.h). Null when there is none.
  Block* oldest_protected(bool of_innermost) const;

 private:
  static constexpr std::size_t chunk_blocks = 1024;

  std::vector<Block*> chunks_;  // each of chunk_blocks, never freed
  std::size_t count_ = 0;
  std::vector<Block*> free_;
  std::vector<BlockId> present_;
};

}  // namespace lms
#endif  // LMS_BLOCK_TABLE_H

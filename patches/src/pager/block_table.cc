#include "block_table.h"

#include <cstdint>
#include <cstdlib>
#include <new>

#include "thread.h"

namespace lms {

Block* BlockTable::take() {
  if (free_.empty()) {
    void* memory = nullptr;
    if (posix_memalign(&memory, alignof(Block), chunk_blocks * sizeof(Block)) != 0) {
      throw std::bad_alloc();
    }
    Block* chunk = static_cast<Block*>(memory);
    chunks_.push_back(chunk);
    free_.reserve(chunk_blocks);
    for (std::size_t index = chunk_blocks; index-- > 0;) {
      Block* block = new (chunk + index) Block;
      block->id = static_cast<BlockId>(count_ + index);
      free_.push_back(block);
    }
    count_ += chunk_blocks;
  }
  Block* block = free_.back();
  free_.pop_back();
  return block;
}

void BlockTable::put_back(Block* block) {
  block->address = nullptr;
  free_.push_back(block);
}

void BlockTable::add_present(Block* block) {
  block->position = present_.size();
  present_.push_back(block->id);
}

void BlockTable::remove_present(const Block* block) {
  present_[block->position] = present_.back();
  at(present_.back())->position = block->position;
  present_.pop_back();
}

bool BlockTable::can_leave(const Block& block, bool even_protected) {
  const std::uint64_t found = block.word.load(std::memory_order_acquire);
  return word::state(found) == State::resident && word::pins(found) == 0 && (found & word::held) == 0 &&
         block.seen.load(std::memory_order_acquire) && (even_protected || !Thread::is_protected(block));
}

BlockState BlockTable::state(BlockId id) const {
  const Block& block = *at(id);
  const std::uint64_t found = block.word.load(std::memory_order_acquire);
  return BlockState{block.bytes, block.last_use.load(std::memory_order_relaxed), can_leave(block, false),
                    word::state(found) == State::away, (found & word::clean) != 0};
}

Block* BlockTable::oldest_protected(bool of_innermost) const {
  const Thread& caller = Thread::current();
  Block* oldest = nullptr;
  std::uint64_t when = UINT64_MAX;
  for (const BlockId id : present_) {
    Block* block = at(id);
    if (block->last_use.load(std::memory_order_relaxed) < when && can_leave(*block, true) && !block->returned &&
        (!Thread::is_protected(*block) ||
         (caller.is_intermediate(*block) && (of_innermost || !caller.is_of_innermost(*block))))) {
      oldest = block;
      when = block->last_use.load(std::memory_order_relaxed);
    }
  }
  return oldest;
}

}  // namespace lms

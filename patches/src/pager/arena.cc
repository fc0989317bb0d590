#include "arena.h"

#include <sys/mman.h>

namespace lms {

std::unique_ptr<Arena> Arena::make(char* base, std::uint64_t span) {
  span -= span % (2 * large_block);
  void* table = mmap(nullptr, span / granule * sizeof(std::atomic<Block*>), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED) {
    return nullptr;
  }
  return std::make_unique<Arena>(base, span, static_cast<std::atomic<Block*>*>(table));
}

Arena::Arena(char* base, std::uint64_t span, std::atomic<Block*>* table)
    : base_(base), span_(span), table_(table), large_begin_(span / 2), small_(span / 2), large_(span / 2) {}

Arena::~Arena() { munmap(table_, span_ / granule * sizeof(std::atomic<Block*>)); }

Ranges* Arena::ranges_for(const Block* block, std::uint64_t* begin) {
  *begin = block->bytes < large_block ? 0 : large_begin_;
  return block->bytes < large_block ? &small_ : &large_;
}

bool Arena::place(Block* block) {
  std::uint64_t begin = 0;
  const std::uint64_t offset = ranges_for(block, &begin)->take(footprint(block->bytes));
  if (offset == Ranges::none) {
    return false;
  }
  block->address = base_ + begin + offset;
  publish(block, block);
  return true;
}

void Arena::part(Block* block, std::uint64_t kept, Block* rest) {
  const std::uint64_t whole = block->bytes;
  const std::uint64_t first = footprint(kept);
  publish(block, nullptr);
  block->bytes = kept;
  publish(block, block);
  if (rest != nullptr) {
    rest->address = block->address + first;
    rest->bytes = whole - first;
    publish(rest, rest);
  } else if (first < footprint(whole)) {
    std::uint64_t begin = 0;
    Ranges* ranges = ranges_for(block, &begin);
    ranges->give(static_cast<std::uint64_t>(block->address - base_) - begin + first, footprint(whole) - first);
  }
}

void Arena::join(Block* block, const Block* next) {
  publish(next, block);
  block->bytes += next->bytes;
}

void Arena::remove(const Block* block) {
  publish(block, nullptr);
  std::uint64_t begin = 0;
  Ranges* ranges = ranges_for(block, &begin);
  ranges->give(static_cast<std::uint64_t>(block->address - base_) - begin, footprint(block->bytes));
}

void Arena::publish(const Block* block, Block* entry) {
  const std::uint64_t first = static_cast<std::uint64_t>(block->address - base_) / granule;
  for (std::uint64_t index = 0; index < footprint(block->bytes) / granule; ++index) {
    table_[first + index].store(entry, std::memory_order_release);
  }
}

}  // namespace lms

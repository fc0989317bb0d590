#include "arena.h"

#include <sys/mman.h>

namespace lms {

namespace {

std::uint64_t arena_granules(std::uint64_t bytes) { return (bytes + Arena::granule - 1) / Arena::granule; }

}  // namespace

std::unique_ptr<Arena> Arena::make(char* base, std::uint64_t span) {
  span -= span % granule;
  void* table = mmap(nullptr, arena_granules(span) * sizeof(std::atomic<Block*>), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED) {
    return nullptr;
  }
  return std::make_unique<Arena>(base, span, static_cast<std::atomic<Block*>*>(table));
}

Arena::Arena(char* base, std::uint64_t span, std::atomic<Block*>* table)
    : base_(base), span_(span), table_(table), ranges_(span) {}

Arena::~Arena() { munmap(table_, arena_granules(span_) * sizeof(std::atomic<Block*>)); }

bool Arena::place(Block* block) {
  const std::uint64_t offset = ranges_.take(arena_granules(block->bytes) * granule);
  if (offset == Ranges::none) {
    return false;
  }
  block->address = base_ + offset;
  publish(block, block);
  return true;
}

void Arena::remove(const Block* block) {
  publish(block, nullptr);
  ranges_.give(static_cast<std::uint64_t>(block->address - base_), arena_granules(block->bytes) * granule);
}

void Arena::publish(const Block* block, Block* entry) {
  const std::uint64_t first = static_cast<std::uint64_t>(block->address - base_) / granule;
  for (std::uint64_t index = 0; index < arena_granules(block->bytes); ++index) {
    table_[first + index].store(entry, std::memory_order_release);
  }
}

}  // namespace lms

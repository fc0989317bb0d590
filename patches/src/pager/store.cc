#include "store.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <numeric>

namespace lms {

namespace {

// Segments start at this size and grow with the store, so that even a store of a terabyte is a few dozen of them.
constexpr std::uint64_t store_first_segment = 64ULL << 20;
constexpr std::uint64_t store_growth = 4;  // a new segment is at least a quarter of what there is

class MemorySegment final : public Segment {
 public:
  MemorySegment(char* base, std::uint64_t bytes) : Segment(bytes), base_(base) {}
  ~MemorySegment() override { munmap(base_, ranges.total()); }

  bool write(std::uint64_t offset, const char* from, std::size_t bytes) override {
    std::memcpy(base_ + offset, from, bytes);
    return true;
  }

  bool read(std::uint64_t offset, char* to, std::size_t bytes) override {
    std::memcpy(to, base_ + offset, bytes);
    return true;
  }

  char* at(std::uint64_t offset) override { return base_ + offset; }

 private:
  char* base_;
};

class MemoryStore final : public Store {
 public:
  MemoryStore() : Store(1) {}

 protected:
  std::unique_ptr<Segment> grow(std::size_t /*place*/, std::uint64_t bytes) override {
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      return nullptr;
    }
    madvise(base, bytes, MADV_HUGEPAGE);  // advice: fewer faults while it fills
    return std::make_unique<MemorySegment>(static_cast<char*>(base), bytes);
  }

  bool shared_by_fork() const override { return false; }  // private memory: each process has its own after a write
};

std::string store_in_memory(const char* action, int error_number) {
  return std::string("the host store in memory cannot be ") + action + ": " + std::strerror(error_number);
}

}  // namespace

bool Segment::write_together(std::uint64_t offset, const iovec* parts, std::size_t count) {
  for (const iovec* part = parts; part < parts + count; ++part) {
    if (!write(offset, static_cast<const char*>(part->iov_base), part->iov_len)) {
      return false;
    }
    offset += part->iov_len;
  }
  return true;
}

std::string Store::failure(const char* action, const Slot& /*slot*/, std::uint64_t /*bytes*/, int error_number) const {
  return store_in_memory(action, error_number);
}

std::string Store::full(int error_number) const { return store_in_memory("enlarged", error_number); }

bool Store::allocate(std::uint64_t bytes, Slot* slot) {
  try {
    return take_slot(bytes, slot);
  } catch (const std::bad_alloc&) {
    error_ = full(ENOMEM);
    return false;
  }
}

bool Store::take_slot(std::uint64_t bytes, Slot* slot) {
  int error_number = 0;
  for (const std::size_t place : order()) {
    if (take_slot(place, bytes, slot)) {
      return true;
    }
    // When the system refuses a large segment, a smaller one may still do.
    std::uint64_t size = next_growth(bytes).bytes;
    std::unique_ptr<Segment> segment = grow(place, size);
    while (segment == nullptr && size > bytes) {
      size = std::max(bytes, size / 2);
      segment = grow(place, size);
    }
    if (segment != nullptr) {
      add_segment(std::move(segment), place);
      return take_slot(place, bytes, slot);
    }
    error_number = errno;
    refused(place, error_number);
  }
  error_ = full(error_number);
  return false;
}

bool Store::take_slot(std::size_t place, std::uint64_t bytes, Slot* slot) {
  for (const auto& segment : segments_) {
    if (segment->frozen || segment->place != place) {
      continue;
    }
    const std::uint64_t offset = segment->ranges.take(bytes);
    if (offset != Ranges::none) {
      *slot = Slot{this, segment.get(), offset};
      segment->used = true;
      used_[place] += bytes;
      return true;
    }
  }
  return false;
}

bool Store::has_room(std::uint64_t bytes) const {
  const std::size_t place = order().front();
  return std::any_of(segments_.begin(), segments_.end(), [=](const std::unique_ptr<Segment>& segment) {
    return !segment->frozen && segment->place == place && segment->ranges.has(bytes);
  });
}

Growth Store::next_growth(std::uint64_t bytes) const {
  const std::uint64_t size = std::min(largest_segment(), std::max(store_first_segment, writable_ / store_growth));
  return Growth{order().front(), std::max(bytes, size)};
}

void Store::add_segment(std::unique_ptr<Segment> segment, std::size_t place) {
  segment->place = place;
  writable_ += segment->ranges.total();
  segments_.push_back(std::move(segment));
}

std::uint64_t Store::used_bytes() const { return std::accumulate(used_.begin(), used_.end(), std::uint64_t{0}); }

void Store::release(const Slot& slot, std::uint64_t bytes) {
  slot.segment->ranges.give(slot.offset, bytes);
  used_[slot.segment->place] -= bytes;
  if (!slot.segment->ranges.all_free()) {
    return;
  }
  // One empty segment is kept: a store whose size swings around a boundary must not make a file at every swing.
  const auto is_spare = [&](const std::unique_ptr<Segment>& segment) {
    return segment.get() != slot.segment && !segment->frozen && segment->place == slot.segment->place &&
           segment->ranges.all_free();
  };
  if (!slot.segment->frozen) {
    if (slot.segment->is_kept() || std::none_of(segments_.begin(), segments_.end(), is_spare)) {
      return;
    }
    writable_ -= slot.segment->ranges.total();
  }
  segments_.erase(std::find_if(segments_.begin(), segments_.end(),
                               [&](const std::unique_ptr<Segment>& segment) { return segment.get() == slot.segment; }));
}

template <typename Gone>
std::vector<std::unique_ptr<Segment>> Store::take_segments(Gone gone) {
  const auto first = std::stable_partition(segments_.begin(), segments_.end(),
                                           [&](const std::unique_ptr<Segment>& segment) { return !gone(*segment); });
  std::vector<std::unique_ptr<Segment>> taken(std::make_move_iterator(first), std::make_move_iterator(segments_.end()));
  segments_.erase(first, segments_.end());
  for (const std::unique_ptr<Segment>& segment : taken) {
    writable_ -= segment->frozen ? 0 : segment->ranges.total();
  }
  return taken;
}

std::vector<std::unique_ptr<Segment>> Store::take_empty() {
  return take_segments([](const Segment& segment) { return segment.ranges.all_free(); });
}

std::vector<std::unique_ptr<Segment>> Store::take_unused() {
  auto taken = take_segments([](const Segment& segment) { return segment.ranges.all_free() && !segment.used; });
  for (const std::unique_ptr<Segment>& segment : segments_) {
    segment->used = !segment->ranges.all_free();
  }
  return taken;
}

void Store::freeze() {
  if (!shared_by_fork()) {
    return;
  }
  for (const auto& segment : segments_) {
    segment->frozen = true;
  }
  writable_ = 0;
  take_empty();  // and drops them
}

std::unique_ptr<Store> make_memory_store() { return std::make_unique<MemoryStore>(); }

}  // namespace lms

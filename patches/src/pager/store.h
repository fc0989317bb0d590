// The host store: where the contents of blocks live while they are away. Slots are cut from a few large segments, each
// a slab of memory or an unlinked file, since creating one per block would cost more than the copy.
//
// Thread-safety: allocate, release, freeze and the counters need the pager's lock; read and write of a slot need none.
#ifndef LMS_STORE_H
#define LMS_STORE_H

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ranges.h"

namespace lms {

class Segment {
 public:
  explicit Segment(std::uint64_t bytes) : ranges(bytes) {}
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  virtual ~Segment() = default;

  // Moves whole slots. False when the system fails (errno says why); a failed read leaves `to` undefined.
  virtual bool write(std::uint64_t offset, const char* from, std::size_t bytes) = 0;
  virtual bool read(std::uint64_t offset, char* to, std::size_t bytes) = 0;

  // Writes slots that lie side by side, the first at `offset`: a part for each. False as above, for all of them.
  virtual bool write_together(std::uint64_t offset, const iovec* parts, std::size_t count);

  // Where the contents lie, for a backend that copies by itself; null when they are not in memory.
  virtual char* at(std::uint64_t /*offset*/) { return nullptr; }

  // To make one takes so long that it is kept without slots, for those to come, until somebody takes it.
  virtual bool is_kept() const { return false; }

  Ranges ranges;
  std::size_t place = 0;  // of the store's
  std::atomic<int> failed_write{0};  // errno of the last write that failed; 0 if none has
  bool used = true;  // since the last Store::take_unused()
  bool frozen = false;  // shared with another process since a fork: what it holds stays, nothing new is written
};

class Store;

// Room for one block. Empty: store is null.
struct Slot {
  Store* store = nullptr;
  Segment* segment = nullptr;
  std::uint64_t offset = 0;
};

// Where a new segment is to be made, and how large.
struct Growth {
  std::size_t place;
  std::uint64_t bytes;
};

class Store {
 public:
  // `places`: how many there are in which segments may lie; each is tried before the store refuses.
  explicit Store(std::size_t places) : used_(places, 0) {}
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  // Finds room for `bytes`, growing the store when needed. False when it cannot grow; error() says why.
  bool allocate(std::uint64_t bytes, Slot* slot);

  // The same in steps, for a store that takes long to grow: whether there is room in the place where it is wanted, what
  // would make some, a segment, or null, and the store with it. make_segment() may run beside other calls.
  bool has_room(std::uint64_t bytes) const;
  Growth next_growth(std::uint64_t bytes) const;
  std::unique_ptr<Segment> make_segment(const Growth& growth) { return grow(growth.place, growth.bytes); }
  void add_segment(std::unique_ptr<Segment> segment, std::size_t place);

  // Gives the room of a slot back; segments without slots go back to the system, but for one in each place and those
  // that are kept.
  void release(const Slot& slot, std::uint64_t bytes);

  // All segments without slots, and those that have had none since the last take_unused(). To destroy one takes long
  // too, so the caller lets go of the lock before that.
  std::vector<std::unique_ptr<Segment>> take_empty();
  std::vector<std::unique_ptr<Segment>> take_unused();

  // Called in parent and child after a fork: from now on each writes only to segments of its own.
  void freeze();

  std::size_t places() const { return used_.size(); }
  std::uint64_t used_bytes() const;
  const std::string& error() const { return error_; }

  // A write to the slot has failed with `error_number`. True when there is a place where none has.
  virtual bool write_failed(const Slot& /*slot*/, int /*error_number*/) { return false; }

  // One sentence for a read or write of a slot of `bytes` that failed with `error_number`. Here and in full(): that of
  // a store in memory.
  virtual std::string failure(const char* action, const Slot& slot, std::uint64_t bytes, int error_number) const;

  // Seconds that it takes to write or read a byte, about; 0 where that is no matter. Thread-safe.
  virtual double write_cost() const { return 0; }
  virtual double read_cost() const { return 0; }

  // How many slots should be moved at a time in each direction.
  virtual unsigned concurrency() const { return 1; }

  // Bytes of slots that should be written together where there are several small ones; 0 where nothing is gained.
  virtual std::uint64_t gathers() const { return 0; }

 protected:
  // A new segment of `bytes` there, or null with errno set.
  virtual std::unique_ptr<Segment> grow(std::size_t place, std::uint64_t bytes) = 0;

  // grow() has refused there, and an error number says why.
  virtual void refused(std::size_t /*place*/, int /*error_number*/) {}

  // One sentence for a store that cannot grow.
  virtual std::string full(int error_number) const;

  // All places, the one to take first.
  virtual std::vector<std::size_t> order() const { return {0}; }

  // A segment is no larger, unless a block is.
  virtual std::uint64_t largest_segment() const { return UINT64_MAX; }

  // Whether a segment's contents stay shared between parent and child after a fork.
  virtual bool shared_by_fork() const = 0;

  std::uint64_t used_bytes(std::size_t place) const { return used_[place]; }

 private:
  bool take_slot(std::uint64_t bytes, Slot* slot);
  bool take_slot(std::size_t place, std::uint64_t bytes, Slot* slot);
  template <typename Gone>
  std::vector<std::unique_ptr<Segment>> take_segments(Gone gone);

  std::vector<std::unique_ptr<Segment>> segments_;
  std::uint64_t writable_ = 0;  // bytes of the segments that are not frozen
  std::vector<std::uint64_t> used_;  // bytes, by place
  std::string error_;
};

// Keeps slots in host memory.
std::unique_ptr<Store> make_memory_store();

}  // namespace lms
#endif  // LMS_STORE_H

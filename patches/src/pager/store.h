// The host store: where the contents of blocks live while they are away. Slots are cut from a few large segments, each
// a slab of memory or an unlinked file, since creating one per block would cost more than the copy.
//
// Thread-safety: allocate, release, freeze and the counters need the pager's lock; read and write of a slot need none.
#ifndef LMS_STORE_H
#define LMS_STORE_H

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

  // Where the contents lie, for a backend that copies by itself; null when they are not in memory.
  virtual char* at(std::uint64_t /*offset*/) { return nullptr; }

  Ranges ranges;
  bool frozen = false;  // shared with another process since a fork: what it holds stays, nothing new is written
};

class Store;

// Room for one block. Empty: store is null.
struct Slot {
  Store* store = nullptr;
  Segment* segment = nullptr;
  std::uint64_t offset = 0;
};

class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  // Finds room for `bytes`, growing the store when needed. False when it cannot grow; error() says why.
  bool allocate(std::uint64_t bytes, Slot* slot);

  // The same in steps, for a store that takes long to grow: whether there is room, how large the segment is that
  // would make some, that segment, or null, and the store with it. make_segment() may run beside other calls.
  bool has_room(std::uint64_t bytes) const;
  std::uint64_t next_segment_bytes(std::uint64_t bytes) const;
  std::unique_ptr<Segment> make_segment(std::uint64_t bytes) { return grow(bytes); }
  void add_segment(std::unique_ptr<Segment> segment);

  // Gives the room of a slot back; segments without slots go back to the
  // system, but for one.
  void release(const Slot& slot, std::uint64_t bytes);

  // Called in parent and child after a fork: from now on each writes only to segments of its own.
  void freeze();

  std::uint64_t used_bytes() const { return used_; }
  const std::string& error() const { return error_; }

  // One sentence for a read or write that failed with `error_number`.
  virtual std::string failure(const char* action, int error_number) const = 0;

 protected:
  // A new segment of `bytes`, or null with errno set.
  virtual std::unique_ptr<Segment> grow(std::uint64_t bytes) = 0;

  // A segment is no larger, unless a block is.
  virtual std::uint64_t largest_segment() const { return UINT64_MAX; }

  // Whether a segment's contents stay shared between parent and child after a fork.
  virtual bool shared_by_fork() const = 0;

 private:
  bool take_slot(std::uint64_t bytes, Slot* slot);

  std::vector<std::unique_ptr<Segment>> segments_;
  std::uint64_t writable_ = 0;  // bytes of the segments that are not frozen
  std::uint64_t used_ = 0;
  std::string error_;
};

// Keeps slots in host memory.
std::unique_ptr<Store> make_memory_store();

// Keeps slots in unlinked files in `directory`: nothing stays behind, however the process ends. Null when no file can
// be created there; *error then says why.
std::unique_ptr<Store> make_file_store(const std::string& directory, std::string* error);

}  // namespace lms
#endif  // LMS_STORE_H

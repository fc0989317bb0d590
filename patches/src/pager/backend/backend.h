// A backend owns device memory: it gives pages to address ranges, takes them away, and moves their contents.
//
// The pager decides what moves and when; a backend only knows how. Backends: host_backend.h (a budget of this machine's
// RAM), cuda_backend.h (a CUDA device). A range is an address that an Arena gave out and bytes, a multiple of
// page_bytes(), inside [base(), base() + span()); the rest of its Arena::footprint is the backend's to use.
//
// Order. A device works through streams, behind the host's back, so a backend speaks of uses: the work on some streams
// up to a moment. Moments are stamps of a clock that the backend keeps: now(), read after work was enqueued, is
// a stamp that covers it. A backend whose device is the host itself has no streams, and every use is over at once.
//
// Thread-safety: calls for different ranges may run at the same time; the pager never has two under way for one range.
#ifndef LMS_BACKEND_H
#define LMS_BACKEND_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../store.h"

namespace lms {

enum class Access : std::uint8_t { read_only, read_write };

// A stream by its number in the backend's table.
using StreamId = std::uint32_t;
constexpr StreamId host_stream = 0;  // the host: what is done for it is done when the call returns
constexpr StreamId any_stream = 63;  // it is not known which: over when the whole device is idle
constexpr StreamId no_stream = UINT32_MAX;  // no stream needs it yet

// Work on the streams whose bits are set (bit i: stream i), enqueued no later than the stamp `until`.
struct Uses {
  std::uint64_t streams = 0;
  std::uint64_t until = 0;
};

inline constexpr std::uint64_t stream_bit(StreamId stream) {
  return stream == host_stream || stream == no_stream ? 0 : std::uint64_t{1} << stream;
}

// Whether the host waits where the stream would have to: it is the host, or it is not known which stream it is.
inline constexpr bool waits_on_host(StreamId user) { return user == host_stream || user >= any_stream; }

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  virtual std::string device() const { return "cpu"; }  // what people call it
  virtual std::size_t page_bytes() const = 0;
  virtual char* base() const = 0;  // a multiple of Arena::large_block
  virtual std::size_t span() const = 0;  // bytes of address space
  virtual std::uint64_t capacity() const { return UINT64_MAX; }  // bytes of memory that the device has at all

  // The same device has the same in every process of the machine, and no other: a file may be called so.
  virtual std::string identity() const { return "cpu"; }
  // Bytes of the device's memory that nobody uses; UINT64_MAX where that is no measure of what may be used.
  virtual std::uint64_t free_bytes() { return UINT64_MAX; }

  // True when an access to a range without pages faults and can be served, so that a block which the
  // program may still reach through a raw pointer can leave without danger.
  virtual bool serves_faults() const = 0;

  // True when contents move behind the host's back: then the pager calls page_out, else protect, copy_out and unmap.
  virtual bool asynchronous() const { return false; }

  // Whether pages can be read-only, for which protect is called. If not, no block keeps its host copy when it comes
  // back.
  virtual bool protects() const { return true; }

  // True when the system is about to run out of what it needs to keep ranges apart; fewer resident ranges then help.
  // Called once per copy_in, before it.
  virtual bool crowded() = 0;

  // What the backend's last failure on this thread was, as the rest of a sentence; the machine's errno says it for a
  // backend that sets it.
  virtual std::string failure() const = 0;

  // Whether that was for lack of memory. If not, to make room does not help.
  virtual bool lacked_memory() const { return true; }

  // ---- order

  // The clock of stamps. Takes no lock.
  std::uint64_t now() const { return clock_.load(std::memory_order_acquire); }

  // The number of the stream that the framework calls `handle` (a cudaStream_t), which exists now. Streams beyond the
  // 62nd are any_stream. `lasting`: it is never destroyed; what was said first of a handle counts. Of a stream that may
  // be destroyed this is asked whenever it is to be used: another one may have the handle by then, and is any_stream
  // until the device has been idle.
  virtual StreamId stream(std::uintptr_t /*handle*/, bool /*lasting*/) { return host_stream; }

  // Whether the stream is never destroyed. One that may be has to be marked while it is known to exist, which it is
  // where work is enqueued on it: it is touched there, in stream(), and as the `user` of the calls below, and never
  // else.
  virtual bool lasting(StreamId /*stream*/) const { return true; }

  // Makes it cheap to tell later whether the work that is on the stream now is over. Never fails: without a mark the
  // answer is only less exact.
  virtual void mark(StreamId /*stream*/) {}

  // Makes the stream's later work wait for the uses, but for its own, which come first on it anyway; the host itself
  // waits when `user` is host_stream. False when the device fails.
  virtual bool order(const Uses& /*uses*/, StreamId /*user*/) { return true; }

  // Whether the uses are known to be over. When the device has failed the answer means nothing.
  virtual bool over(const Uses& /*uses*/) { return true; }

  // ---- pages

  // Gives the range fresh pages, writable by what `user` does from now on. False when the system refuses.
  virtual bool map(char* address, std::size_t bytes, StreamId user) = 0;

  // Takes the pages away once the uses are over; their contents are lost. False as above; the range is then unchanged.
  // Here and in page_out the uses begin with what the range's pages were waited for: the user of map, the copy of
  // copy_in.
  virtual bool unmap(char* address, std::size_t bytes, const Uses& uses) = 0;

  // As unmap, where a range of the same size is likely to want pages soon: the backend may keep these for it.
  virtual bool unmap_for_reuse(char* address, std::size_t bytes, const Uses& uses) {
    return unmap(address, bytes, uses);
  }

  // Whether pages that the backend keeps are meant for the range from now on, which map or copy_in is called for next:
  // so it takes no others.
  virtual bool set_aside(const char* /*address*/, std::size_t /*bytes*/) { return false; }

  // The least bytes, of `bytes` or more, after which a range can be parted; `whole`, all of it, when there are none.
  virtual std::size_t parting(char* /*address*/, std::size_t /*whole*/, std::size_t bytes) { return bytes; }

  // Makes two of a range that nothing uses: its first `kept` bytes, after which it can be parted, and those from `rest`
  // on. The pages between them go; `rest` may be the range's end. False when the system refuses; the range is then as
  // it was.
  virtual bool part(char* address, std::size_t whole, std::size_t kept, std::size_t rest) = 0;

  // Makes one range of two that touch and that nothing uses. False when they are not alike.
  virtual bool join(char* /*address*/, std::size_t /*bytes*/, std::size_t /*more*/) { return true; }

  // True when an unmapped range may be mapped again without waiting for its former uses.
  virtual bool settled(char* /*address*/, std::size_t /*bytes*/) { return true; }

  // Changes what the program may do with a range that has pages.
  virtual bool protect(char* /*address*/, std::size_t /*bytes*/, Access /*access*/) { return true; }

  // ---- contents

  // Copies ranges that have pages (and are read-only meanwhile) into slots that lie side by side, of which `first` is
  // the first. False on a failure of the store.
  virtual bool copy_out(const iovec* /*ranges*/, std::size_t /*count*/, const Slot& /*first*/) { return false; }

  // Takes the pages away after the uses, and copies their contents into the slot. When it returns the range cannot be
  // written, nor read before the slot holds the contents, and the copy may go on: *copy is what it is over with. False
  // when the device or the store fails; the range and its contents are then unchanged.
  virtual bool page_out(char* /*address*/, std::size_t /*bytes*/, const Slot& /*slot*/, const Uses& /*uses*/,
                        Uses* /*copy*/) {
    return false;
  }

  // The contents of a range that was paged out are not needed any more: called before its slot is released.
  virtual void forget(char* /*address*/) {}

  // Gives the range pages for the slot's contents, which are complete after the uses `saved`. The contents are there
  // after *copy: whoever uses the range is ordered behind it first. A thread that needs no order sees no part of them
  // before all are there. False when the system refuses pages (then *refused is true) or the store cannot be read.
  virtual bool copy_in(char* address, std::size_t bytes, const Slot& slot, Access access, const Uses& saved, Uses* copy,
                       bool* refused) = 0;

  // ---- the rest

  // Gives memory that the backend keeps for later ranges back to the device, at least `bytes` of it if there is as
  // much. Returns how many bytes that were.
  virtual std::uint64_t trim(std::uint64_t /*bytes*/) { return 0; }

  // Bytes that the backend keeps so.
  virtual std::uint64_t kept_bytes() { return 0; }

  // A store in the kind of host memory that the backend copies fastest.
  virtual std::unique_ptr<Store> make_memory_store() { return lms::make_memory_store(); }

  // Lets another device (by its number) access the ranges, now and later. False when it cannot.
  virtual bool add_peer(int /*device*/) { return false; }

  // Of a forked child: how many of these pages, each by its address, another process has, too. All, if that cannot be
  // told.
  virtual std::size_t count_in_common(const std::vector<const char*>& pages) { return pages.size(); }

  // In a forked child the device is the parent's: from then on every call but free's fails.
  virtual void after_fork_in_child() {}

 protected:
  std::atomic<std::uint64_t> clock_{1};
};

}  // namespace lms
#endif  // LMS_BACKEND_H

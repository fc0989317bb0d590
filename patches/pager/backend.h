// A backend owns device memory: it gives pages to address ranges, takes them away, and moves their contents.
//
// The pager decides what moves and when; a backend only knows how. Backends: host_backend.h (a budget of this machine's
// RAM). A range is an address that an Arena gave out and bytes, a multiple of page_bytes(), inside
// [base(), base() + span()); the rest of its Arena::footprint is the backend's to use.
// Thread-safety: calls for different ranges may run at the same time; the pager never has two under way for one range.
#ifndef LMS_BACKEND_H
#define LMS_BACKEND_H

#include <cstddef>
#include <cstdint>

#include "store.h"

namespace lms {

enum class Access : std::uint8_t { read_only, read_write };

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  virtual std::size_t page_bytes() const = 0;
  virtual char* base() const = 0;  // a multiple of Arena::large_block
  virtual std::size_t span() const = 0;  // bytes of address space

  // True when an access to a range without pages faults and can be served, so that a block which somebody may still
  // reach through a raw pointer can leave without danger.
  virtual bool serves_faults() const = 0;

  // True when the system is about to run out of what it needs to keep ranges apart; fewer resident ranges then help.
  // Called once per copy_in, before it.
  virtual bool crowded() = 0;

  // Gives the range fresh pages, writable. False when the system refuses; errno says why.
  virtual bool map(char* address, std::size_t bytes) = 0;

  // Takes the pages away; their contents are lost and the range is no longer accessible. False as above; the range is
  // then unchanged.
  virtual bool unmap(char* address, std::size_t bytes) = 0;

  // Changes what the program may do with a range that has pages.
  virtual bool protect(char* address, std::size_t bytes, Access access) = 0;

  // Copies a range that has pages (and is read-only meanwhile) into the slot. False on a failure of the store.
  virtual bool copy_out(const char* address, std::size_t bytes, const Slot& slot) = 0;

  // Gives the range pages that hold the slot's contents. No other thread sees the range before all of it is there.
  // False with errno ENOMEM when the system refuses pages, with another errno when the store cannot be read.
  virtual bool copy_in(char* address, std::size_t bytes, const Slot& slot, Access access) = 0;
};

}  // namespace lms
#endif  // LMS_BACKEND_H

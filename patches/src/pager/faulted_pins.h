// Pins on blocks that were faulted in. Nothing announced these accesses, so nothing says when they end. Needs the
// pager's lock.
//
// An access during an operation may be repeated until that ends, for a kernel is a loop over its blocks: the block
// stays until then, whatever the limit, or a loop over more blocks than the limit has room for would bring one in at
// every step. An access outside of operations is a program's own, which may go through any amount of data: its block
// stays for a while. When it comes back soon after it left the program loops over it, and it stays for longer.
//
// Times are readings of the pager's clock, which ticks about once an operation, and at each fault.
#ifndef LMS_FAULTED_PINS_H
#define LMS_FAULTED_PINS_H

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "pin.h"
#include "thread.h"

namespace lms {

class FaultedPins {
 public:
  // Pins the block for an access of the calling thread.
  void hold(Block* block, std::uint64_t now);

  // Releases pins of operations that have ended, and those of other accesses that are so old that they no longer count
  // as in use. False when there is none.
  bool release_ended(std::uint64_t now);

  // Releases the oldest pin, of those outside of operations, that its thread has moved on from. False when there is
  // none.
  bool release_idle();

  // Releases all that no running operation has: an access that is not through yet faults once more. False when there is
  // none.
  bool release_others();

 private:
  struct Entry {
    Pin pin;
    const Thread* thread;
    std::uint64_t when;
    bool looping;  // it came back soon
    std::vector<Scope> scopes;  // the operations that it may be for; none: it is the program's own
  };

  template <typename Condition>
  bool release_if(const Condition& condition);
  bool came_back_soon(const Pin& pin, const Thread* thread) const;

  std::deque<Entry> entries_;  // oldest first
  std::deque<Entry> recent_;   // the program's own accesses of late, whether their pins were released or not
};

}  // namespace lms
#endif  // LMS_FAULTED_PINS_H

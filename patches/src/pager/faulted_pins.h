// Pins on blocks that were faulted in. Nothing announced these accesses, so nothing says when they end; a block stays
// for a while, so that the access can be completed. Needs the pager's lock.
//
// Times are readings of the pager's clock, which ticks about once an operation.
#ifndef LMS_FAULTED_PINS_H
#define LMS_FAULTED_PINS_H

#include <cstddef>
#include <cstdint>
#include <deque>

#include "pin.h"
#include "thread.h"

namespace lms {

class FaultedPins {
 public:
  // Operations after which a block that was faulted in no longer counts as in use.
  static constexpr std::uint64_t lifetime = 256;

  // Pins the block for an access of the calling thread.
  void hold(Block* block, std::uint64_t now);

  // Releases the pins that are at least `age` old: an access that is not through yet faults once more. False when there
  // is none.
  bool release_older(std::uint64_t age, std::uint64_t now);

  // Releases the oldest pin that its thread has moved on from. False when there is none.
  bool release_idle();

 private:
  struct Entry {
    Pin pin;
    const Thread* thread;
    std::uint64_t when;
  };
  void release_front();

  std::deque<Entry> entries_;  // oldest first
};

}  // namespace lms
#endif  // LMS_FAULTED_PINS_H

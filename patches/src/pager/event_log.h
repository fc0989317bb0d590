// Uses of blocks on their way to the policy: threads append without taking the pager's lock, and the thread that
// holds it drains. Thread-safe; the order of appends is kept.
#ifndef LMS_EVENT_LOG_H
#define LMS_EVENT_LOG_H

#include <atomic>
#include <cstddef>
#include <vector>

#include "event.h"

namespace lms {

class EventLog {
 public:
  // Appends, and returns how many events wait now.
  std::size_t append(const Event& event) {
    lock();
    events_.push_back(event);
    const std::size_t waiting = events_.size();
    unlock();
    return waiting;
  }

  // Moves what waits into *events, which must be empty.
  void drain(std::vector<Event>* events) {
    lock();
    events_.swap(*events);
    unlock();
  }

  // A spin lock: it is held for a few instructions. Public for the fork handlers.
  void lock() {
    while (busy_.test_and_set(std::memory_order_acquire)) {
    }
  }
  void unlock() { busy_.clear(std::memory_order_release); }

 private:
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::vector<Event> events_;
};

}  // namespace lms
#endif  // LMS_EVENT_LOG_H

// The pins of the operations that run on a thread.
#ifndef ATEN_LMS_OPERATION_PINS_H
#define ATEN_LMS_OPERATION_PINS_H

#include <ATen/lms/pager.h>

#include <cstdint>
#include <vector>

namespace lms_torch {

// A pin of an operation that is running on this thread.
struct Held {
  lms::Pin pin;
  uint32_t device = 0;  // its position among the known ones (LmsDevices.h)
  lms::StreamId stream = lms::host_stream;
  bool scope = false;
};

// Those of all operations of the calling thread, innermost last. An empty pin begins each operation's; its `device` is
// the number of devices that were known then, 0 for what is not observed, its pin's generation the address of the
// operation, and `scope` says that what it allocates is protected until it ends. To reach a thread's own costs
// something: keep the reference.
inline std::vector<Held>& operation_pins() {
  thread_local std::vector<Held> pins;
  return pins;
}

}  // namespace lms_torch
#endif  // ATEN_LMS_OPERATION_PINS_H

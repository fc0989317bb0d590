// The observer: keeps the tensors that an operation uses resident for as long as it runs, whatever device they are on.
// What the glue of each kind of device needs of it. All functions are thread-safe.
#ifndef ATEN_LMS_OBSERVER_H
#define ATEN_LMS_OBSERVER_H

#include <ATen/lms/pager.h>

#include <cstddef>

namespace lms_torch {

// A device with a pager. Known for as long as the process lives, since blocks outlive the switching off of LMS.
struct Device {
  lms::Pager* pager = nullptr;
  int index = 0;  // among the devices of its kind
  // The number, in the pager's backend, of the stream on which the calling thread's operations run. *captured becomes
  // true when they only go into a graph, which replays them later with the same addresses; the number is then
  // host_stream. Null for a device that has no streams.
  lms::StreamId (*current_stream)(const Device& device, bool* captured) = nullptr;
};

// Makes the device known. At most 64 can be; false beyond that.
LMS_API bool add_device(const Device& device);

// The device to one of whose blocks the address belongs, or null. Takes no lock.
LMS_API const Device* device_of(const void* address);

// Observes operations while more calls of start than of stop were made. LMS_UNSUPPORTED, and nothing started: in
// releases that keep observers on a stack, somebody else observes already.
LMS_API lms_status start_observing();
LMS_API void stop_observing();

// While a graph may be captured nothing is asked of the device that a capture forbids. Calls nest.
LMS_API void begin_capture();
LMS_API void end_capture();
LMS_API bool capture_possible();

// An observer cannot make its operation fail, so what went wrong there is kept. Throws what was kept for the calling
// thread, unless LMS was reconfigured since.
LMS_API void throw_pending_failure();
LMS_API void options_changed();

[[noreturn]] LMS_API void throw_status(const lms::Status& status);

// Keeps one block resident for work that is enqueued on a stream while the object lives. Throws when it cannot.
class LMS_API ResidentBlock {
 public:
  // Does nothing for an address that no pager owns. The stream is one of the owner's backend.
  ResidentBlock(const void* address, bool write, lms::StreamId stream);
  ~ResidentBlock();
  ResidentBlock(const ResidentBlock&) = delete;
  ResidentBlock& operator=(const ResidentBlock&) = delete;

 private:
  const Device* device_ = nullptr;
  lms::Pin pin_;
  lms::StreamId stream_;
};

}  // namespace lms_torch
#endif  // ATEN_LMS_OBSERVER_H

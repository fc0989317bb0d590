// Stands for LmsTorch.cpp, which needs all of libtorch: programs that include this announce their operations
// themselves. Included once in a program.
#ifndef LMS_TESTS_OBSERVER_H
#define LMS_TESTS_OBSERVER_H

#include <ATen/LmsObserver.h>
#include <ATen/cuda/LmsStock.h>
#include <ATen/lms/pager.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <string>

namespace lms_torch {

namespace {
std::array<Device, 4> known_devices;
std::atomic<size_t> known_count{0};
std::atomic<unsigned> captures{0};

// Not every release has a class for want of memory.
struct NoMemory : c10::Error {
  using c10::Error::Error;
};

// Whether there was too little memory, for the pager or for the stock allocator.
inline bool is_no_memory(const c10::Error& error) {
  return dynamic_cast<const NoMemory*>(&error) != nullptr || lms_cuda::stock::is_out_of_memory(error);
}
}  // namespace

bool add_device(const Device& device) {
  known_devices.at(known_count) = device;
  ++known_count;
  return true;
}
const Device* device_of(const void* address) {
  for (size_t i = 0; i < known_count; ++i) {
    if (known_devices.at(i).pager->owns(address)) {
      return &known_devices.at(i);
    }
  }
  return nullptr;
}
lms_status start_observing() { return LMS_OK; }
void stop_observing() {}
void begin_capture() { captures.fetch_add(1); }
void end_capture() { captures.fetch_sub(1); }
bool capture_possible() { return captures.load() != 0; }
void throw_pending_failure() {}
void options_changed() {}
void throw_status(const lms::Status& status) {
  const c10::SourceLocation here = {__func__, __FILE__, __LINE__};
  if (status.code == LMS_OUT_OF_MEMORY) {
    throw NoMemory(here, "LMS: " + status.message);
  }
  throw c10::Error(here, "LMS: " + status.message);
}
ResidentBlock::ResidentBlock(const void* address, bool write, lms::StreamId stream)
    : device_(device_of(address)), stream_(stream) {
  if (device_ != nullptr) {
    const lms::Status status = device_->pager->pin(address, write, &pin_, stream);
    if (!status.ok()) {
      throw_status(status);
    }
  }
}
ResidentBlock::~ResidentBlock() {
  if (device_ != nullptr) {
    device_->pager->unpin(pin_, stream_);
  }
}

}  // namespace lms_torch
#endif  // LMS_TESTS_OBSERVER_H

#include <ATen/LmsDevices.h>

#include <mutex>

namespace lms_torch {

std::array<KnownDevice, most_devices> known_devices;
std::atomic<size_t> known_count{0};

namespace {
std::atomic<unsigned> captures{0};
}  // namespace

bool add_device(const Device& device) {
  static std::mutex& lock = *new std::mutex;
  const std::lock_guard<std::mutex> guard(lock);
  const size_t count = known_count.load(std::memory_order_relaxed);
  if (count == most_devices) {
    return false;
  }
  lms::Backend& backend = device.pager->backend();
  known_devices[count] =
      KnownDevice{reinterpret_cast<uintptr_t>(backend.base()), backend.span(), backend.serves_faults(), device};
  known_count.store(count + 1, std::memory_order_release);
  return true;
}

const Device* device_of(const void* address) {
  const KnownDevice* known = find_device(address, known_count.load(std::memory_order_acquire));
  return known != nullptr && known->pager()->owns(address) ? &known->device : nullptr;
}

void begin_capture() { captures.fetch_add(1); }
void end_capture() { captures.fetch_sub(1); }
bool capture_possible() { return captures.load(std::memory_order_acquire) != 0; }

}  // namespace lms_torch

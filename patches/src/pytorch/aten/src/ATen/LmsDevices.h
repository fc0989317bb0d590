// The devices that have a pager, and which of them an address belongs to. All functions are thread-safe.
#ifndef ATEN_LMS_DEVICES_H
#define ATEN_LMS_DEVICES_H

#include <ATen/lms/pager.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lms_torch {

// A device with a pager. Known for as long as the process lives, since blocks outlive the switching off of LMS.
struct Device {
  lms::Pager* pager = nullptr;
  int index = 0;  // among the devices of its kind
  // The number, in the pager's backend, of the stream on which the calling thread's operations run. *captured becomes
  // true when they only go into a graph, which replays them later with the same addresses; the number is then
  // host_stream. Null for a device that has no streams.
  lms::StreamId (*current_stream)(const Device& device, bool* captured) = nullptr;
  // From now on the device is given no work by operations without their data (throw_lacking). Null for a device that
  // needs no such thing, since it brings data in when it is touched.
  void (*refuse_work)() = nullptr;
};

constexpr size_t most_devices = 64;

// Makes the device known. At most 64 can be; false beyond that.
LMS_API bool add_device(const Device& device);

// The device to one of whose blocks the address belongs, or null. Takes no lock.
LMS_API const Device* device_of(const void* address);

// While a graph may be captured nothing is asked of the device that a capture forbids. Calls nest.
LMS_API void begin_capture();
LMS_API void end_capture();
LMS_API bool capture_possible();

// ------------------------------------------------------------------------------------------------ for operations

struct KnownDevice {
  uintptr_t begin = 0;  // of the pager's address space
  uintptr_t bytes = 0;
  // The device notices a write to a read-only block that no operation announced, instead of failing.
  bool notices_writes = false;
  Device device;

  lms::Pager* pager() const { return device.pager; }
  bool covers(const void* address) const { return reinterpret_cast<uintptr_t>(address) - begin < bytes; }
};

// Entries are added and never change, so that reading takes no lock. The count is read before them.
extern std::array<KnownDevice, most_devices> known_devices;
extern std::atomic<size_t> known_count;

// The entry that owns the address, among the first `count`; null when there is none.
inline const KnownDevice* find_device(const void* address, size_t count) {
  for (size_t index = 0; index < count; ++index) {
    if (known_devices[index].covers(address)) {
      return &known_devices[index];
    }
  }
  return nullptr;
}

inline size_t position(const KnownDevice* known) { return static_cast<size_t>(known - known_devices.data()); }

// The streams on which the calling thread works now, one per device, each looked up when it is first asked for.
class CurrentStreams {
 public:
  lms::StreamId of(size_t index) {
    const uint64_t bit = uint64_t{1} << index;
    if ((known_ & bit) == 0) {
      const Device& device = known_devices[index].device;
      bool captured = false;
      set(index, device.current_stream == nullptr ? lms::host_stream : device.current_stream(device, &captured));
      captured_ |= captured ? bit : 0;
    }
    return streams_[index];  // NOLINT(cppcoreguidelines-pro-bounds-constant-array-index)
  }
  bool captured(size_t index) {
    of(index);
    return (captured_ >> index & 1) != 0;
  }
  bool asked(size_t index) const { return (known_ >> index & 1) != 0; }
  void set(size_t index, lms::StreamId stream) {
    known_ |= uint64_t{1} << index;
    streams_[index] = stream;
  }

 private:
  uint64_t known_ = 0;
  uint64_t captured_ = 0;
  std::array<lms::StreamId, most_devices> streams_;  // where known_ has a bit
};

}  // namespace lms_torch
#endif  // ATEN_LMS_DEVICES_H

// The clock that all processes of the machine see alike.
#ifndef LMS_MONOTONIC_H
#define LMS_MONOTONIC_H

#include <time.h>

#include <cstdint>

namespace lms {

// Nanoseconds of CLOCK_MONOTONIC.
inline std::uint64_t monotonic_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

}  // namespace lms
#endif  // LMS_MONOTONIC_H

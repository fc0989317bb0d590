// Host backend: device memory is a budget of this machine's RAM. A block that is away has no pages and its range is
// inaccessible, so that any access faults; fault.h turns that fault into a page-in.
#ifndef LMS_HOST_BACKEND_H
#define LMS_HOST_BACKEND_H

#include <memory>

#include "backend.h"

namespace lms {

// Reserves `address_space` bytes, rounded up to 4 MiB, at most 1 TiB (0: as much as the system grants up to that). Null
// when the system refuses.
std::unique_ptr<Backend> make_host_backend(std::uint64_t address_space);

}  // namespace lms
#endif  // LMS_HOST_BACKEND_H

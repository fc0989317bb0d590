// A queue on io_uring(7), without its library: a ring of requests and one of results, both shared with the kernel.
#ifndef LMS_URING_QUEUE_H
#define LMS_URING_QUEUE_H

#include <memory>

#include "disk_queue.h"

namespace lms {

// Null where the kernel has no io_uring, or does not allow it to this process.
std::unique_ptr<DiskQueue> make_uring_queue();

}  // namespace lms
#endif  // LMS_URING_QUEUE_H

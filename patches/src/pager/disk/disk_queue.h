// Reads and writes of files, several in flight at a time. uring_queue.h and thread_queue.h do it, disk_queues.h
// chooses.
#ifndef LMS_DISK_QUEUE_H
#define LMS_DISK_QUEUE_H

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

namespace lms {

struct DiskRequest {
  int file = -1;
  bool write = false;
  iovec memory = {};
  std::uint64_t offset = 0;
  std::int64_t result = 0;  // once it is over: the bytes moved, maybe fewer than asked for, or -errno
};

// Carries the request out at once, on this thread, and sets its result.
void disk_move(DiskRequest* request);

// Writes the parts one behind the other, on this thread. The bytes written, maybe fewer than asked for, or -errno.
std::int64_t disk_write(int file, const iovec* parts, std::size_t count, std::uint64_t offset);

// Used by one thread at a time.
class DiskQueue {
 public:
  static constexpr unsigned depth = 16;  // requests in flight, at most

  DiskQueue() = default;
  DiskQueue(const DiskQueue&) = delete;
  DiskQueue& operator=(const DiskQueue&) = delete;
  virtual ~DiskQueue() = default;

  // The request begins; it and its memory stay where they are until wait() has returned it.
  virtual void submit(DiskRequest* request) = 0;

  // Waits until one of those that began is over.
  virtual DiskRequest* wait() = 0;

  // False when the system has taken away what the queue works with: use another one.
  virtual bool works() const { return true; }
};

}  // namespace lms
#endif  // LMS_DISK_QUEUE_H

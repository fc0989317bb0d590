// The queues of a process: on io_uring where the kernel has it and allows it (containers often do not), else of
// threads.
#ifndef LMS_DISK_QUEUES_H
#define LMS_DISK_QUEUES_H

#include <memory>
#include <mutex>
#include <vector>

#include "disk_queue.h"

namespace lms {

class DiskThreads;

// Thread-safe.
class DiskQueues {
 public:
  // Those of this process. A forked child begins with none: its parent's queues and threads are not its own.
  static DiskQueues& of_process();

  std::unique_ptr<DiskQueue> take();
  void give(std::unique_ptr<DiskQueue> queue);

 private:
  std::mutex lock_;
  bool has_uring_ = true;  // as far as is known
  DiskThreads* threads_ = nullptr;
  std::vector<std::unique_ptr<DiskQueue>> unused_;
};

}  // namespace lms
#endif  // LMS_DISK_QUEUES_H

#include "disk_queues.h"

#include <unistd.h>

#include <utility>

#include "thread_queue.h"
#include "uring_queue.h"

namespace lms {

DiskQueues& DiskQueues::of_process() {
  // Never destroyed: copies go on while the process exits. A child leaves its parent's alone, of which it could destroy
  // neither the threads nor what they wait for. Nobody is in here during a fork (Pager::before_fork).
  static std::mutex lock;
  static DiskQueues* queues = nullptr;
  static pid_t owner = 0;
  const std::lock_guard<std::mutex> guard(lock);
  if (owner != getpid()) {
    queues = new DiskQueues;
    owner = getpid();
  }
  return *queues;
}

std::unique_ptr<DiskQueue> DiskQueues::take() {
  const std::lock_guard<std::mutex> guard(lock_);
  std::unique_ptr<DiskQueue> queue;
  if (!unused_.empty()) {
    queue = std::move(unused_.back());
    unused_.pop_back();
  } else if (has_uring_) {
    queue = make_uring_queue();
    has_uring_ = queue != nullptr;
  }
  if (queue == nullptr) {
    if (threads_ == nullptr) {
      threads_ = new DiskThreads;
    }
    queue = std::make_unique<ThreadQueue>(threads_);
  }
  return queue;
}

void DiskQueues::give(std::unique_ptr<DiskQueue> queue) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (queue->works()) {
    unused_.push_back(std::move(queue));
  }
}

}  // namespace lms

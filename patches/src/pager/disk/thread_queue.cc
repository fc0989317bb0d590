#include "thread_queue.h"

#include "../background.h"

namespace lms {

void DiskThreads::put(ThreadQueue* queue, DiskRequest* request) {
  std::unique_lock<std::mutex> lock(lock_);
  if (idle_ <= jobs_.size() && threads_ < most && start_in_background([this] { run(); })) {
    ++threads_;
    ++idle_;
  }
  if (threads_ == 0) {
    lock.unlock();
    disk_move(request);  // no thread is to be had
    queue->over(request);
    return;
  }
  jobs_.push_back(Job{queue, request});
  work_.notify_one();
}

void DiskThreads::run() {
  std::unique_lock<std::mutex> lock(lock_);
  while (true) {
    work_.wait(&lock, [this] { return !jobs_.empty(); });
    const Job job = jobs_.front();
    jobs_.pop_front();
    --idle_;
    lock.unlock();
    disk_move(job.request);
    job.queue->over(job.request);
    lock.lock();
    ++idle_;
  }
}

DiskRequest* ThreadQueue::wait() {
  std::unique_lock<std::mutex> lock(lock_);
  some_over_.wait(&lock, [this] { return over_count_ > 0; });
  return over_[--over_count_];
}

void ThreadQueue::over(DiskRequest* request) {
  const std::lock_guard<std::mutex> guard(lock_);
  over_[over_count_++] = request;
  some_over_.notify_one();
}

}  // namespace lms

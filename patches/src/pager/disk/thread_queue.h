// A queue whose requests are carried out by a few threads, which the queues of a process have together.
#ifndef LMS_THREAD_QUEUE_H
#define LMS_THREAD_QUEUE_H

#include <array>
#include <deque>
#include <mutex>

#include "../condition.h"
#include "disk_queue.h"

namespace lms {

class ThreadQueue;

// Never destroyed. Thread-safe.
class DiskThreads {
 public:
  static constexpr unsigned most = 8;  // threads; each has one request in flight

  void put(ThreadQueue* queue, DiskRequest* request);

 private:
  struct Job {
    ThreadQueue* queue;
    DiskRequest* request;
  };

  void run();

  std::mutex lock_;
  Condition work_;
  std::deque<Job> jobs_;
  unsigned threads_ = 0;
  unsigned idle_ = 0;
};

class ThreadQueue final : public DiskQueue {
 public:
  explicit ThreadQueue(DiskThreads* threads) : threads_(threads) {}

  void submit(DiskRequest* request) override { threads_->put(this, request); }
  DiskRequest* wait() override;

  // Called by the thread that carried the request out. Thread-safe.
  void over(DiskRequest* request);

 private:
  DiskThreads* const threads_;
  std::mutex lock_;
  Condition some_over_;
  std::array<DiskRequest*, depth> over_ = {};
  unsigned over_count_ = 0;
};

}  // namespace lms
#endif  // LMS_THREAD_QUEUE_H

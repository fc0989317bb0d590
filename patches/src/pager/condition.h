// A condition variable that survives a fork, and that needs no newer C++ library than the frameworks' wheels do (since
// GCC 12, std::condition_variable::wait is a symbol that older systems lack). Used with std::mutex. Thread-safe.
#ifndef LMS_CONDITION_H
#define LMS_CONDITION_H

#include <pthread.h>

#include <mutex>

namespace lms {

class Condition {
 public:
  void wait(std::unique_lock<std::mutex>* lock) { pthread_cond_wait(&condition_, lock->mutex()->native_handle()); }

  template <typename Done>
  void wait(std::unique_lock<std::mutex>* lock, Done done) {
    while (!done()) {
      wait(lock);
    }
  }

  void notify_one() { pthread_cond_signal(&condition_); }
  void notify_all() { pthread_cond_broadcast(&condition_); }

  // In a forked child: the threads that waited are not there.
  void forget_waiters() { condition_ = PTHREAD_COND_INITIALIZER; }

 private:
  pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
};

}  // namespace lms
#endif  // LMS_CONDITION_H

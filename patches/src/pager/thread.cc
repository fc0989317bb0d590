#include "thread.h"

#include <mutex>

namespace lms {

namespace {

std::mutex& threads_lock() {
  static std::mutex& lock = *new std::mutex;  // never destroyed: threads may outlive static objects
  return lock;
}

Thread* threads_first = nullptr;  // every Thread there is; guarded by threads_lock()

}  // namespace

// Owns a Thread for as long as the calling thread lives.
class ThreadSlot {
 public:
  ThreadSlot() {
    const std::lock_guard<std::mutex> guard(threads_lock());
    std::uint32_t count = 0;
    for (Thread* thread = threads_first; thread != nullptr; thread = thread->next_) {
      if (!thread->in_use_) {
        thread->in_use_ = true;
        thread_ = thread;
        return;
      }
      ++count;
    }
    thread_ = new Thread;
    thread_->index_ = count;
    thread_->next_ = threads_first;
    threads_first = thread_;
  }
  ThreadSlot(const ThreadSlot&) = delete;
  ThreadSlot& operator=(const ThreadSlot&) = delete;
  ~ThreadSlot() {
    const std::lock_guard<std::mutex> guard(threads_lock());
    thread_->scope_.store(0, std::memory_order_release);
    thread_->scopes_.clear();
    thread_->in_use_ = false;
  }

  Thread* thread() const { return thread_; }

  static void end_scopes_except(const Thread* survivor) {
    for (Thread* thread = threads_first; thread != nullptr; thread = thread->next_) {
      if (thread != survivor) {
        thread->scope_.store(0, std::memory_order_relaxed);
        thread->scopes_.clear();
      }
    }
  }

 private:
  Thread* thread_;
};

Thread& Thread::current() {
  static thread_local ThreadSlot slot;
  return *slot.thread();
}

std::vector<Scope> Thread::scopes_served() const {
  std::vector<Scope> scopes;
  const std::uint64_t own = scope_.load(std::memory_order_relaxed);
  if (own != 0) {
    scopes.push_back(Scope{this, own});
    return scopes;
  }
  const std::lock_guard<std::mutex> guard(threads_lock());
  for (const Thread* thread = threads_first; thread != nullptr; thread = thread->next_) {
    const std::uint64_t serial = thread->scope_.load(std::memory_order_acquire);
    if (serial != 0) {
      scopes.push_back(Scope{thread, serial});
    }
  }
  return scopes;
}

void Thread::before_fork() {
  current();  // registers the thread before the lock is taken
  threads_lock().lock();
}

void Thread::after_fork(bool child) {
  if (child) {
    ThreadSlot::end_scopes_except(&current());
  }
  threads_lock().unlock();
}

}  // namespace lms

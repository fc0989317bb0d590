// What the pager knows of a thread: whether it is inside an operation (a scope). Scopes nest; only the outermost
// matters. A block remembers the scope that allocated it, and is protected while that scope lasts: intermediates are
// used through raw pointers before any observer sees them.
#ifndef LMS_THREAD_H
#define LMS_THREAD_H

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "block.h"

namespace lms {

class Thread;

// An outermost scope, as others see it.
struct Scope {
  const Thread* thread = nullptr;
  std::uint64_t serial = 0;

  bool is_over() const;
};

class Thread {
 public:
  // The calling thread's. Objects outlive their threads and are used again, so that blocks may point at them.
  static Thread& current();

  // Around a fork. Only the calling thread's scopes go on in the child.
  static void before_fork();
  static void after_fork(bool child);

  Thread() = default;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  // Both are called by the thread itself. True when the scope is the outermost.
  bool begin_scope() {
    scopes_.push_back(++scopes_begun_);
    if (scopes_.size() > 1) {
      return false;
    }
    scope_.store(scopes_begun_, std::memory_order_relaxed);
    return true;
  }
  bool end_scope() {
    if (scopes_.size() != 1) {
      if (!scopes_.empty()) {
        scopes_.pop_back();
      }
      return false;
    }
    scopes_.clear();
    scope_.store(0, std::memory_order_release);
    return true;
  }
  bool in_scope() const { return !scopes_.empty(); }

  // The scopes for which an access of this thread may be: its own; for a thread without one, which may be a helper of
  // an operation (OpenMP's are), those of all threads.
  std::vector<Scope> scopes_served() const;

  // Marks a block as allocated by the current scope, if there is one.
  void protect(Block* block) const {
    block->owner.store(this, std::memory_order_relaxed);
    block->scope.store(scope_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    block->inner_scope = scopes_.empty() ? 0 : scopes_.back();
  }

  // For a block that the calling thread's outermost scope protects: whether the scope that allocated it is over, so
  // that it is an intermediate result of those around it.
  bool is_intermediate(const Block& block) const {
    return block.owner.load(std::memory_order_relaxed) == this &&
           !std::binary_search(scopes_.begin(), scopes_.end(), block.inner_scope);
  }

  // Whether it is one that the innermost scope got from a scope inside it, and may well use by itself, unseen: a scalar
  // that was converted, a copy for LAPACK.
  bool is_of_innermost(const Block& block) const { return !scopes_.empty() && block.inner_scope > scopes_.back(); }

  static bool is_protected(const Block& block) {
    const Thread* owner = block.owner.load(std::memory_order_relaxed);
    const std::uint64_t scope = block.scope.load(std::memory_order_relaxed);
    return scope != 0 && owner->scope_.load(std::memory_order_acquire) == scope;
  }

  // A small number that differs between threads that live at the same time, mostly.
  std::uint32_t index() const { return index_; }

 private:
  friend class ThreadSlot;
  friend struct Scope;

  std::atomic<std::uint64_t> scope_{0};  // serial number of the outermost scope; 0 outside
  std::uint64_t scopes_begun_ = 0;
  std::vector<std::uint64_t> scopes_;  // serial numbers of those that run, innermost last; only for the thread itself
  std::uint32_t index_ = 0;
  bool in_use_ = true;
  Thread* next_ = nullptr;
};

inline bool Scope::is_over() const { return thread->scope_.load(std::memory_order_acquire) != serial; }

}  // namespace lms
#endif  // LMS_THREAD_H

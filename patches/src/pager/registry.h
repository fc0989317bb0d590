// The pagers of this process, for what happens to all of them: a fault (fault.h), a system call (system_calls.h), a
// fork (fork.h).
#ifndef LMS_REGISTRY_H
#define LMS_REGISTRY_H

#include <cstddef>
#include <cstdint>

#include "pin.h"

namespace lms {

// A pager, as far as faults, system calls and forks are concerned.
class Registered {
 public:
  virtual ~Registered() = default;

  // Whether the address lies in the pager's address space, in a block or not, and the pager serves faults there.
  bool reserves(const void* address) const {
    return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(base_) < span_;
  }

  // Keeps the block of that address resident for a system call, which may write it. Returns how many bytes of the block
  // there are from the address on: 0 when there is no block, or it cannot be brought back.
  virtual std::size_t pin_for_call(const void* address, bool write, Pin* pin) = 0;
  virtual void unpin_after_call(const Pin& pin) = 0;

  // Called from the fault handler: true when the access at `address` may be tried again.
  virtual bool serve_fault(const void* address) = 0;

  // Around a fork: after the first nothing of the pager changes until the second, in parent and child.
  virtual void before_fork() = 0;
  virtual void after_fork(bool child) = 0;

 protected:
  // What reserves() is true for.
  Registered(const char* base, std::size_t span) : base_(base), span_(span) {}

 private:
  const char* const base_;
  const std::size_t span_;
};

namespace registry {

// Adds a pager for as long as the process lives. False when too many exist. Thread-safe.
bool add(Registered* pager);

// The pager that was added as number `index`, or null past the last one. Takes no lock.
Registered* at(std::size_t index);

}  // namespace registry
}  // namespace lms
#endif  // LMS_REGISTRY_H

// The pagers of this process, for what happens to all of them: a fault (fault.h), a fork (fork.h).
#ifndef LMS_REGISTRY_H
#define LMS_REGISTRY_H

#include <cstddef>

namespace lms {

// A pager, as far as faults and forks are concerned.
class Registered {
 public:
  virtual ~Registered() = default;

  // Called from the fault handler: true when the access at `address` may be tried again.
  virtual bool serve_fault(const void* address) = 0;

  // Around a fork: after the first nothing of the pager changes until the second, in parent and child.
  virtual void before_fork() = 0;
  virtual void after_fork(bool child) = 0;
};

namespace registry {

// Adds a pager for as long as the process lives. False when too many exist. Thread-safe.
bool add(Registered* pager);

// The pager that was added as number `index`, or null past the last one. Takes no lock.
Registered* at(std::size_t index);

}  // namespace registry
}  // namespace lms
#endif  // LMS_REGISTRY_H

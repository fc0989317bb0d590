#include "fork.h"

#include <pthread.h>

#include <cstddef>
#include <mutex>

#include "fault.h"
#include "registry.h"
#include "thread.h"

namespace lms {
namespace fork {

namespace {

// The order of the locks is in docs/internals.md.
void fork_before() {
  for (std::size_t index = 0; Registered* pager = registry::at(index); ++index) {
    pager->before_fork();
  }
  Thread::before_fork();
  fault::before_fork();
}

void fork_after(bool child) {
  fault::after_fork();
  Thread::after_fork(child);
  for (std::size_t index = 0; Registered* pager = registry::at(index); ++index) {
    pager->after_fork(child);
  }
}

}  // namespace

void install() {
  static std::once_flag& once = *new std::once_flag;
  std::call_once(once, [] { pthread_atfork(fork_before, [] { fork_after(false); }, [] { fork_after(true); }); });
}

}  // namespace fork
}  // namespace lms

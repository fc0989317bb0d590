#include "fault.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "pager.h"

namespace lms {
namespace fault {

namespace {

std::array<std::atomic<Pager*>, 64> fault_pagers{};
std::atomic<bool> fault_passing_on{false};
struct sigaction fault_previous = {};

void fault_pass_on(int signal_number, siginfo_t* info, void* context) {
  // A handler that was installed over ours may have ours as its previous one: then the fault comes round again.
  const bool again = fault_passing_on.exchange(true);
  if (!again && (fault_previous.sa_flags & SA_SIGINFO) != 0) {
    fault_previous.sa_sigaction(signal_number, info, context);
  } else if (!again && fault_previous.sa_handler != SIG_DFL && fault_previous.sa_handler != SIG_IGN) {
    fault_previous.sa_handler(signal_number);
  } else {
    signal(signal_number, SIG_DFL);
    if (info->si_code <= 0) {
      raise(signal_number);  // sent by a process: returning would not repeat it
    }
  }
  fault_passing_on.store(false);
}

void fault_handle(int signal_number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  if (info->si_code > 0) {  // from the kernel: si_addr is the address
    for (const std::atomic<Pager*>& entry : fault_pagers) {
      Pager* pager = entry.load(std::memory_order_acquire);
      if (pager == nullptr) {
        break;
      }
      if (pager->serve_fault(info->si_addr)) {
        errno = saved_errno;
        return;
      }
    }
  }
  errno = saved_errno;
  fault_pass_on(signal_number, info, context);
}

void fault_before_fork() {
  for (const std::atomic<Pager*>& entry : fault_pagers) {
    Pager* pager = entry.load(std::memory_order_acquire);
    if (pager != nullptr) {
      pager->before_fork();
    }
  }
  Thread::before_fork();
}

void fault_after_fork(bool child) {
  Thread::after_fork(child);
  for (const std::atomic<Pager*>& entry : fault_pagers) {
    Pager* pager = entry.load(std::memory_order_acquire);
    if (pager != nullptr) {
      pager->after_fork(child);
    }
  }
}

}  // namespace

bool serve(Pager* pager) {
  static std::mutex& lock = *new std::mutex;
  static std::once_flag& once = *new std::once_flag;
  std::call_once(once, [] {
    pthread_atfork(fault_before_fork, [] { fault_after_fork(false); }, [] { fault_after_fork(true); });
  });
  const std::lock_guard<std::mutex> guard(lock);
  for (std::atomic<Pager*>& entry : fault_pagers) {
    if (entry.load(std::memory_order_relaxed) == nullptr) {
      entry.store(pager, std::memory_order_release);
      install();
      return true;
    }
  }
  return false;
}

void install() {
  static std::mutex& lock = *new std::mutex;
  const std::lock_guard<std::mutex> guard(lock);
  struct sigaction current = {};
  sigaction(SIGSEGV, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == fault_handle) {
    return;
  }
  fault_previous = current;
  struct sigaction ours = {};
  ours.sa_sigaction = fault_handle;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGSEGV, &ours, nullptr);
}

}  // namespace fault
}  // namespace lms

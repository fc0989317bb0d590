#include "fault.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <mutex>

#include "registry.h"

namespace lms {
namespace fault {

namespace {

struct sigaction fault_before_us = {};  // the handler before ours
struct sigaction fault_over_us = {};    // one that replaced ours and over which ours was installed again, if any
bool fault_has_over_us = false;

std::mutex& fault_install_lock() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

void fault_call(const struct sigaction& handler, int signal_number, siginfo_t* info, void* context) {
  const bool sent = info->si_code <= 0;  // by a process: returning would not repeat it
  if ((handler.sa_flags & SA_SIGINFO) != 0) {
    handler.sa_sigaction(signal_number, info, context);
  } else if (handler.sa_handler != SIG_DFL && handler.sa_handler != SIG_IGN) {
    handler.sa_handler(signal_number);
  } else if (handler.sa_handler == SIG_DFL || !sent) {
    signal(signal_number, SIG_DFL);
    if (sent) {
      raise(signal_number);
    }
  }
}

void fault_pass_on(int signal_number, siginfo_t* info, void* context) {
  // A handler that replaced ours has ours as its previous one, and may pass the fault back to us, by a call or by
  // raising it again: then we are deeper on the stack than where we passed it on. A mark that is not above us is left
  // over from a handler that jumped out.
  static thread_local const char* passed_on_at = nullptr;
  const char* here = static_cast<const char*>(__builtin_frame_address(0));
  if (fault_has_over_us && (passed_on_at == nullptr || here >= passed_on_at)) {
    passed_on_at = here;
    fault_call(fault_over_us, signal_number, info, context);
    passed_on_at = nullptr;
  } else {
    fault_call(fault_before_us, signal_number, info, context);
  }
}

void fault_handle(int signal_number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  if (info->si_code > 0) {  // from the kernel: si_addr is the address
    for (std::size_t index = 0; Registered* pager = registry::at(index); ++index) {
      if (pager->serve_fault(info->si_addr)) {
        errno = saved_errno;
        return;
      }
    }
  }
  errno = saved_errno;
  fault_pass_on(signal_number, info, context);
}

}  // namespace

void install() {
  static bool installed = false;
  const std::lock_guard<std::mutex> guard(fault_install_lock());
  struct sigaction current = {};
  sigaction(SIGSEGV, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == fault_handle) {
    return;
  }
  (installed ? fault_over_us : fault_before_us) = current;
  fault_has_over_us = installed;
  installed = true;
  struct sigaction ours = {};
  ours.sa_sigaction = fault_handle;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGSEGV, &ours, nullptr);
}

void before_fork() { fault_install_lock().lock(); }

void after_fork() { fault_install_lock().unlock(); }

}  // namespace fault
}  // namespace lms

#include "fault.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <mutex>

#include "imports.h"
#include "registry.h"

namespace lms {
namespace fault {

namespace {

// The functions as they were before ours came in front of them.
std::atomic<void*> fault_sigaction{nullptr};
std::atomic<void*> fault_signal{nullptr};
std::atomic<void*> fault_sysv_signal{nullptr};
std::atomic<void*> fault_pthread_sigmask{nullptr};
std::atomic<void*> fault_sigprocmask{nullptr};

std::atomic<pid_t> fault_process{0};  // whose handlers the following describes; not that of a child by vfork

// Guarded by FaultGuard.
struct sigaction fault_program = {};  // the program's handler: what it has set, or what was there before ours
struct sigaction fault_over_us = {};  // one that replaced ours unseen, and over which ours was installed again, if any
bool fault_has_over_us = false;

std::atomic<bool> fault_guard_held{false};

using FaultSetMask = int (*)(int, const sigset_t*, sigset_t*);

int fault_stock_sigmask(int how, const sigset_t* set, sigset_t* before) {
  const auto stock = reinterpret_cast<FaultSetMask>(fault_pthread_sigmask.load(std::memory_order_acquire));
  return (stock != nullptr ? stock : &pthread_sigmask)(how, set, before);
}

// A lock for signal handlers: who holds it gets no signal.
class FaultGuard {
 public:
  FaultGuard() { lock(&mask_); }
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;
  ~FaultGuard() { unlock(mask_); }

  static void lock(sigset_t* mask) {
    sigset_t all;
    sigfillset(&all);
    fault_stock_sigmask(SIG_SETMASK, &all, mask);
    while (fault_guard_held.exchange(true, std::memory_order_acquire)) {
    }
  }
  static void unlock(const sigset_t& mask) {
    fault_guard_held.store(false, std::memory_order_release);
    fault_stock_sigmask(SIG_SETMASK, &mask, nullptr);
  }

 private:
  sigset_t mask_;
};

int fault_stock_sigaction(int signal_number, const struct sigaction* action, struct sigaction* before) {
  using Function = int (*)(int, const struct sigaction*, struct sigaction*);
  const auto stock = reinterpret_cast<Function>(fault_sigaction.load(std::memory_order_acquire));
  return (stock != nullptr ? stock : &sigaction)(signal_number, action, before);
}

void fault_set_default(int signal_number) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  fault_stock_sigaction(signal_number, &action, nullptr);
}

// Calls a handler as the kernel would.
void fault_call(const struct sigaction& handler, int signal_number, siginfo_t* info, void* context) {
  const bool sent = info->si_code <= 0;  // by a process: returning would not repeat it
  if ((handler.sa_flags & SA_SIGINFO) == 0 && (handler.sa_handler == SIG_DFL || handler.sa_handler == SIG_IGN)) {
    if (handler.sa_handler == SIG_DFL || !sent) {
      fault_set_default(signal_number);
      if (sent) {
        raise(signal_number);
      }
    }
    return;
  }
  sigset_t blocked = handler.sa_mask;
  if ((handler.sa_flags & SA_NODEFER) == 0) {
    sigaddset(&blocked, signal_number);
  }
  sigset_t before;
  fault_stock_sigmask(SIG_BLOCK, &blocked, &before);
  if ((handler.sa_flags & SA_SIGINFO) != 0) {
    handler.sa_sigaction(signal_number, info, context);
  } else {
    handler.sa_handler(signal_number);
  }
  fault_stock_sigmask(SIG_SETMASK, &before, nullptr);
}

// The handler that comes next. One with SA_RESETHAND comes once.
struct sigaction fault_take(bool over_us) {
  const FaultGuard guard;
  struct sigaction* next = over_us && fault_has_over_us ? &fault_over_us : &fault_program;
  const struct sigaction taken = *next;
  if ((taken.sa_flags & SA_RESETHAND) != 0) {
    *next = {};
  }
  return taken;
}

void fault_pass_on(int signal_number, siginfo_t* info, void* context) {
  // A handler that replaced ours unseen has ours as its previous one, and may pass the fault back to us, by a call or
  // by raising it again: then we are deeper on the stack than where we passed it on. A mark that is not above us is
  // left over from a handler that jumped out.
  static thread_local const char* passed_on_at = nullptr;
  const char* here = static_cast<const char*>(__builtin_frame_address(0));
  const bool over_us = fault_has_over_us && (passed_on_at == nullptr || here >= passed_on_at);
  passed_on_at = over_us ? here : passed_on_at;
  fault_call(fault_take(over_us), signal_number, info, context);
  passed_on_at = over_us ? nullptr : passed_on_at;
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

bool fault_is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == fault_handle;
}

// Puts ours in front of `current`. The guard is held.
void fault_put_in_front(const struct sigaction& current) {
  static bool installed = false;
  if (fault_is_ours(current)) {
    return;
  }
  (installed ? fault_over_us : fault_program) = current;
  fault_has_over_us = installed;
  installed = true;
  fault_process.store(getpid(), std::memory_order_relaxed);
  struct sigaction ours = {};
  ours.sa_sigaction = fault_handle;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&ours.sa_mask);
  fault_stock_sigaction(SIGSEGV, &ours, nullptr);
}

// ------------------------------------------------------------------------------------------------ in front of libc

// What a program sets becomes the handler that is next, and what it reads is what it has set.
int fault_program_sigaction(int signal_number, const struct sigaction* action, struct sigaction* before) {
  struct sigaction wanted = {};
  if (action != nullptr) {
    wanted = *action;  // the program's memory is not touched while no fault can be served
  }
  if (signal_number != SIGSEGV || getpid() != fault_process.load(std::memory_order_relaxed)) {
    sigdelset(&wanted.sa_mask, SIGSEGV);  // for the reason that fault_program_mask gives
    return fault_stock_sigaction(signal_number, action == nullptr ? nullptr : &wanted, before);
  }
  struct sigaction was = {};
  {
    const FaultGuard guard;
    struct sigaction current = {};
    fault_stock_sigaction(SIGSEGV, nullptr, &current);
    fault_put_in_front(current);
    was = fault_has_over_us ? fault_over_us : fault_program;
    if (action != nullptr) {
      fault_program = wanted;
      fault_has_over_us = false;
    }
  }
  if (before != nullptr) {
    *before = was;
  }
  return 0;
}

template <std::atomic<void*>* original, int flags>
sighandler_t fault_program_signal(int signal_number, sighandler_t handler) {
  if (signal_number != SIGSEGV || handler == SIG_ERR) {
    return reinterpret_cast<sighandler_t (*)(int, sighandler_t)>(original->load(std::memory_order_relaxed))(
        signal_number, handler);
  }
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  struct sigaction before = {};
  fault_program_sigaction(signal_number, &action, &before);
  return before.sa_handler;
}

// A thread that blocks SIGSEGV is killed by its next fault. Servers block all signals in their threads, to leave them
// to one that waits for signals, and mean those that other processes send.
template <std::atomic<void*>* original>
int fault_program_mask(int how, const sigset_t* set, sigset_t* before) {
  const auto stock = reinterpret_cast<FaultSetMask>(original->load(std::memory_order_relaxed));
  if (set == nullptr || how == SIG_UNBLOCK || sigismember(set, SIGSEGV) != 1) {
    return stock(how, set, before);
  }
  sigset_t wanted = *set;
  sigdelset(&wanted, SIGSEGV);
  return stock(how, &wanted, before);
}

Status fault_redirect() {
  constexpr int bsd = SA_RESTART;
  constexpr int sysv = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  void* const for_sigaction = reinterpret_cast<void*>(&fault_program_sigaction);
  void* const for_signal = reinterpret_cast<void*>(&fault_program_signal<&fault_signal, bsd>);
  void* const for_sysv_signal = reinterpret_cast<void*>(&fault_program_signal<&fault_sysv_signal, sysv>);
  const imports::Replacement replacements[] = {
      {"sigaction", for_sigaction, &fault_sigaction},
      {"__sigaction", for_sigaction, &fault_sigaction},
      {"signal", for_signal, &fault_signal},
      {"bsd_signal", for_signal, &fault_signal},
      {"sysv_signal", for_sysv_signal, &fault_sysv_signal},
      {"__sysv_signal", for_sysv_signal, &fault_sysv_signal},
      {"pthread_sigmask", reinterpret_cast<void*>(&fault_program_mask<&fault_pthread_sigmask>), &fault_pthread_sigmask},
      {"sigprocmask", reinterpret_cast<void*>(&fault_program_mask<&fault_sigprocmask>), &fault_sigprocmask},
  };
  return imports::redirect(replacements, sizeof replacements / sizeof replacements[0]);
}

sigset_t fault_mask_before_fork;

}  // namespace

Status install() {
  stay_in_front();
  static std::mutex& lock = *new std::mutex;
  static bool redirected = false;
  const std::lock_guard<std::mutex> guard(lock);
  Status status;
  if (!redirected) {
    status = fault_redirect();
    redirected = status.ok();
  }
  return status;
}

void stay_in_front() {
  struct sigaction current = {};
  fault_stock_sigaction(SIGSEGV, nullptr, &current);
  if (!fault_is_ours(current)) {
    const FaultGuard guard;
    fault_stock_sigaction(SIGSEGV, nullptr, &current);
    fault_put_in_front(current);
  }
}

void before_fork() { FaultGuard::lock(&fault_mask_before_fork); }

void after_fork() {
  fault_process.store(getpid(), std::memory_order_relaxed);
  FaultGuard::unlock(fault_mask_before_fork);
}

}  // namespace fault
}  // namespace lms

#include "background.h"

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <thread>

namespace lms {

bool start_in_background(const std::function<void()>& run) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);  // which fault.h serves
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    std::thread(run).detach();
  } catch (const std::exception&) {
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace lms

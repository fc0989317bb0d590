// Test processes that share memory with each other: forked, and killed with the program that started them.
#ifndef LMS_TESTS_PROCESSES_H
#define LMS_TESTS_PROCESSES_H

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

#include "check.h"

namespace check {

constexpr std::uint64_t patience_s = CHECK_SANITIZED ? 60 : 20;

// Where those of one case meet.
inline std::string meeting_point() { return directory() + "/share"; }
inline void meet() { setenv("LMS_SHARE", meeting_point().c_str(), 1); }

// What test processes tell each other.
struct Board {
  std::atomic<int> phase{0};
  std::atomic<int> ready{0};
  std::array<std::atomic<std::uint64_t>, 8> shares{};
  std::array<std::atomic<std::uint64_t>, 8> steps{};
  std::array<std::atomic<pid_t>, 8> living{};
  std::atomic<std::uint64_t> peak{0};  // bytes that the living have together
};

inline Board* board() {
  static Board* one =
      new (mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Board;
  return one;
}

template <typename Done>
void wait_until(Done done, const char* what, std::uint64_t seconds = patience_s) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) {
      CHECK_FAIL("waited in vain until %s", what);
    }
    usleep(1000);
  }
}

template <typename Run>
pid_t process(Run run) {
  board();
  std::fflush(nullptr);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run();
    std::fflush(nullptr);
    std::_Exit(0);
  }
  return child;
}

inline void expect_success(pid_t child) {
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

}  // namespace check

#endif  // LMS_TESTS_PROCESSES_H

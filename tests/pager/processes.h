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
#include <memory>
#include <new>
#include <string>
#include <vector>

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

inline std::string ended(int status) {
  return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                             : "exit code " + std::to_string(WEXITSTATUS(status));
}

inline void expect_success(pid_t child) {
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  if (status != 0) {
    CHECK_FAIL("a process failed: %s", ended(status).c_str());
  }
}

// Two processes that work in turn, four times; who works has to come to have what `has` says. A Work has
// until(phase, who): it works until the board's phase is that.
template <typename Work, typename Make, typename Has>
void take_turns(Make make, Has has) {
  const auto run = [&make](std::size_t who) {
    const std::unique_ptr<Work> work = make(who);
    board()->ready.fetch_add(1);
    for (int phase = 1; phase <= 4; ++phase) {
      wait_until([phase] { return board()->phase.load() >= phase; }, "the phase begins");
      if (phase % 2 == static_cast<int>(who)) {
        work->until(phase + 1, who);
      }
    }
    wait_until([] { return board()->phase.load() >= 5; }, "the last phase ends");
    work->until(5, who);  // looks at all that it has
  };
  const pid_t first = process([&] { run(0); });
  const pid_t second = process([&] { run(1); });
  wait_until([] { return board()->ready.load() == 2; }, "both are there");
  for (int phase = 1; phase <= 4; ++phase) {
    const std::size_t who = static_cast<std::size_t>(phase % 2);
    board()->shares[who].store(0);
    board()->phase.store(phase);
    wait_until([&] { return has(who); }, "who works has what the other does not use");
  }
  board()->phase.store(5);
  expect_success(first);
  expect_success(second);
}

// Starts `count` processes by start(who, seed), and so often kills one, at most `pause_us` later, and starts another in
// its place. All of them go on afterwards; those that live then are returned.
template <typename Start>
std::vector<pid_t> kill_at_random(std::size_t count, std::uint64_t kills, std::uint64_t pause_us, Random* random,
                                  Start start) {
  std::vector<pid_t> all;
  for (std::size_t who = 0; who < count; ++who) {
    all.push_back(start(who, random->next()));
  }
  for (; kills > 0; --kills) {
    usleep(static_cast<useconds_t>(random->below(pause_us)));
    const std::size_t who = random->below(count);
    int status = 0;
    if (waitpid(all[who], &status, WNOHANG) != 0) {
      CHECK_FAIL("process %zu failed before it was killed: %s", who, ended(status).c_str());
    }
    kill(all[who], SIGKILL);
    waitpid(all[who], nullptr, 0);
    all[who] = start(who, random->next());
  }
  for (std::size_t who = 0; who < count; ++who) {
    const std::atomic<std::uint64_t>& steps = board()->steps[who];
    const std::uint64_t before = steps.load();
    wait_until([&] { return steps.load() > before + 10; }, "each goes on");
  }
  return all;
}

}  // namespace check

#endif  // LMS_TESTS_PROCESSES_H

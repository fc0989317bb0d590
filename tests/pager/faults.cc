// Accesses that nothing announced, and faults that are not the pager's.
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "check.h"

using check::allocate;
using check::create;
using check::filled;
using check::holds;
using check::kib;
using check::mib;
using check::options;
using check::reclaim;
using check::statistic;
using check::touch;

namespace {

constexpr std::uint64_t block_bytes = 64 * kib;

// Runs `body` in a child and returns how it ended, as waitpid tells.
int in_child(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    body();
    std::_Exit(0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return status;
}

bool killed_by(int status, int signal_number) { return WIFSIGNALED(status) && WTERMSIG(status) == signal_number; }

bool exited_with(int status, int code) { return WIFEXITED(status) && WEXITSTATUS(status) == code; }

// The sanitizers' own handlers turn a fatal fault into a report and an exit code.
void use_default_action() { signal(SIGSEGV, SIG_DFL); }

// Address space in which nothing is mapped readable.
char* forbidden() {
  void* address = mmap(nullptr, block_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(address != MAP_FAILED);
  return static_cast<char*>(address);
}

std::atomic<int> foreign_faults{0};
std::atomic<void*> foreign_address{nullptr};

// A handler such as a program may have: it makes the address accessible.
void mend(int, siginfo_t* info, void*) {
  ++foreign_faults;
  foreign_address = info->si_addr;
  mprotect(reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(info->si_addr) & ~std::uintptr_t{4095}), 4096,
           PROT_READ | PROT_WRITE);
}

using Sigaction = int (*)(int, const struct sigaction*, struct sigaction*);

// Found before there is a pager, as a library has it that was linked with a libc of its own.
Sigaction unseen_sigaction() { return reinterpret_cast<Sigaction>(dlsym(RTLD_DEFAULT, "sigaction")); }

void install(void (*handler)(int, siginfo_t*, void*), Sigaction set = &sigaction, struct sigaction* before = nullptr) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  CHECK_EQ(set(SIGSEGV, &action, before), 0);
}

thread_local sigjmp_buf escape;

void jump(int, siginfo_t*, void*) {
  ++foreign_faults;
  siglongjmp(escape, 1);
}

CHECK_RAW_ACCESS void fault_and_escape(const char* address) {
  if (sigsetjmp(escape, 1) == 0) {
    check::load(address);
    CHECK_FAIL("a read of inaccessible memory returned");
  }
}

struct sigaction below_theirs = {};
std::atomic<int> seen_by_theirs{0};

// A handler that was put on top of the pager's unseen, and hands on what it does not want.
void hand_on(int signal_number, siginfo_t* info, void* context) {
  ++seen_by_theirs;
  if ((below_theirs.sa_flags & SA_SIGINFO) != 0) {
    below_theirs.sa_sigaction(signal_number, info, context);
  } else {
    signal(signal_number, SIG_DFL);
  }
}

}  // namespace

CASE(read) {
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  CHECK_EQ(reclaim(pager), block_bytes);
  CHECK(holds(block, block_bytes, 1));
  CHECK_EQ(statistic(pager, "faults"), 1);
  CHECK_EQ(statistic(pager, "in.blocks"), 1);
  CHECK_EQ(statistic(pager, "clean_bytes.current"), block_bytes);
}

CASE(write_to_away_block) {
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  reclaim(pager);
  check::store(block + 4096, 42);
  CHECK_EQ(check::load(block + 4096), 42);
  CHECK_EQ(check::load(block), check::pattern_at(1, 0));
  CHECK_EQ(check::load(block + 4104), check::pattern_at(1, 513));
  CHECK_EQ(reclaim(pager), block_bytes);
  CHECK_EQ(check::load(block + 4096), 42);
}

CASE(write_to_clean_block) {
  // A write that nothing announced to a block whose copy is in the store: the copy must not come back.
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  reclaim(pager);
  touch(pager, block);  // resident and clean
  CHECK_EQ(statistic(pager, "clean_bytes.current"), block_bytes);
  check::store(block, 42);
  CHECK_EQ(statistic(pager, "faults"), 1);
  CHECK_EQ(statistic(pager, "clean_bytes.current"), 0);
  CHECK_EQ(statistic(pager, "store_bytes.current"), 0);
  check::store(block + 8, 43);
  CHECK_EQ(statistic(pager, "faults"), 1);  // only the first one faults
  const std::uint64_t out = statistic(pager, "out.bytes");
  CHECK_EQ(reclaim(pager), block_bytes);
  CHECK_EQ(statistic(pager, "out.bytes"), out + block_bytes);
  CHECK_EQ(check::load(block), 42);
  CHECK_EQ(check::load(block + 8), 43);
  CHECK_EQ(check::load(block + 16), check::pattern_at(1, 2));
}

CASE(clean_block_leaves_without_a_copy) {
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  reclaim(pager);
  touch(pager, block);
  const std::uint64_t out = statistic(pager, "out.bytes");
  CHECK_EQ(reclaim(pager), block_bytes);
  CHECK_EQ(statistic(pager, "out.bytes"), out);
  CHECK_EQ(statistic(pager, "clean_drop.bytes"), block_bytes);
  CHECK(holds(block, block_bytes, 1));
}

CASE(copy_between_two_away_blocks) {
  // The limit has room for one of them only: the copy must end all the same.
  lms_pager* pager = create(options(block_bytes));
  char* from = filled(pager, block_bytes, 1);
  char* to = filled(pager, block_bytes, 2);
  for (std::uint64_t round = 0; round < 50; ++round) {
    reclaim(pager);
    check::copy(to, from, block_bytes);
    CHECK(holds(to, block_bytes, 1));
    check::fill(to, block_bytes, round);
    reclaim(pager);
    std::memcpy(to, from, block_bytes);  // the library's, which reads ahead and in both directions
    CHECK(holds(from, block_bytes, 1));
    CHECK(holds(to, block_bytes, 1));
  }
}

CASE(eight_threads_fault_at_once) {
  lms_pager* pager = create(options(4 * block_bytes));
  constexpr int threads = 8;
  constexpr std::uint64_t each = 16;  // together too many for a loop that is noticed
  char* blocks[threads][each];
  for (int thread = 0; thread < threads; ++thread) {
    for (std::uint64_t i = 0; i < each; ++i) {
      blocks[thread][i] = filled(pager, block_bytes, static_cast<std::uint64_t>(thread) * each + i);
    }
  }
  const std::uint64_t rounds = check::steps(400);
  std::vector<std::thread> running;
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      for (std::uint64_t round = 0; round < rounds; ++round) {
        const std::uint64_t i = round % each;
        CHECK(holds(blocks[thread][i], block_bytes, static_cast<std::uint64_t>(thread) * each + i));
        check::fill(blocks[thread][i], block_bytes, static_cast<std::uint64_t>(thread) * each + i);
      }
    });
  }
  for (std::thread& thread : running) {
    thread.join();
  }
  CHECK(statistic(pager, "faults") > rounds);
}

CASE(eight_threads_copy_at_once) {
  // Each needs two blocks at a time, and there is room for one block: all of them must get on.
  lms_pager* pager = create(options(block_bytes));
  constexpr int threads = 8;
  char* from[threads];
  char* to[threads];
  for (std::uint64_t thread = 0; thread < threads; ++thread) {
    from[thread] = filled(pager, block_bytes, thread);
    to[thread] = filled(pager, block_bytes, 100);
  }
  const std::uint64_t rounds = check::steps(400);
  std::vector<std::thread> running;
  for (std::uint64_t thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      for (std::uint64_t round = 0; round < rounds; ++round) {
        check::copy(to[thread], from[thread], block_bytes);
        CHECK(holds(to[thread], block_bytes, thread));
        check::fill(to[thread], block_bytes, round);
      }
    });
  }
  for (std::thread& thread : running) {
    thread.join();
  }
}

// Reads and writes a little of each block in turn, as a kernel does that goes through several tensors.
CHECK_RAW_ACCESS void loop_over(const std::vector<char*>& blocks, std::uint64_t rounds) {
  for (std::uint64_t round = 0; round < rounds; ++round) {
    for (char* block : blocks) {
      check::store(block + 8 * round, check::load(block + 8 * round) + 1);
    }
  }
}

void check_loop(const std::vector<char*>& blocks, std::uint64_t rounds) {
  for (std::uint64_t block = 0; block < blocks.size(); ++block) {
    for (std::uint64_t word = 0; word < rounds; ++word) {
      CHECK_EQ(check::load(blocks[block] + 8 * word), check::pattern_at(block, word) + 1);
    }
  }
}

// The results of operations, perhaps within another one.
std::vector<char*> results(lms_pager* pager, std::uint64_t count) {
  std::vector<char*> blocks;
  for (std::uint64_t i = 0; i < count; ++i) {
    lms_scope_begin(pager);
    blocks.push_back(filled(pager, block_bytes, i));
    lms_scope_end(pager);
  }
  return blocks;
}

CASE(blocks_of_an_operation) {
  // What its kernel has allocated for itself does not leave at all.
  lms_pager* pager = create(options(2 * block_bytes));
  lms_scope_begin(pager);
  std::vector<char*> blocks;
  for (std::uint64_t i = 0; i < 6; ++i) {
    blocks.push_back(filled(pager, block_bytes, i));
  }
  CHECK_EQ(statistic(pager, "out.blocks"), 0);
  CHECK_EQ(statistic(pager, "over_limit_bytes.peak"), 4 * block_bytes);
  loop_over(blocks, 50);
  lms_scope_end(pager);
  CHECK_EQ(statistic(pager, "in.blocks"), 0);
  CHECK_EQ(statistic(pager, "resident_bytes.current"), 2 * block_bytes);
  check_loop(blocks, 50);
}

CASE(what_the_innermost_operation_got) {
  // It uses that itself, unseen: it stays until that operation is over, when it is a result like others.
  lms_pager* pager = create(options(2 * block_bytes));
  lms_scope_begin(pager);
  char* outer = results(pager, 1)[0];
  lms_scope_begin(pager);
  char* inner = results(pager, 1)[0];
  filled(pager, block_bytes, 1);
  CHECK_EQ(statistic(pager, "out.blocks"), 1);
  filled(pager, block_bytes, 2);
  CHECK_EQ(statistic(pager, "out.blocks"), 1);
  CHECK_EQ(statistic(pager, "over_limit_bytes.peak"), block_bytes);
  CHECK(holds(inner, block_bytes, 0));
  CHECK_EQ(statistic(pager, "faults"), 0);
  lms_scope_end(pager);
  lms_scope_begin(pager);
  filled(pager, block_bytes, 3);
  CHECK(statistic(pager, "out.blocks") > 1);
  CHECK(holds(inner, block_bytes, 0) && holds(outer, block_bytes, 0));
  CHECK(statistic(pager, "faults") > 0);
  lms_scope_end(pager);
  lms_scope_end(pager);
}

CASE(loop_of_an_operation) {
  lms_pager* pager = create(options(2 * block_bytes));
  lms_scope_begin(pager);
  const std::vector<char*> blocks = results(pager, 6);
  CHECK_EQ(statistic(pager, "out.blocks"), 4);
  loop_over(blocks, 50);
  CHECK(statistic(pager, "in.blocks") <= 6);  // not one of them twice
  CHECK_EQ(statistic(pager, "over_limit_bytes.peak"), 4 * block_bytes);
  lms_scope_end(pager);
  CHECK(statistic(pager, "resident_bytes.current") <= 2 * block_bytes);
  check_loop(blocks, 50);
}

CASE(loop_of_an_operation_and_its_helpers) {
  // OpenMP's threads are in no scope of their own.
  lms_pager* pager = create(options(2 * block_bytes));
  lms_scope_begin(pager);
  std::vector<std::vector<char*>> shares;
  std::vector<std::thread> helpers;
  for (int helper = 0; helper < 4; ++helper) {
    shares.push_back(results(pager, 6));
  }
  for (const std::vector<char*>& share : shares) {
    helpers.emplace_back([&share] { loop_over(share, 50); });
  }
  for (std::thread& helper : helpers) {
    helper.join();
  }
  CHECK(statistic(pager, "in.blocks") <= 24);
  lms_scope_end(pager);
  CHECK(statistic(pager, "resident_bytes.current") <= 2 * block_bytes);
  for (const std::vector<char*>& share : shares) {
    check_loop(share, 50);
  }
}

CASE(loop_outside_of_operations) {
  // A program's own: a loop over few blocks has them resident from the second round on.
  lms_pager* pager = create(options(2 * block_bytes));
  const std::vector<char*> blocks = results(pager, 6);
  loop_over(blocks, 50);
  CHECK(statistic(pager, "in.blocks") <= 2 * 6);
  CHECK_EQ(statistic(pager, "over_limit_bytes.peak"), 4 * block_bytes);
  reclaim(pager);
  CHECK_EQ(statistic(pager, "resident_bytes.current"), 0);
  check_loop(blocks, 50);
}

CASE(much_data_outside_of_operations) {
  // Going through more data than that, again and again, takes no more memory than the access needs.
  lms_pager* pager = create(options(4 * block_bytes));
  const std::vector<char*> blocks = results(pager, 200);
  loop_over(blocks, 3);
  CHECK_EQ(statistic(pager, "over_limit_bytes.peak"), 0);
  CHECK_EQ(statistic(pager, "resident_bytes.peak"), 4 * block_bytes);
  check_loop(blocks, 3);
}

CASE(threads_read_one_block_that_leaves_again_and_again) {
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  std::atomic<bool> stop{false};
  std::vector<std::thread> running;
  for (int thread = 0; thread < 3; ++thread) {
    running.emplace_back([&] {
      while (!stop.load()) {
        CHECK(holds(block, block_bytes, 1));
      }
    });
  }
  for (std::uint64_t round = 0; round < check::steps(2000); ++round) {
    reclaim(pager);
  }
  stop.store(true);
  for (std::thread& thread : running) {
    thread.join();
  }
}

CASE(unannounced_writes_beside_reclaim) {
  // One thread writes without a word what another pages out: no write may be lost.
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  constexpr std::uint64_t words = block_bytes / 8;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 0; !stop.load(); ++i) {
      check::store(block + 8 * (i % words), i);
      CHECK_EQ(check::load(block + 8 * (i % words)), i);
      if (i >= words) {
        CHECK_EQ(check::load(block + 8 * ((i + 1) % words)), i + 1 - words);
      }
    }
  });
  const std::uint64_t rounds = check::steps(2000);
  while (statistic(pager, "out.blocks") < rounds) {
    reclaim(pager);
    std::this_thread::sleep_for(std::chrono::microseconds(50));  // the mutex is not fair, and the writer needs it too
  }
  stop.store(true);
  writer.join();
}

CASE(restored_block_does_not_fault) {
  lms_pager* pager = create(options(block_bytes));
  char* first = filled(pager, block_bytes, 1);
  char* second = filled(pager, block_bytes, 2);
  CHECK_EQ(lms_restore_all(pager), LMS_OK);
  const std::uint64_t faults = statistic(pager, "faults");
  check::fill(first, block_bytes, 3);
  check::fill(second, block_bytes, 4);
  CHECK_EQ(statistic(pager, "faults"), faults);
}

CASE(handler_before_gets_foreign_faults) {
  install(mend);
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  reclaim(pager);
  char* foreign = forbidden();
  check::store(foreign + 8, 5);
  CHECK_EQ(foreign_faults.load(), 1);
  CHECK(foreign_address.load() == foreign + 8);
  CHECK_EQ(check::load(foreign + 8), 5);
  CHECK(holds(block, block_bytes, 1));
  CHECK_EQ(foreign_faults.load(), 1);
  // An address of the pager's range in which no block lives.
  void* untouched = nullptr;
  CHECK_EQ(lms_allocate(pager, 3 * block_bytes, &untouched), LMS_OK);
  lms_free(pager, untouched);
  reclaim(pager);  // drops the cached pages
  check::store(untouched, 6);
  CHECK_EQ(foreign_faults.load(), 2);
}

CASE(handler_before_may_jump_out) {
  install(jump);
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  const char* foreign = forbidden();
  for (int i = 1; i <= 3; ++i) {
    fault_and_escape(foreign);
    CHECK_EQ(foreign_faults.load(), i);
    reclaim(pager);
    CHECK(holds(block, block_bytes, 1));
  }
}

CASE(handler_before_on_many_threads) {
  install(mend);
  lms_pager* pager = create(options(block_bytes));
  char* away[4];
  for (std::uint64_t i = 0; i < 4; ++i) {
    away[i] = filled(pager, block_bytes, i);
  }
  std::vector<std::thread> running;
  const int rounds = 300;
  for (std::uint64_t thread = 0; thread < 4; ++thread) {
    running.emplace_back([&, thread] {
      char* foreign = forbidden();
      for (std::uint64_t round = 0; round < rounds; ++round) {
        check::store(foreign, round);
        CHECK(holds(away[thread], block_bytes, thread));
        CHECK_EQ(mprotect(foreign, 4096, PROT_NONE), 0);
      }
    });
  }
  for (std::thread& thread : running) {
    thread.join();
  }
  CHECK_EQ(foreign_faults.load(), 4 * rounds);
}

CASE(default_action_ends_the_process) {
  CHECK(killed_by(in_child([] {
                    use_default_action();
                    create(options(mib));
                    check::load(forbidden());
                  }),
                  SIGSEGV));
}

CASE(fault_on_freed_block_ends_the_process) {
  CHECK(killed_by(in_child([] {
                    use_default_action();
                    lms_pager* pager = create(options(mib));
                    char* block = filled(pager, block_bytes, 1);
                    reclaim(pager);
                    lms_free(pager, block);
                    check::load(block);
                  }),
                  SIGSEGV));
}

CASE(signal_that_was_sent) {
  CHECK(killed_by(in_child([] {
                    use_default_action();
                    create(options(mib));
                    raise(SIGSEGV);
                  }),
                  SIGSEGV));
  CHECK(exited_with(in_child([] {
                      signal(SIGSEGV, SIG_IGN);
                      create(options(mib));
                      raise(SIGSEGV);  // was ignored before, and is still
                      std::_Exit(7);
                    }),
                    7));
  CHECK(exited_with(in_child([] {
                      install([](int, siginfo_t*, void*) { std::_Exit(9); });
                      create(options(mib));
                      raise(SIGSEGV);
                    }),
                    9));
}

CASE(handler_on_top_hands_on) {
  const Sigaction set = unseen_sigaction();
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  reclaim(pager);
  install(hand_on, set, &below_theirs);
  CHECK(holds(block, block_bytes, 1));
  CHECK_EQ(seen_by_theirs.load(), 1);
  // The next page-out puts the pager's handler on top again; theirs is now the one before and has the pager's below it.
  reclaim(pager);
  CHECK(holds(block, block_bytes, 1));
  CHECK_EQ(seen_by_theirs.load(), 1);
  // A foreign fault ends the process instead of going round between the two for ever.
  CHECK(killed_by(in_child([] { check::load(forbidden()); }), SIGSEGV) || CHECK_SANITIZED);
}

CASE(handler_on_top_that_keeps_everything) {
  const Sigaction set = unseen_sigaction();
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  install(mend, set);
  reclaim(pager);  // installs the pager's handler again before a block leaves
  CHECK(holds(block, block_bytes, 1));
  CHECK_EQ(foreign_faults.load(), 0);
  check::store(forbidden(), 1);
  CHECK_EQ(foreign_faults.load(), 1);
}

CASE(handler_on_top_may_jump_out) {
  const Sigaction set = unseen_sigaction();
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  install(jump, set);
  const char* foreign = forbidden();
  for (int i = 1; i <= 3; ++i) {
    reclaim(pager);  // installs the pager's handler over theirs
    fault_and_escape(foreign);
    CHECK_EQ(foreign_faults.load(), i);
    CHECK(holds(block, block_bytes, 1));
  }
}

CASE(handler_after_ours_comes_behind_it) {
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  reclaim(pager);
  struct sigaction before = {};
  CHECK_EQ(sigaction(SIGSEGV, nullptr, &before), 0);
  struct sigaction theirs = {};
  theirs.sa_sigaction = mend;
  theirs.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigaddset(&theirs.sa_mask, SIGUSR1);
  struct sigaction found = {};
  CHECK_EQ(sigaction(SIGSEGV, &theirs, &found), 0);
  CHECK(found.sa_sigaction == before.sa_sigaction);
  CHECK(holds(block, block_bytes, 1));  // before anything leaves again
  CHECK_EQ(foreign_faults.load(), 0);
  check::store(forbidden(), 1);
  CHECK_EQ(foreign_faults.load(), 1);
  // What they read back is what they set, and setting what was there before ends it.
  CHECK_EQ(sigaction(SIGSEGV, &before, &found), 0);
  CHECK(found.sa_sigaction == mend);
  CHECK_EQ(found.sa_flags & (SA_SIGINFO | SA_NODEFER | SA_ONSTACK), theirs.sa_flags);
  CHECK(sigismember(&found.sa_mask, SIGUSR1) == 1);
  reclaim(pager);
  CHECK(holds(block, block_bytes, 1));
  CHECK_EQ(foreign_faults.load(), 1);
}

CASE(handler_set_by_signal) {
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  reclaim(pager);
  const auto theirs = [](int) { std::_Exit(9); };
  signal(SIGSEGV, SIG_DFL);
  CHECK(signal(SIGSEGV, theirs) == SIG_DFL);
  CHECK(holds(block, block_bytes, 1));
  CHECK(exited_with(in_child([] { check::load(forbidden()); }), 9));
  CHECK(exited_with(in_child([] { raise(SIGSEGV); }), 9));
  CHECK(signal(SIGSEGV, SIG_DFL) == theirs);
  CHECK(killed_by(in_child([] { check::load(forbidden()); }), SIGSEGV));
  CHECK(signal(SIGUSR1, theirs) == SIG_DFL);  // others are not ours
  CHECK(exited_with(in_child([] { raise(SIGUSR1); }), 9));
}

CASE(handler_that_comes_once) {
  lms_pager* pager = create(options(mib));
  filled(pager, block_bytes, 1);
  struct sigaction theirs = {};
  theirs.sa_sigaction = mend;
  theirs.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESETHAND);
  CHECK_EQ(sigaction(SIGSEGV, &theirs, nullptr), 0);
  check::store(forbidden(), 1);
  CHECK_EQ(foreign_faults.load(), 1);
  struct sigaction found = {};
  CHECK_EQ(sigaction(SIGSEGV, nullptr, &found), 0);
  CHECK(found.sa_handler == SIG_DFL);
  CHECK(killed_by(in_child([] { check::load(forbidden()); }), SIGSEGV));
}

CASE(handler_in_which_the_signal_is_blocked) {
  lms_pager* pager = create(options(mib));
  filled(pager, block_bytes, 1);
  static sigset_t inside;
  struct sigaction theirs = {};
  theirs.sa_sigaction = [](int signal_number, siginfo_t* info, void* context) {
    pthread_sigmask(SIG_SETMASK, nullptr, &inside);
    mend(signal_number, info, context);
  };
  theirs.sa_flags = SA_SIGINFO;
  sigaddset(&theirs.sa_mask, SIGUSR1);
  CHECK_EQ(sigaction(SIGSEGV, &theirs, nullptr), 0);
  check::store(forbidden(), 1);
  CHECK(sigismember(&inside, SIGSEGV) == 1 && sigismember(&inside, SIGUSR1) == 1);
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  CHECK(sigismember(&after, SIGSEGV) == 0 && sigismember(&after, SIGUSR1) == 0);
}

CASE(handler_of_a_child_by_vfork_is_its_own) {
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  reclaim(pager);
  install(mend);
  const pid_t child = vfork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    _exit(0);
  }
  CHECK_EQ(waitpid(child, nullptr, 0), child);
  check::store(forbidden(), 1);
  CHECK_EQ(foreign_faults.load(), 1);
  CHECK(holds(block, block_bytes, 1));
}

CASE(blocked_by_the_program) {
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  sigset_t all;
  sigfillset(&all);
  using Set = int (*)(int, const sigset_t*, sigset_t*);
  const Set of_the_thread = [](int how, const sigset_t* set, sigset_t* before) {
    return pthread_sigmask(how, set, before);
  };
  const Set of_the_process = [](int how, const sigset_t* set, sigset_t* before) {
    return sigprocmask(how, set, before);
  };
  for (const Set set : {of_the_thread, of_the_process}) {
    for (const int how : {SIG_BLOCK, SIG_SETMASK}) {
      std::thread([&] {
        CHECK_EQ(set(how, &all, nullptr), 0);
        sigset_t found;
        CHECK_EQ(set(SIG_BLOCK, nullptr, &found), 0);
        CHECK(sigismember(&found, SIGTERM) == 1 && sigismember(&found, SIGSEGV) == 0);
        reclaim(pager);
        CHECK(holds(block, block_bytes, 1));
        CHECK_EQ(set(SIG_UNBLOCK, &all, nullptr), 0);
        CHECK_EQ(set(SIG_BLOCK, nullptr, &found), 0);
        CHECK_EQ(sigismember(&found, SIGTERM), 0);
      }).join();
    }
  }
}

CASE(blocked_in_a_handler_of_another_signal) {
  static char* block = nullptr;
  lms_pager* pager = create(options(mib));
  block = filled(pager, block_bytes, 1);
  reclaim(pager);
  struct sigaction theirs = {};
  theirs.sa_handler = [](int) { CHECK(holds(block, block_bytes, 1)); };
  sigfillset(&theirs.sa_mask);
  CHECK_EQ(sigaction(SIGUSR1, &theirs, nullptr), 0);
  raise(SIGUSR1);
  CHECK_EQ(statistic(pager, "faults"), 1);
}

CASE(on_an_alternate_stack) {
  std::thread([] {
    std::vector<char> memory(256 * kib);
    stack_t alternate = {};
    alternate.ss_sp = memory.data();
    alternate.ss_size = memory.size();
    CHECK_EQ(sigaltstack(&alternate, nullptr), 0);
    lms_pager* pager = create(options(mib));
    char* block = filled(pager, block_bytes, 1);
    reclaim(pager);
    CHECK(holds(block, block_bytes, 1));
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    CHECK_EQ(sigaltstack(&none, nullptr), 0);
  }).join();
}

CASE(two_pagers) {
  lms_pager* first = create(options(mib));
  lms_pager* second = create(options(mib));
  char* one = filled(first, block_bytes, 1);
  char* two = filled(second, block_bytes, 2);
  CHECK(!lms_owns(first, two) && !lms_owns(second, one));
  CHECK(lms_owner(one) == first && lms_owner(two + block_bytes - 1) == second);
  CHECK(lms_owner(&first) == nullptr && lms_owner(nullptr) == nullptr);
  reclaim(first);
  reclaim(second);
  CHECK(holds(one, block_bytes, 1));
  CHECK(holds(two, block_bytes, 2));
  CHECK_EQ(statistic(first, "faults"), 1);
  CHECK_EQ(statistic(second, "faults"), 1);
}

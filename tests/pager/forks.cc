// After a fork parent and child have the same blocks, and neither sees what the other does to them.
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
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
using check::pin;
using check::Random;
using check::reclaim;
using check::statistic;
using check::touch;

namespace {

constexpr std::uint64_t block_bytes = 64 * kib;

struct Owned {
  char* address;
  std::uint64_t seed;
};

// Fifteen blocks: five dirty, five clean, five away.
std::vector<Owned> mixed_blocks(lms_pager* pager) {
  std::vector<Owned> blocks;
  for (std::uint64_t i = 0; i < 15; ++i) {
    blocks.push_back(Owned{filled(pager, block_bytes, i), i});
  }
  CHECK_EQ(reclaim(pager), 15 * block_bytes);
  for (std::uint64_t i = 0; i < 15; ++i) {
    if (i % 3 != 2) {
      touch(pager, blocks[i].address, i % 3 == 0);
    }
  }
  CHECK_EQ(statistic(pager, "clean_bytes.current"), 5 * block_bytes);
  CHECK_EQ(statistic(pager, "away_bytes.current"), 5 * block_bytes);
  return blocks;
}

void check_all(const std::vector<Owned>& blocks) {
  for (const Owned& block : blocks) {
    CHECK(holds(block.address, block_bytes, block.seed));
  }
}

// One process's life after the fork: everything that moves, frees and allocates, with contents of its own.
void live(lms_pager* pager, std::vector<Owned> blocks, std::uint64_t salt) {
  Random random(check::seed() + salt);
  for (std::uint64_t round = 0; round < 30; ++round) {
    check_all(blocks);
    for (Owned& block : blocks) {
      const std::uint64_t what = random.below(5);
      if (what == 0) {
        const lms_pin_token token = pin(pager, block.address, true);
        block.seed = random.next();
        check::fill(block.address, block_bytes, block.seed);
        lms_unpin(pager, token);
      } else if (what == 1) {
        block.seed = random.next();
        check::fill(block.address, block_bytes, block.seed);  // without a word
      } else if (what == 2) {
        lms_free(pager, block.address);
        block.seed = random.next();
        block.address = filled(pager, block_bytes, block.seed);
      } else if (what == 3) {
        touch(pager, block.address);
      }
    }
    reclaim(pager, random.chance(50) ? UINT64_MAX : 4 * block_bytes);
  }
  check_all(blocks);
  for (const Owned& block : blocks) {
    lms_free(pager, block.address);
  }
  CHECK_EQ(statistic(pager, "allocated_blocks.current"), 0);
  CHECK_EQ(statistic(pager, "store_bytes.current"), 0);
}

void wait_for(pid_t child) {
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

pid_t checked_fork() {
  std::fflush(nullptr);
  const pid_t child = fork();
  CHECK(child >= 0);
  return child;
}

void independence(const char* store) {
  check::seed();
  lms_pager* pager = create(options(mib, "lru", store));
  std::vector<Owned> blocks = mixed_blocks(pager);
  const pid_t child = checked_fork();
  if (child == 0) {
    const pid_t grandchild = checked_fork();
    live(pager, blocks, grandchild == 0 ? 1 : 2);
    if (grandchild != 0) {
      wait_for(grandchild);
    }
    std::_Exit(0);
  }
  live(pager, blocks, 3);
  wait_for(child);
}

// Bytes on disk of the deleted files that this process holds open.
std::uint64_t deleted_file_bytes() {
  std::uint64_t sum = 0;
  for (int file = 3; file < check::descriptors; ++file) {
    struct stat status = {};
    if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 0) {
      sum += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
  }
  return sum;
}

void forks_while_threads_page(const char* policy, const char* store, int forks) {
  check::seed();
  lms_pager* pager = create(options(4 * block_bytes, policy, store));
  constexpr std::uint64_t threads = 3;
  std::vector<Owned> blocks;
  for (std::uint64_t i = 0; i < 4 * threads; ++i) {
    blocks.push_back(Owned{filled(pager, block_bytes, i), i});
  }
  std::vector<Owned> mine;  // the forking thread's
  for (std::uint64_t i = 0; i < 3; ++i) {
    mine.push_back(Owned{filled(pager, block_bytes, 100 + i), 100 + i});
  }
  std::atomic<bool> stop{false};
  std::vector<std::thread> running;
  for (std::uint64_t thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      for (std::uint64_t round = 0; !stop.load(); ++round) {
        const Owned& block = blocks[thread * 4 + round % 4];
        lms_scope_begin(pager);
        const lms_pin_token token = pin(pager, block.address, true);
        CHECK(holds(block.address, block_bytes, block.seed));
        check::fill(block.address, block_bytes, block.seed);
        char* temporary = allocate(pager, block_bytes);
        check::store(temporary, round);
        lms_unpin(pager, token);
        lms_scope_end(pager);
        lms_free(pager, temporary);
      }
    });
  }
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < forks; ++i) {
    const pid_t child = checked_fork();
    if (child == 0) {
      check_all(mine);
      for (Owned& block : mine) {
        block.seed = 7;
        check::fill(block.address, block_bytes, block.seed);
      }
      reclaim(pager);
      check_all(mine);
      lms_free(pager, allocate(pager, block_bytes));
      std::_Exit(0);
    }
    check_all(mine);
    wait_for(child);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%.1f ms per fork\n", seconds.count() * 1000 / forks);
  stop.store(true);
  for (std::thread& thread : running) {
    thread.join();
  }
  check_all(blocks);
  CHECK(statistic(pager, "out.blocks") > 50);
}

// A training loop: the same blocks in the same order, twice what the limit holds.
void iterate(lms_pager* pager, std::vector<Owned>* blocks, int iterations) {
  for (int iteration = 0; iteration < iterations; ++iteration) {
    for (Owned& block : *blocks) {
      lms_scope_begin(pager);
      const lms_pin_token token = pin(pager, block.address, true);
      CHECK(holds(block.address, block_bytes, block.seed));
      ++block.seed;
      check::fill(block.address, block_bytes, block.seed);
      char* temporary = allocate(pager, block_bytes);
      check::store(temporary, block.seed);
      touch(pager, temporary, true);
      lms_unpin(pager, token);
      lms_scope_end(pager);
      lms_free(pager, temporary);
    }
  }
}

}  // namespace

CASE(independence_memory) { independence(nullptr); }

CASE(independence_file) { independence(check::directory().c_str()); }

CASE(store_of_an_ended_parent) {
  // The child outlives its parent and still reads what the parent wrote.
  int parent_ended[2];
  int result[2];
  CHECK_EQ(pipe(parent_ended), 0);
  CHECK_EQ(pipe(result), 0);
  const pid_t parent = checked_fork();
  if (parent == 0) {
    lms_pager* pager = create(options(mib, "lru", check::directory().c_str()));
    const std::vector<Owned> blocks = mixed_blocks(pager);
    reclaim(pager);
    if (checked_fork() == 0) {
      char byte = 0;
      CHECK_EQ(read(parent_ended[0], &byte, 1), 1);
      check_all(blocks);
      CHECK_EQ(write(result[1], "k", 1), 1);
    }
    std::_Exit(0);
  }
  wait_for(parent);
  CHECK_EQ(close(result[1]), 0);
  CHECK_EQ(write(parent_ended[1], "x", 1), 1);
  char byte = 0;
  CHECK_EQ(read(result[0], &byte, 1), 1);  // 0 when the child ended without its result
}

CASE(scopes_of_other_threads_end_in_the_child) {
  lms_pager* pager = create(options(mib));
  std::atomic<char*> block{nullptr};
  std::atomic<bool> stop{false};
  std::thread other([&] {
    lms_scope_begin(pager);
    block.store(filled(pager, block_bytes, 1));
    while (!stop.load()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    lms_scope_end(pager);
  });
  while (block.load() == nullptr) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK_EQ(statistic(pager, "protected_bytes.current"), block_bytes);
  const pid_t child = checked_fork();
  if (child == 0) {
    CHECK_EQ(statistic(pager, "protected_bytes.current"), 0);
    CHECK_EQ(reclaim(pager), block_bytes);
    CHECK(holds(block.load(), block_bytes, 1));
    std::_Exit(0);
  }
  wait_for(child);
  CHECK_EQ(reclaim(pager), 0);
  stop.store(true);
  other.join();
  CHECK_EQ(reclaim(pager), block_bytes);
}

CASE(own_scope_goes_on_in_the_child) {
  lms_pager* pager = create(options(mib));
  lms_scope_begin(pager);
  char* block = filled(pager, block_bytes, 1);
  const pid_t child = checked_fork();
  CHECK_EQ(reclaim(pager), 0);
  lms_scope_end(pager);
  CHECK_EQ(reclaim(pager), block_bytes);
  CHECK(holds(block, block_bytes, 1));
  if (child == 0) {
    std::_Exit(0);
  }
  wait_for(child);
}

CASE(two_hundred_forks_memory) { forks_while_threads_page("lru", nullptr, CHECK_SANITIZED ? 40 : 200); }

CASE(two_hundred_forks_file) {
  forks_while_threads_page("iteration", check::directory().c_str(), CHECK_SANITIZED ? 40 : 200);
}

CASE(forks_beside_cached_allocations) {
  // The child finds the cache whole: every block in it can be taken once.
  constexpr std::uint64_t sizes = 4;
  lms_pager* pager = create(options(256 * mib));
  std::atomic<bool> stop{false};
  std::vector<std::thread> running;
  for (int thread = 0; thread < 3; ++thread) {
    running.emplace_back([&] {
      char* blocks[sizes] = {};
      for (std::uint64_t round = 0; !stop.load(); ++round) {
        char*& block = blocks[round % sizes];
        if (block != nullptr) {
          lms_free(pager, block);
        }
        block = allocate(pager, (1 + round % sizes) * block_bytes);
      }
      for (char* block : blocks) {
        if (block != nullptr) {
          lms_free(pager, block);
        }
      }
    });
  }
  for (int i = 0; i < (CHECK_SANITIZED ? 30 : 150); ++i) {
    const pid_t child = checked_fork();
    if (child == 0) {
      std::vector<char*> taken;
      for (std::uint64_t round = 0; round < 16; ++round) {
        taken.push_back(allocate(pager, (1 + round % sizes) * block_bytes));
      }
      std::sort(taken.begin(), taken.end());
      CHECK(std::adjacent_find(taken.begin(), taken.end()) == taken.end());
      for (char* block : taken) {
        lms_free(pager, block);
      }
      reclaim(pager);
      CHECK_EQ(statistic(pager, "cached_bytes.current"), 0);
      // What another thread was taking or freeing at that moment is lost in the child: a block a thread at most.
      const std::uint64_t device = statistic(pager, "device_bytes.current");
      const std::uint64_t resident = statistic(pager, "resident_bytes.current");
      CHECK(device <= resident + 3 * sizes * block_bytes && resident <= device + 3 * sizes * block_bytes);
      std::_Exit(0);
    }
    wait_for(child);
  }
  stop.store(true);
  for (std::thread& thread : running) {
    thread.join();
  }
  CHECK_EQ(statistic(pager, "allocated_blocks.current"), 0);
  CHECK_EQ(statistic(pager, "allocated_bytes.current"), 0);
}

CASE(forks_do_not_fill_the_disk) {
  // One block stays away from before each fork: its segment can neither be written nor dropped.
  lms_pager* pager = create(options(mib, "lru", check::directory().c_str()));
  std::vector<Owned> blocks;
  std::uint64_t first = 0;
  for (std::uint64_t i = 0; i < 24; ++i) {
    blocks.push_back(Owned{filled(pager, block_bytes, i), i});
    reclaim(pager);
    first = std::max(first, i == 0 ? deleted_file_bytes() : 0);
    const pid_t child = checked_fork();
    if (child == 0) {
      std::_Exit(0);
    }
    wait_for(child);
  }
  const std::uint64_t bytes = deleted_file_bytes();
  std::printf("%llu MiB on disk for %llu MiB away\n", static_cast<unsigned long long>(bytes / mib),
              static_cast<unsigned long long>(statistic(pager, "away_bytes.current") / mib));
  CHECK(first > 0);
  CHECK(bytes <= 24 * first);
  check_all(blocks);
}

CASE(with_the_worker) {
  lms_pager* pager = create(options(12 * block_bytes, "iteration"));
  std::vector<Owned> blocks;
  for (std::uint64_t i = 0; i < 24; ++i) {
    blocks.push_back(Owned{filled(pager, block_bytes, i * 1000), i * 1000});
  }
  iterate(pager, &blocks, 12);
  for (int round = 0; round < 10; ++round) {
    const pid_t child = checked_fork();
    if (child == 0) {
      iterate(pager, &blocks, 6);
      check_all(blocks);
      lms_shutdown(pager);
      check_all(blocks);
      std::_Exit(0);
    }
    iterate(pager, &blocks, 2);
    wait_for(child);
  }
  std::printf("prefetched %llu, used %llu, foreseen %llu\n",
              static_cast<unsigned long long>(statistic(pager, "prefetch.blocks")),
              static_cast<unsigned long long>(statistic(pager, "prefetch.hits")),
              static_cast<unsigned long long>(statistic(pager, "policy.foreseen")));
  CHECK(statistic(pager, "prefetch.blocks") > 0);
  lms_shutdown(pager);
  check_all(blocks);
}

// Threads that use one pager at once: blocks of their own, blocks that all of them pin, blocks that one thread
// allocates and another frees, while a third reclaims and changes the limit and a fourth reads statistics. Contents are
// compared at every use.
#include <atomic>
#include <deque>
#include <mutex>
#include <thread>

#include "check.h"

namespace {

using check::kib;
using check::mib;
using check::Random;

constexpr int workers = 4;
constexpr std::uint64_t shared_blocks = 12;
constexpr std::uint64_t own_blocks = 16;

// Blocks on their way from the thread that filled them to the one that frees them.
class Mailbox {
 public:
  struct Letter {
    char* address;
    std::uint64_t bytes;
    std::uint64_t seed;
  };

  void send(const Letter& letter) {
    const std::lock_guard<std::mutex> guard(lock_);
    letters_.push_back(letter);
  }
  bool receive(Letter* letter) {
    const std::lock_guard<std::mutex> guard(lock_);
    if (letters_.empty()) {
      return false;
    }
    *letter = letters_.front();
    letters_.pop_front();
    return true;
  }

 private:
  std::mutex lock_;
  std::deque<Letter> letters_;
};

struct Shared {
  std::mutex lock;  // held to write, and to read what may be written
  char* address = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t seed = 0;
  bool constant = false;  // never written after the start: read without the lock
};

class Stress {
 public:
  Stress(const lms_options& options, std::uint64_t steps) : pager_(check::create(options)), steps_(steps) {}

  void run() {
    Random random(check::seed());
    for (std::uint64_t i = 0; i < shared_blocks; ++i) {
      Shared& shared = shared_[i];
      shared.bytes = size(&random);
      shared.seed = random.next();
      shared.constant = i % 2 == 0;
      shared.address = check::filled(pager_, shared.bytes, shared.seed);
    }
    std::vector<std::thread> threads;
    for (int index = 0; index < workers; ++index) {
      threads.emplace_back([this, index] {
        work(static_cast<std::uint64_t>(index));
        --running_;
      });
    }
    std::thread reclaimer([this] { reclaim(); });
    std::thread reader([this] { read_statistics(); });
    for (std::thread& thread : threads) {
      thread.join();
    }
    reclaimer.join();
    reader.join();
    finish();
  }

 private:
  static std::uint64_t size(Random* random) {
    static constexpr std::uint64_t sizes[] = {4 * kib, 16 * kib, 64 * kib, 68 * kib, 200 * kib};
    return sizes[random->below(5)];
  }

  // False when a strict limit refused it.
  bool pin(const void* address, bool write, lms_pin_token* token) {
    const lms_status status = lms_pin(pager_, address, write ? 1 : 0, token);
    CHECK(status == LMS_OK || status == LMS_OUT_OF_MEMORY);
    CHECK((status == LMS_OK) == (token->block != nullptr));
    return status == LMS_OK;
  }

  struct Own {
    char* address = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t seed = 0;
  };

  void work(std::uint64_t index) {
    Random random(check::seed() + 1000 * (index + 1));
    Own own[own_blocks];
    for (std::uint64_t step = 0; step < steps_; ++step) {
      const std::uint64_t what = random.below(100);
      Own& mine = own[random.below(own_blocks)];
      const bool in_scope = random.chance(50);
      if (in_scope) {
        lms_scope_begin(pager_);
      }
      if (what < 20) {
        replace(&mine, &random);
      } else if (what < 50) {
        use(&mine, &random);
      } else if (what < 55) {
        use_raw(&mine, &random);
      } else if (what < 85) {
        use_shared(&random);
      } else if (what < 92) {
        send(index, &random);
      } else {
        receive(index, &random);
      }
      if (in_scope) {
        lms_scope_end(pager_);
      }
    }
    for (Own& mine : own) {
      if (mine.address != nullptr) {
        lms_pin_token token;
        if (pin(mine.address, false, &token)) {
          CHECK(check::holds(mine.address, mine.bytes, mine.seed));
        }
        lms_free(pager_, mine.address);
      }
    }
  }

  void replace(Own* mine, Random* random) {
    if (mine->address != nullptr) {
      lms_free(pager_, mine->address);
      mine->address = nullptr;
    }
    mine->bytes = size(random);
    void* address = nullptr;
    const lms_status status = lms_allocate(pager_, mine->bytes, &address);
    CHECK(status == LMS_OK || status == LMS_OUT_OF_MEMORY);
    if (status == LMS_OK) {
      mine->address = static_cast<char*>(address);
      mine->seed = random->next();
      check::fill(mine->address, mine->bytes, mine->seed);
      lms_mark_seen(pager_, mine->address);
    }
  }

  void use(Own* mine, Random* random) {
    lms_pin_token token;
    const bool write = random->chance(50);
    if (mine->address == nullptr || !pin(mine->address, write, &token)) {
      return;
    }
    CHECK(check::holds(mine->address, mine->bytes, mine->seed));
    if (write) {
      mine->seed = random->next();
      check::fill(mine->address, mine->bytes, mine->seed);
    }
    lms_unpin(pager_, token);
  }

  void use_raw(Own* mine, Random* random) {
    if (mine->address == nullptr) {
      return;
    }
    CHECK(check::holds(mine->address, mine->bytes, mine->seed));
    mine->seed = random->next();
    check::fill(mine->address, mine->bytes, mine->seed);
    CHECK(check::holds(mine->address, mine->bytes, mine->seed));
  }

  void use_shared(Random* random) {
    Shared& shared = shared_[random->below(shared_blocks)];
    lms_pin_token token;
    if (shared.constant) {
      const bool raw = random->chance(10);
      if (raw || pin(shared.address, false, &token)) {
        CHECK(check::holds(shared.address, shared.bytes, shared.seed));
        if (!raw) {
          lms_unpin(pager_, token);
        }
      }
      return;
    }
    const bool write = random->chance(40);
    if (!pin(shared.address, write, &token)) {  // before the lock: pins of several threads overlap
      return;
    }
    {
      const std::lock_guard<std::mutex> guard(shared.lock);
      CHECK(check::holds(shared.address, shared.bytes, shared.seed));
      if (write) {
        shared.seed = random->next();
        check::fill(shared.address, shared.bytes, shared.seed);
      }
    }
    lms_unpin(pager_, token);
  }

  void send(std::uint64_t index, Random* random) {
    void* address = nullptr;
    const std::uint64_t bytes = size(random);
    if (lms_allocate(pager_, bytes, &address) != LMS_OK) {
      return;
    }
    const Mailbox::Letter letter = {static_cast<char*>(address), bytes, random->next()};
    check::fill(address, bytes, letter.seed);
    lms_pin_token token;
    CHECK(pin(address, true, &token));  // it is resident
    boxes_[(index + 1) % workers].send(letter);
    lms_unpin(pager_, token);  // perhaps after the receiver has freed it
  }

  void receive(std::uint64_t index, Random* random) {
    Mailbox::Letter letter;
    if (!boxes_[index].receive(&letter)) {
      return;
    }
    lms_pin_token token;
    if (random->chance(60) && pin(letter.address, false, &token)) {
      CHECK(check::holds(letter.address, letter.bytes, letter.seed));
      if (random->chance(50)) {
        lms_unpin(pager_, token);
        token.block = nullptr;
      }
      lms_free(pager_, letter.address);
      lms_unpin(pager_, token);
    } else {
      lms_free(pager_, letter.address);
    }
  }

  void reclaim() {
    Random random(check::seed() + 77);
    while (running_.load() > 0) {
      std::uint64_t reclaimed = 0;
      CHECK_EQ(lms_reclaim(pager_, random.chance(20) ? UINT64_MAX : random.below(mib), &reclaimed), LMS_OK);
      if (random.chance(30)) {
        CHECK_EQ(lms_set_limit(pager_, random.below(3 * mib)), LMS_OK);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(500)));
    }
  }

  void read_statistics() {
    std::uint64_t values[128];
    while (running_.load() > 0) {
      CHECK(lms_statistics(pager_, values, 128) > 0);
      // Taken while everything moves they need not agree with each other, but each is a number that can be.
      CHECK(check::statistic(pager_, "allocated_blocks.current") < 10000);
      CHECK(check::statistic(pager_, "cached_bytes.current") < 256 * mib);
      CHECK(lms_owns(pager_, shared_[0].address));
      lms_reset_peaks(pager_);
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  }

  void finish() {
    for (Mailbox& box : boxes_) {
      Mailbox::Letter letter;
      while (box.receive(&letter)) {
        CHECK(check::holds(letter.address, letter.bytes, letter.seed));
        lms_free(pager_, letter.address);
      }
    }
    CHECK_EQ(lms_restore_all(pager_), LMS_OK);
    for (Shared& shared : shared_) {
      CHECK(check::holds(shared.address, shared.bytes, shared.seed));
      lms_free(pager_, shared.address);
    }
    CHECK_EQ(check::statistic(pager_, "allocated_blocks.current"), 0);
    CHECK_EQ(check::statistic(pager_, "resident_bytes.current"), 0);
    CHECK_EQ(check::statistic(pager_, "away_bytes.current"), 0);
    CHECK_EQ(check::statistic(pager_, "store_bytes.current"), 0);
    lms_shutdown(pager_);
    CHECK_EQ(check::statistic(pager_, "device_bytes.current"), 0);
    const std::uint64_t out = check::statistic(pager_, "out.blocks");
    const std::uint64_t in = check::statistic(pager_, "in.blocks");
    std::printf("out %llu, in %llu\n", static_cast<unsigned long long>(out), static_cast<unsigned long long>(in));
    CHECK(out > steps_ / 20 && in > steps_ / 20);
  }

  lms_pager* const pager_;
  const std::uint64_t steps_;
  std::atomic<int> running_{workers};
  Shared shared_[shared_blocks];
  Mailbox boxes_[workers];
};

void stress(const char* policy, bool file, bool strict) {
  const std::string directory = check::directory();
  Stress(check::options(mib, policy, file ? directory.c_str() : nullptr, strict, 256 * mib), check::steps(40000)).run();
}

}  // namespace

CASE(lru_memory) { stress("lru", false, false); }

CASE(iteration_file) { stress("iteration", true, false); }

CASE(strict_memory) { stress("iteration", false, true); }

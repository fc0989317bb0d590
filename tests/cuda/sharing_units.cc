// Several processes that share the memory of a simulated CUDA device, whose driver refuses what others have.
#include <array>
#include <atomic>
#include <cstdlib>

#include "pager_rig.h"
#include "processes.h"

using check::board;
using check::expect_success;
using check::mib;
using check::process;
using check::wait_until;
using lms::Pager;
using lms::Pin;
using lms::StreamId;

extern "C" {
int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes);
int cuMemFree_v2(std::uint64_t address);
int cuMemGetInfo_v2(std::size_t* free, std::size_t* total);
}

namespace {

constexpr std::uint64_t memory = 256 * mib;
constexpr std::uint64_t block_bytes = 8 * mib;
constexpr std::uint64_t blocks = memory / block_bytes;  // a program's own

// Each process has a driver of its own, which reads these when it is first used.
void share_the_device() {
  check::meet();
  setenv("SIM_CUDA_SHARED", (check::directory() + "/device").c_str(), 1);
  setenv("SIM_CUDA_MEMORY", std::to_string(memory).c_str(), 1);
}

// A program that works on as many blocks as the whole device has room for.
class Work : public rig::Program {
 public:
  Work(const char* terms, std::uint64_t limit, std::uint64_t seed) : Program(2), random_(seed) {
    lms::Settings settings;
    settings.limit = limit;
    settings.policy = "lru";
    settings.shared = true;
    settings.share = terms;
    pager = rig::make_pager(settings);
    users_ = rig::users_of(*this, pager);
    for (std::uint64_t index = 0; index < blocks; ++index) {
      items_.push_back(Item{nullptr, 0});
      make(&items_.back());
    }
    sim_drain();  // a device would not leave it undone
  }

  // Most steps read a block; some write it, and some free it and make another.
  void step() {
    Item& item = items_[random_.below(items_.size())];
    const unsigned stream = static_cast<unsigned>(random_.below(2));
    pager->begin_scope();
    Pin pin;
    const bool writes = random_.chance(30);
    const lms::Status status = pager->pin(item.address, writes, &pin, users_[stream]);
    if (!status.ok()) {
      CHECK_FAIL("pin: %s", status.message.c_str());
    }
    wait_for(stream, &item);
    read(stream, item.address, block_bytes, item.seed);
    if (writes) {
      item.seed = random_.next();
      write(stream, item.address, block_bytes, item.seed);
    }
    pager->unpin(pin, users_[stream]);
    pager->end_scope(users_[stream]);
    if (random_.chance(10)) {
      pager->free(item.address);
      make(&item);
    }
    CHECK_EQ(wrong.load() + failed_launches.load(), 0);
    CHECK_EQ(sim_device_error(0), 0);
  }

  // Until the board's phase is `end`; shows its share meanwhile.
  void until(int end, std::size_t who) {
    while (board()->phase.load() < end) {
      step();
      board()->shares[who].store(pager->statistics().share_bytes);
      board()->steps[who].fetch_add(1);
    }
    sim_drain();
    CHECK_EQ(wrong.load(), 0);
    CHECK_EQ(sim_device_error(0), 0);
  }

  Pager* pager = nullptr;

 private:
  struct Item {
    char* address;
    std::uint64_t seed;
    unsigned stream = 0;  // that used it last
  };

  void make(Item* item) {
    item->seed = random_.next();
    item->stream = static_cast<unsigned>(random_.below(2));
    pager->begin_scope();
    void* address = nullptr;
    const lms::Status status = pager->allocate(block_bytes, &address, users_[item->stream]);
    if (!status.ok()) {
      CHECK_FAIL("allocate: %s", status.message.c_str());
    }
    item->address = static_cast<char*>(address);
    write(item->stream, item->address, block_bytes, item->seed);
    pager->mark_seen(address, users_[item->stream]);
    pager->end_scope(users_[item->stream]);
  }

  // Programs order their own streams.
  void wait_for(unsigned stream, Item* item) {
    if (item->stream != stream) {
      rig::require(cuStreamSynchronize(handles[item->stream]), "cuStreamSynchronize");
      item->stream = stream;
    }
  }

  check::Random random_;
  std::vector<StreamId> users_;
  std::vector<Item> items_;
};

bool has_nearly(std::size_t who, std::uint64_t bytes) {
  const std::uint64_t share = board()->shares[who].load();
  return share + memory / 8 >= bytes && share <= bytes + memory / 8;
}

}  // namespace

CASE(they_take_turns) {
  share_the_device();
  check::take_turns<Work>([](std::size_t who) { return std::make_unique<Work>("", UINT64_MAX, 1 + who); },
                          [](std::size_t who) { return has_nearly(who, memory); });
}

CASE(they_are_killed_and_join) {
  share_the_device();
  constexpr std::size_t most = 3;
  const std::uint64_t kills = std::getenv("LMS_TEST_STEPS") != nullptr ? check::steps(0) : (CHECK_SANITIZED ? 10 : 100);
  check::Random random(check::seed());
  const auto start = [](std::size_t who, std::uint64_t seed) {
    board()->steps[who].store(0);
    return process([who, seed] {
      Work work("", UINT64_MAX, seed);
      work.until(1, who);
    });
  };
  const std::vector<pid_t> all = check::kill_at_random(most, kills, 60000, &random, start);
  board()->phase.store(1);
  for (const pid_t each : all) {
    expect_success(each);
  }
}

CASE(a_program_without_lms_takes_some_and_gives_it_back) {
  share_the_device();
  std::array<pid_t, 2> all{};
  for (std::size_t who = 0; who < 2; ++who) {
    all[who] = process([who] {
      Work work("", UINT64_MAX, 1 + who);
      work.until(1, who);
    });
  }
  constexpr std::uint64_t all_of_it = memory - memory / 20;
  wait_until([] { return has_nearly(0, all_of_it / 2) && has_nearly(1, all_of_it / 2); }, "each has its half");
  constexpr std::uint64_t part = memory / 4;
  const pid_t other = process([] {
    // It takes what is free, until it has that part of the device: the others give way, though nobody asks them.
    rig::set_device();
    std::vector<std::uint64_t> taken;
    while (taken.size() * block_bytes < part) {
      std::uint64_t address = 0;
      if (cuMemAlloc_v2(&address, block_bytes) == 0) {
        taken.push_back(address);
      } else {
        usleep(1000);
      }
    }
    board()->ready.store(1);
    wait_until([] { return board()->ready.load() == 2; }, "the others have noticed");
    for (const std::uint64_t address : taken) {
      rig::require(cuMemFree_v2(address), "cuMemFree");
    }
  });
  wait_until([] { return board()->ready.load() == 1; }, "it has what it needs");
  wait_until([] { return board()->shares[0].load() + board()->shares[1].load() <= memory - part; },
             "the others have less");
  board()->ready.store(2);
  expect_success(other);
  wait_until([] { return board()->shares[0].load() + board()->shares[1].load() + memory / 16 >= all_of_it; },
             "they have it all again");
  board()->phase.store(1);
  for (const pid_t each : all) {
    expect_success(each);
  }
}

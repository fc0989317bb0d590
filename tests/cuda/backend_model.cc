// Random operations on the CUDA backend as a pager would make them, against a trivial model: every kernel that reads
// finds what the last one wrote, whatever order the device works in.
#include <sys/prctl.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>

#include "backend_rig.h"

using check::mib;
using check::Random;
using lms::Access;
using lms::Slot;
using lms::Uses;
using rig::page;
using rig::Program;

namespace {

constexpr std::uint64_t sizes[] = {2 * mib, 4 * mib, 10 * mib, 30 * mib, 32 * mib, 34 * mib, 66 * mib};
constexpr std::uint64_t stride = 128 * mib;  // of the ranges' places
constexpr unsigned streams = 3;

// Whether ranges that are away can be read.
bool readable() {
  static const bool value = std::getenv("LMS_CUDA_READABLE") != nullptr;
  return value;
}

// What a thread of the program does with ranges of its own. The device's memory is shared out between the threads.
class Player {
 public:
  Player(Program* program, std::uint64_t first_place, std::uint64_t budget, std::uint64_t seed, std::mutex* store_lock)
      : program_(*program), backend_(*program->backend), budget_(budget), random_(seed), store_lock_(*store_lock) {
    for (std::uint64_t index = 0; index < 12; ++index) {
      ranges_.emplace_back();
      ranges_.back().address = program->place((first_place + index) * stride);
    }
  }

  // False when the device does not do what it should; only a test that breaks it expects that.
  bool step() {
    Range& range = ranges_[random_.below(ranges_.size())];
    const unsigned stream = static_cast<unsigned>(random_.below(streams));
    if (random_.chance(40)) {
      backend_.mark(program_.ids[random_.below(streams)]);
    }
    if (random_.chance(3)) {
      backend_.trim(random_.below(100) * mib);
    }
    release_slots();
    switch (range.state) {
      case State::none:
        return allocate(&range, stream);
      case State::away:
        if (Program::accessible(range.address, range.bytes) && random_.chance(50)) {
          return read_away(range, stream);
        }
        return random_.chance(80) ? page_in(&range, stream) : forget(&range);
      case State::resident:
        break;
    }
    if (random_.chance(55)) {
      return use(&range, stream);
    }
    return random_.chance(70) ? page_out(&range) : free(&range);
  }

  // Reads all contents once more.
  bool finish() {
    for (Range& range : ranges_) {
      if (range.state == State::away && !page_in(&range, 0)) {
        return false;
      }
      if (range.state == State::resident && (!read(&range, 0) || !free(&range))) {
        return false;
      }
    }
    return true;
  }

  std::uint64_t times_read_away() const { return read_away_; }

 private:
  enum class State : std::uint8_t { none, resident, away };
  struct Range {
    State state = State::none;
    char* address = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t seed = 0;
    Slot slot;
    Uses uses;
    Uses copy;
  };

  void used(Range* range, unsigned stream) {
    range->uses.streams |= lms::stream_bit(program_.ids[stream]);
    range->uses.until = backend_.now();
  }

  // The stream's next work comes after all that was done with the range before, as a correct program sees to.
  bool join(Range* range, unsigned stream) {
    return backend_.order(range->uses, program_.ids[stream]) && backend_.order(range->copy, program_.ids[stream]);
  }

  bool write(Range* range, unsigned stream) {
    if (!join(range, stream)) {
      return false;
    }
    range->seed = random_.next();
    program_.write(stream, range->address, range->bytes, range->seed);
    used(range, stream);
    return true;
  }

  bool read(Range* range, unsigned stream) {
    if (!join(range, stream)) {
      return false;
    }
    program_.read(stream, range->address, range->bytes, range->seed);
    used(range, stream);
    return true;
  }

  bool use(Range* range, unsigned stream) { return random_.chance(50) ? write(range, stream) : read(range, stream); }

  bool allocate(Range* range, unsigned stream) {
    const std::uint64_t bytes = sizes[random_.below(sizeof sizes / sizeof *sizes)];
    if (!make_room(bytes)) {
      return false;
    }
    if (!backend_.settled(range->address, bytes) && random_.chance(80)) {
      return true;  // another time; seldom the backend is made to wait
    }
    if (!backend_.map(range->address, bytes, program_.ids[stream])) {
      return false;
    }
    occupied_ += bytes;
    range->bytes = bytes;
    range->state = State::resident;
    range->copy = Uses{};
    range->uses = Uses{};
    // Only the stream that the range was mapped for may use it without more ado.
    range->seed = random_.next();
    program_.write(stream, range->address, bytes, range->seed);
    used(range, stream);
    return true;
  }

  bool page_out(Range* range) {
    {
      const std::lock_guard<std::mutex> guard(store_lock_);
      CHECK(program_.store->allocate(range->bytes, &range->slot));
    }
    Uses copy;
    if (!backend_.page_out(range->address, range->bytes, range->slot, range->uses, &copy)) {
      return false;
    }
    CHECK(!Program::accessible(range->address, page, readable() ? 3 : 1));
    range->copy = copy;
    range->state = State::away;
    occupied_ -= range->bytes;
    return true;
  }

  // By a kernel that nothing announced. It ends before anything else happens to the range.
  bool read_away(const Range& range, unsigned stream) {
    CHECK(readable());
    ++read_away_;
    program_.read(stream, range.address, range.bytes, range.seed);
    return cuStreamSynchronize(program_.handles[stream]) == 0;
  }

  bool page_in(Range* range, unsigned stream) {
    if (!make_room(range->bytes)) {
      return false;
    }
    bool refused = false;
    Uses copy;
    if (!backend_.copy_in(range->address, range->bytes, range->slot, Access::read_write, range->copy, &copy,
                          &refused)) {
      return false;
    }
    CHECK(Program::accessible(range->address, range->bytes, 3));
    occupied_ += range->bytes;
    range->state = State::resident;
    range->uses = copy;
    range->copy = copy;
    drop_slot(range);
    return random_.chance(20) || read(range, stream);  // now and then it leaves unused
  }

  bool free(Range* range) {
    if (!backend_.unmap(range->address, range->bytes, range->uses)) {
      return false;
    }
    occupied_ -= range->bytes;
    range->state = State::none;
    return true;
  }

  bool forget(Range* range) {
    backend_.forget(range->address);
    drop_slot(range);
    range->state = State::none;
    return true;
  }

  // The slot's room is free when the copies that use it are over.
  void drop_slot(Range* range) { slots_.push_back(Draining{range->slot, range->bytes, range->copy}); }

  void release_slots() {
    while (!slots_.empty() && backend_.over(slots_.front().copy)) {
      const std::lock_guard<std::mutex> guard(store_lock_);
      program_.store->release(slots_.front().slot, slots_.front().bytes);
      slots_.pop_front();
    }
  }

  bool make_room(std::uint64_t bytes) {
    while (occupied_ + bytes > budget_) {
      Range& range = ranges_[random_.below(ranges_.size())];
      if (range.state == State::resident && !page_out(&range)) {
        return false;
      }
    }
    return true;
  }

  struct Draining {
    Slot slot;
    std::uint64_t bytes;
    Uses copy;
  };

  Program& program_;
  lms::Backend& backend_;
  const std::uint64_t budget_;
  Random random_;
  std::mutex& store_lock_;
  std::vector<Range> ranges_;
  std::deque<Draining> slots_;
  std::uint64_t occupied_ = 0;
  std::uint64_t read_away_ = 0;
};

constexpr std::uint64_t budget = 160 * mib;

// The contents of a page are in its first bytes, so the simulated device need not copy more.
void copy_little() {
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);  // nor the kernel clear more
  setenv("SIM_CUDA_HOST_ACCESS", "0", 1);
  sim_set("sample", "2097152");
}

// True when every kernel found what it should. Adds to *read_away how often ranges were read that were away.
bool play(std::uint64_t seed, std::uint64_t steps, std::uint64_t* read_away = nullptr) {
  sim_seed(seed);
  std::mutex store_lock;
  Program program(streams);
  Player player(&program, 0, budget, seed, &store_lock);
  bool right = true;
  for (std::uint64_t step = 0; right && step < steps; ++step) {
    right = player.step();
    CHECK(sim_used_bytes(0) <= budget);  // what exists is never more than what was in use at once
    if (sim_device_error(0) != 0 || program.wrong.load() != 0) {
      right = false;
    }
  }
  right = right && player.finish();
  sim_drain();
  if (read_away != nullptr) {
    *read_away += player.times_read_away();
  }
  if (!right) {
    std::printf("seed %llu: wrong %llu, lost %d, %s\n", static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(program.wrong.load()), sim_device_error(0),
                program.backend->failure().c_str());
  }
  return right && program.wrong.load() == 0 && sim_device_error(0) == 0 && program.failed_launches.load() == 0;
}

}  // namespace

CASE(contents_survive) {
  copy_little();
  Random random(check::seed());
  for (std::uint64_t round = 0; round < 50; ++round) {
    const std::uint64_t seed = random.next();
    CHECK(play(seed, check::steps(3000)));
  }
}

CASE(contents_survive_where_away_is_readable) {
  copy_little();
  setenv("LMS_CUDA_READABLE", "1", 1);
  Random random(check::seed());
  std::uint64_t read_away = 0;
  for (std::uint64_t round = 0; round < 10; ++round) {
    CHECK(play(random.next(), check::steps(3000), &read_away));
  }
  CHECK(read_away > 0);
}

// The tests above can fail: when the device leaves some waits out, it does.
CASE(a_missing_wait_shows) {
  copy_little();
  sim_set("drop_waits", "3");
  bool right = true;
  for (std::uint64_t seed = 1; right && seed <= 20; ++seed) {
    right = play(seed, 3000);
  }
  CHECK(!right);
}

CASE(contents_survive_on_many_threads) {
  setenv("SIM_CUDA_MODE", "threads", 1);
  copy_little();
  constexpr unsigned players = 3;
  std::mutex store_lock;
  Program program(streams);
  std::vector<std::thread> threads;
  std::atomic<unsigned> failures{0};
  for (unsigned index = 0; index < players; ++index) {
    threads.emplace_back([&, index] {
      rig::set_device();
      Player player(&program, index * 16, budget / 2, check::seed() + index, &store_lock);
      for (std::uint64_t step = 0; step < check::steps(5000); ++step) {
        failures += player.step() ? 0 : 1;
      }
      failures += player.finish() ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  sim_drain();
  CHECK_EQ(failures.load(), 0);
  CHECK_EQ(program.wrong.load(), 0);
  CHECK_EQ(program.failed_launches.load(), 0);
  CHECK_EQ(sim_device_error(0), 0);
  CHECK(sim_used_bytes(0) <= players * budget / 2);
}

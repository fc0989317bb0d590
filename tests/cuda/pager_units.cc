// What the pager promises on the CUDA backend, where pages move behind the host's back and no fault can be served.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <initializer_list>
#include <thread>

#include "pager_rig.h"

using check::mib;
using lms::host_stream;
using lms::Pager;
using lms::Pin;
using lms::StreamId;
using lms::Uses;
using rig::Program;

namespace {

constexpr std::uint64_t block_bytes = 32 * mib;

class Paged : public Program {
 public:
  Paged(std::uint64_t limit, bool strict, unsigned streams = 2) : Program(streams) {
    lms::Settings settings;
    settings.limit = limit;
    settings.policy = "lru";
    settings.strict = strict;
    settings.address_space = rig::paged_address_space;
    pager = rig::make_pager(settings);
    users = rig::users_of(*this, pager);
  }

  // A block that an operation on the stream made, with contents that the seed determines.
  char* made(unsigned stream, std::uint64_t seed, std::uint64_t bytes = block_bytes) {
    pager->begin_scope();
    void* address = nullptr;
    const lms::Status status = pager->allocate(bytes, &address, users[stream]);
    if (!status.ok()) {
      CHECK_FAIL("allocate: %s", status.message.c_str());
    }
    write(stream, static_cast<char*>(address), bytes, seed);
    pager->mark_seen(address, users[stream]);
    pager->end_scope(users[stream]);
    return static_cast<char*>(address);
  }

  // An operation that reads the block.
  lms::Status used(unsigned stream, const char* address, std::uint64_t seed, std::uint64_t bytes = block_bytes) {
    pager->begin_scope();
    Pin pin;
    lms::Status status = pager->pin(address, false, &pin, users[stream]);
    if (status.ok()) {
      read(stream, address, bytes, seed);
      pager->unpin(pin, users[stream]);
    }
    pager->end_scope(users[stream]);
    return status;
  }

  void limit(std::uint64_t bytes, lms_limit_kind kind) {
    lms::Settings settings;
    settings.policy = "lru";
    settings.limit = bytes;
    settings.limit_kind = kind;
    CHECK(pager->configure(settings).ok());
  }

  // The pager's lock is to be had.
  void answers() {
    std::atomic<bool> answered{false};
    std::thread asks([this, &answered] {
      pager->statistics();
      answered = true;
    });
    for (int tenths = 0; tenths < 300 && !answered; ++tenths) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    CHECK(answered);
    asks.join();
  }

  void all_is_well() {
    sim_drain();
    CHECK_EQ(wrong.load(), 0);
    CHECK_EQ(failed_launches.load(), 0);
    CHECK_EQ(sim_device_error(0), 0);
  }

  Pager* pager = nullptr;
  std::vector<StreamId> users;
};

bool contains(const lms::Status& status, const char* part) { return check::contains(status.message.c_str(), part); }

}  // namespace

CASE(a_stream_that_is_destroyed_after_its_operations) {
  Paged program(8 * block_bytes, false);
  void* handle = nullptr;
  rig::require(cuStreamCreate(&handle, 1), "cuStreamCreate");
  program.handles.push_back(handle);
  program.users.push_back(program.pager->backend().stream(reinterpret_cast<std::uintptr_t>(handle), /*lasting=*/false));
  char* made = program.made(2, 1);
  char* freed = program.made(2, 2);
  rig::require(cuStreamDestroy_v2(handle), "cuStreamDestroy");
  program.pager->free(freed);
  std::uint64_t reclaimed = 0;
  CHECK(program.pager->reclaim(UINT64_MAX, &reclaimed).ok());
  CHECK_EQ(reclaimed, block_bytes);
  CHECK(program.used(0, made, 1).ok());
  rig::require(cuStreamSynchronize(program.handles[0]), "cuStreamSynchronize");
  CHECK_EQ(program.wrong.load() + sim_device_error(0), 0);
  program.pager->free(made);
}

// A cached block is taken while work on `earlier` that reads it goes on, for a stream that another thread makes
// meanwhile and the pager calls `name_of(stream)`.
template <typename NameOf>
void reuse_behind_work(Paged* program, unsigned earlier, StreamId home, NameOf name_of) {
  Pager* pager = program->pager;
  void* freed = nullptr;
  CHECK(pager->allocate(block_bytes, &freed, home).ok());
  std::atomic<bool> ends{false};
  program->write(earlier, static_cast<char*>(freed), block_bytes, 1);
  program->launch(earlier, [&] {
    while (!ends.load()) {
      std::this_thread::yield();
    }
  });
  program->read(earlier, static_cast<char*>(freed), block_bytes, 1);
  pager->free(freed);
  if (!pager->backend().lasting(home)) {
    rig::require(cuStreamDestroy_v2(program->handles[earlier]), "cuStreamDestroy");
  }
  std::thread another([&] {
    rig::set_device();
    void* handle = nullptr;
    rig::require(cuStreamCreate(&handle, 1), "cuStreamCreate");
    program->handles.push_back(handle);
    const StreamId user = name_of(handle);
    CHECK_EQ(user, lms::any_stream);
    void* taken = nullptr;
    CHECK(pager->allocate(block_bytes, &taken, user).ok());
    CHECK(taken == freed);
    program->write(static_cast<unsigned>(program->handles.size() - 1), static_cast<char*>(taken), block_bytes, 2);
    rig::require(cuStreamSynchronize(handle), "cuStreamSynchronize");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // in which it would do harm
  ends.store(true);
  another.join();
  program->all_is_well();
  pager->free(freed);
}

CASE(a_block_of_a_stream_whose_handle_another_one_gets) {
  setenv("SIM_CUDA_MODE", "threads", 1);
  Paged program(8 * block_bytes, false);
  void* handle = nullptr;
  rig::require(cuStreamCreate(&handle, 1), "cuStreamCreate");
  program.handles.push_back(handle);
  const auto number = [&](void* stream) {
    CHECK(stream == handle);
    return program.pager->backend().stream(reinterpret_cast<std::uintptr_t>(stream), /*lasting=*/false);
  };
  reuse_behind_work(&program, 2, number(handle), number);
}

CASE(a_block_of_one_of_more_streams_than_have_numbers) {
  setenv("SIM_CUDA_MODE", "threads", 1);
  Paged program(8 * block_bytes, false);
  reuse_behind_work(&program, 0, lms::any_stream, [](void* /*stream*/) { return lms::any_stream; });
}

CASE(blocks_come_and_go) {
  Paged program(4 * block_bytes, false);
  std::vector<char*> blocks;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    blocks.push_back(program.made(seed % 2, seed));
  }
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    CHECK(program.used(seed % 2, blocks[seed], seed).ok());
  }
  program.all_is_well();
  const lms::Statistics statistics = program.pager->statistics();
  CHECK_EQ(statistics.allocated_bytes, 12 * block_bytes);
  CHECK(statistics.device_bytes_peak <= 4 * block_bytes);
  CHECK(statistics.out_bytes >= 8 * block_bytes);
  for (char* block : blocks) {
    program.pager->free(block);
  }
  CHECK_EQ(program.pager->statistics().allocated_bytes, 0);
}

CASE(what_was_only_read_is_saved_again) {
  Paged program(2 * block_bytes, false);
  char* kept = program.made(0, 1);
  for (std::uint64_t round = 0; round < 3; ++round) {
    program.pager->free(program.made(0, 2, 2 * block_bytes));
    CHECK(program.used(0, kept, 1).ok());
    CHECK(Program::accessible(kept, block_bytes, 3));
  }
  program.all_is_well();
  CHECK_EQ(program.pager->statistics().out_blocks, 3);
  CHECK_EQ(program.pager->statistics().clean_drop_blocks, 0);
}

CASE(a_strict_limit_fails_allocations_only) {
  Paged program(2 * block_bytes, true);
  char* first = program.made(0, 1);
  char* second = program.made(0, 2);
  char* third = program.made(0, 3);  // one of them is away now
  std::vector<Pin> pins(3);
  program.pager->begin_scope();
  CHECK(program.pager->pin(first, false, &pins[0], program.users[0]).ok());
  CHECK(program.pager->pin(second, false, &pins[1], program.users[0]).ok());
  // An operation that needs more than the limit has its data all the same.
  CHECK(program.pager->pin(third, false, &pins[2], program.users[0]).ok());
  CHECK_EQ(program.pager->statistics().over_limit_requests, 1);
  program.read(0, first, block_bytes, 1);
  program.read(0, second, block_bytes, 2);
  program.read(0, third, block_bytes, 3);
  void* more = nullptr;
  const lms::Status status = program.pager->allocate(block_bytes, &more, program.users[0]);
  CHECK_EQ(status.code, LMS_OUT_OF_MEMORY);
  CHECK(contains(status, "out of memory under the limit"));
  for (const Pin& pin : pins) {
    program.pager->unpin(pin, program.users[0]);
  }
  program.pager->end_scope(program.users[0]);
  program.all_is_well();
  CHECK(program.pager->statistics().device_bytes <= 2 * block_bytes);
}

CASE(a_block_that_is_larger_than_the_limit) {
  Paged program(block_bytes, false);
  char* large = program.made(0, 1, 3 * block_bytes);
  CHECK(program.used(1, large, 1, 3 * block_bytes).ok());
  program.all_is_well();
  CHECK(program.pager->statistics().over_limit_requests > 0);
}

CASE(a_limit_above_the_device) {
  Paged program(block_bytes, false);
  const lms::Status status = program.pager->set_limit(UINT64_MAX);
  CHECK_EQ(status.code, LMS_INVALID_ARGUMENT);
  CHECK(contains(status, "is more than the device has"));
  CHECK_EQ(program.pager->limit(), block_bytes);
}

CASE(a_limit_of_everything_leaves_room_for_others) {
  Paged program(8 * block_bytes, false);
  std::uint64_t others = 0;
  program.pager->set_count_others([](void* bytes) { return *static_cast<std::uint64_t*>(bytes); }, &others);
  program.limit(4 * block_bytes, LMS_LIMIT_TOTAL);
  std::vector<char*> blocks;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    blocks.push_back(program.made(0, seed));
  }
  CHECK_EQ(program.pager->statistics().out_blocks, 0);
  others = 2 * block_bytes;  // which the next request finds out
  blocks.push_back(program.made(0, 4));
  CHECK_EQ(program.pager->limit(), 2 * block_bytes);
  CHECK_EQ(program.pager->statistics().device_bytes, 2 * block_bytes);
  others = UINT64_MAX;
  blocks.push_back(program.made(0, 5));
  CHECK_EQ(program.pager->limit(), 0);
  others = 0;
  program.limit(UINT64_MAX, LMS_LIMIT_TOTAL);
  CHECK_EQ(program.pager->limit(), program.pager->backend().capacity());
  others = block_bytes;
  CHECK(program.pager->set_limit(4 * block_bytes).ok());  // of what is managed
  CHECK_EQ(program.pager->limit(), 4 * block_bytes);
  for (std::uint64_t seed = 0; seed < blocks.size(); ++seed) {
    CHECK(program.used(1, blocks[seed], seed).ok());
  }
  CHECK_EQ(program.pager->limit(), 4 * block_bytes);
  program.all_is_well();
}

CASE(a_limit_of_the_least_grows_to_what_is_needed) {
  Paged program(8 * block_bytes, false);
  program.limit(0, LMS_LIMIT_LEAST);
  std::vector<char*> blocks{program.made(0, 0)};
  CHECK_EQ(program.pager->limit(), block_bytes);
  const lms::Statistics before = program.pager->statistics();
  for (std::uint64_t seed = 1; seed < 4; ++seed) {
    blocks.push_back(program.made(0, seed));  // in the memory of the one before
  }
  const lms::Statistics after = program.pager->statistics();
  CHECK_EQ(after.limit, block_bytes);
  CHECK_EQ(after.device_bytes, block_bytes);
  CHECK_EQ(after.one_out_requests - before.one_out_requests, 3);
  CHECK_EQ(after.over_limit_requests, before.over_limit_requests);
  char* large = program.made(1, 4, 3 * block_bytes);
  CHECK_EQ(program.pager->limit(), 3 * block_bytes);
  CHECK(program.used(0, large, 4, 3 * block_bytes).ok());
  for (std::uint64_t seed = 0; seed < blocks.size(); ++seed) {
    CHECK(program.used(0, blocks[seed], seed).ok());
  }
  CHECK_EQ(program.pager->limit(), 3 * block_bytes);
  program.all_is_well();
}

// Another thread's stream may use restored blocks without a word to the pager.
CASE(what_is_restored_is_complete_and_writable) {
  Paged program(2 * block_bytes, false);
  std::vector<char*> blocks;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    blocks.push_back(program.made(0, seed));
  }
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    CHECK(program.used(0, blocks[seed], seed).ok());  // some come back, their copies under way
  }
  CHECK(program.pager->restore_all().ok());
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    CHECK(Program::accessible(blocks[seed], block_bytes, 3));
    program.read(1, blocks[seed], block_bytes, seed);
  }
  program.all_is_well();
}

CASE(more_than_the_device_holds_cannot_be_restored) {
  setenv("SIM_CUDA_MEMORY", "268435456", 1);  // 8 blocks
  Paged program(4 * block_bytes, false);
  std::vector<char*> blocks;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    blocks.push_back(program.made(0, seed));
  }
  const lms::Status status = program.pager->restore_all();
  CHECK_EQ(status.code, LMS_OUT_OF_MEMORY);
  CHECK(contains(status, "the device refuses to map pages (33554432 bytes requested): cuMemCreate failed"));
  CHECK(contains(status, "with resident 268435456 (pinned by operations or views 0, protected"));
  CHECK(contains(status, "), away 134217728 bytes; make the largest operation smaller"));
  CHECK_EQ(program.pager->statistics().resident_bytes_peak, 268435456);
  // It goes on as before.
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    CHECK(program.used(1, blocks[seed], seed).ok());
  }
  program.all_is_well();
  CHECK(program.pager->statistics().device_bytes <= 4 * block_bytes);
}

// Others hold memory of the device, so that there is less than the limit allows.
CASE(the_device_has_less_than_the_limit) {
  setenv("SIM_CUDA_MEMORY", "268435456", 1);
  Paged program(256 * mib, false);
  char* others = program.filled(0, 0, 4 * block_bytes, 99);
  std::vector<char*> blocks;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    blocks.push_back(program.made(0, seed));
  }
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CHECK(program.used(1, blocks[seed], seed).ok());
  }
  program.read(0, others, 4 * block_bytes, 99);
  program.all_is_well();
}

CASE(held_blocks_stay) {
  Paged program(2 * block_bytes, false);
  char* held = program.made(0, 1);
  CHECK(program.pager->hold(held).ok());
  for (std::uint64_t seed = 2; seed < 8; ++seed) {
    program.made(0, seed);
    CHECK(Program::accessible(held, block_bytes, 3));
  }
  std::uint64_t reclaimed = 0;
  CHECK(program.pager->reclaim(UINT64_MAX, &reclaimed).ok());
  CHECK(Program::accessible(held, block_bytes, 3));
  program.all_is_well();
}

CASE(a_lost_device_is_an_error) {
  Paged program(2 * block_bytes, false);
  std::vector<char*> blocks;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    blocks.push_back(program.made(0, seed));
  }
  sim_device_lost(0, 719);
  unsigned failures = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const lms::Status status = program.used(0, blocks[seed], seed);
    failures += status.ok() ? 0 : 1;
    CHECK(status.ok() || status.code == LMS_DEVICE_FAILED);
    CHECK(status.ok() || contains(status, "CUDA_ERROR_LAUNCH_FAILED"));
  }
  CHECK(failures > 0);
  void* more = nullptr;
  const lms::Status status = program.pager->allocate(block_bytes, &more, program.users[0]);
  CHECK_EQ(status.code, LMS_DEVICE_FAILED);  // and not for lack of memory: programs try again with less then
  CHECK(contains(status, "CUDA_ERROR_LAUNCH_FAILED") && !contains(status, "smaller"));
  CHECK(!program.pager->restore_all().ok());
  for (char* block : blocks) {
    program.pager->free(block);
  }
  program.pager->shutdown();
}

// A worker that moves a block when the pager shuts down, and fails, ends as well.
CASE(shutdown_while_a_worker_fails) {
  Paged program(140 * mib, false);
  lms::Settings settings;
  settings.policy = "iteration";
  settings.limit = 140 * mib;
  const auto bytes = [](std::uint64_t block) { return (8 + 4 * block) * mib; };
  std::vector<char*> blocks;
  for (std::uint64_t block = 0; block < 8; ++block) {
    blocks.push_back(program.made(0, block, bytes(block)));
  }
  std::atomic<bool> works{false};
  const auto work = [&] {
    for (std::uint64_t block = 0; block < 8; ++block) {
      Pin pin;
      if (program.pager->pin(blocks[block], true, &pin, program.users[0]).ok()) {
        program.write(0, blocks[block], bytes(block), block);
        program.pager->unpin(pin, program.users[0]);
      }
      for (int use = 0; use < 40 && program.pager->pin(blocks[block], false, &pin, program.users[0]).ok(); ++use) {
        program.pager->unpin(pin, program.users[0]);
      }
      sim_drain();
    }
  };
  for (int turn = 0; turn < 4; ++turn) {
    CHECK(program.pager->configure(settings).ok());
    const std::uint64_t before = program.pager->statistics().prefetch_blocks;
    for (int round = 0; round < 1000 && program.pager->statistics().prefetch_blocks < before + 2; ++round) {
      work();
    }
    CHECK(program.pager->statistics().prefetch_blocks > before);
    works = true;
    std::thread other([&] {
      rig::set_device();
      while (works) {
        work();
      }
    });
    sim_hold("cuMemMap", 1);  // where a worker soon is, and the other thread waits for it
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    works = false;
    std::thread third([&] { program.pager->shutdown(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    sim_fail("cuMemMap", 0, 801);
    sim_hold("cuMemMap", 0);
    third.join();
    other.join();
    sim_fail_clear();
  }
}

// One operation may use several devices: at its end every one returns to its limit.
CASE(a_scope_around_several_pagers) {
  Paged first(block_bytes, false);
  Paged second(block_bytes, false);
  lms::Thread::current().begin_scope();
  first.pager->scope_began();
  second.pager->scope_began();
  for (Paged* one : {&first, &second}) {
    one->made(0, 1);
    one->made(0, 2);
    CHECK(one->pager->statistics().device_bytes == 2 * block_bytes);  // the operation needs them
  }
  const bool outermost = lms::Thread::current().end_scope();
  CHECK(outermost);
  for (Paged* one : {&first, &second}) {
    one->pager->scope_ended(outermost, one->users[0]);
    CHECK(one->pager->statistics().device_bytes == block_bytes);
    one->all_is_well();
  }
}

std::uint64_t calls_of(std::initializer_list<const char*> functions) {
  std::uint64_t calls = 0;
  for (const char* function : functions) {
    calls += sim_calls(function);
  }
  return calls;
}

// What the driver was asked to change of its mappings.
std::uint64_t mapping_calls() {
  return calls_of({"cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemCreate", "cuMemRelease"});
}

// What it takes to leave a mark.
std::uint64_t marking_calls() {
  return calls_of({"cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode",
                   "cuStreamIsCapturing", "cuEventRecord", "cuEventQuery"});
}

CASE(a_small_operation_calls_the_driver_seldom) {
  constexpr std::uint64_t small = 2 * mib;
  constexpr std::uint64_t operations = 1600;
  Paged program(512 * small, false);
  char* block = program.made(0, 1, small);
  program.pager->free(program.made(0, 2, 512 * small));  // memory was short once
  CHECK(program.pager->statistics().out_blocks > 0);
  CHECK(program.used(0, block, 1, small).ok());  // brings it back
  sim_drain();
  CHECK(program.used(0, block, 1, small).ok());  // finds that it is there
  const std::uint64_t before = marking_calls();
  for (std::uint64_t i = 0; i < operations; ++i) {
    CHECK(program.used(0, block, 1, small).ok());
  }
  std::printf("calls per operation: %.2f\n", static_cast<double>(marking_calls() - before) / operations);
  CHECK(marking_calls() - before < operations);
  program.all_is_well();
}

CASE(a_large_operation_is_marked_at_its_end) {
  Paged program(4 * block_bytes, false);
  char* blocks[2] = {program.made(0, 1), program.made(0, 2)};
  for (std::uint64_t seed = 3; seed < 8; ++seed) {
    program.made(0, seed);  // memory is short
  }
  for (unsigned i = 0; i < 8; ++i) {
    const std::uint64_t marks = sim_calls("cuEventRecord");
    CHECK(program.used(0, blocks[i % 2], 1 + i % 2).ok());
    CHECK(sim_calls("cuEventRecord") > marks);
  }
  program.all_is_well();
}

CASE(every_stream_is_marked_though_they_take_turns) {
  constexpr std::uint64_t small = 2 * mib;
  Paged program(512 * small, false);
  char* blocks[2] = {program.made(0, 1, small), program.made(1, 2, small)};
  program.pager->free(program.made(0, 3, 512 * small));  // memory was short once
  for (int turn = 0; turn < 64; ++turn) {
    for (unsigned stream : {0U, 1U}) {
      CHECK(program.used(stream, blocks[stream], 1 + stream, small).ok());
    }
  }
  // Of each stream a late use is covered by a mark, so that nothing need be recorded to find out whether it is over.
  sim_drain();
  for (unsigned stream : {0U, 1U}) {
    const std::uint64_t marks = sim_calls("cuEventRecord");
    CHECK(program.pager->backend().over(
        Uses{lms::stream_bit(program.users[stream]), program.pager->backend().now() - 4}));
    CHECK_EQ(sim_calls("cuEventRecord"), marks);
  }
  program.all_is_well();
}

CASE(random_sizes_need_few_mappings) {
  // As batches of random length do; a call takes tens of microseconds, and half of the limit is in use.
  constexpr std::uint64_t limit = 1024 * mib;
  constexpr int allocations = 4000;
  Paged program(limit, false);
  check::Random random(check::seed());
  std::vector<std::pair<char*, std::uint64_t>> live;
  std::uint64_t bytes = 0;
  std::uint64_t before = 0;
  for (int i = -500; i < allocations; ++i) {
    if (i == 0) {
      before = mapping_calls();
    }
    const std::uint64_t size = (1 + random.below(64 * 1024)) * 1024;
    while (!live.empty() && bytes + size > limit / 2) {
      std::swap(live[random.below(live.size())], live.back());
      program.pager->free(live.back().first);
      bytes -= live.back().second;
      live.pop_back();
    }
    live.emplace_back(program.made(0, 1, size), size);
    bytes += size;
  }
  std::printf("calls per allocation: %.2f\n", static_cast<double>(mapping_calls() - before) / allocations);
  CHECK_EQ(program.pager->statistics().out_bytes, 0);
  CHECK(mapping_calls() - before < allocations);
}

// Another thread pages out, and pins host memory for that.
CASE(others_go_on_while_the_store_grows) {
  Paged program(4 * block_bytes, false);
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    program.made(0, seed);
  }
  char* here = program.made(0, 3);
  const std::uint64_t pinned = sim_calls("cuMemHostRegister");
  sim_hold("cuMemHostRegister", 1);
  std::thread other([&program] {
    rig::set_device();
    program.made(1, 4);
  });
  while (sim_calls("cuMemHostRegister") == pinned) {
    std::this_thread::yield();
  }
  program.answers();
  CHECK(program.used(0, here, 3).ok());
  std::thread third([&program] {
    rig::set_device();
    program.made(1, 5);  // waits for the same room
  });
  sim_hold("cuMemHostRegister", 0);
  other.join();
  third.join();
  program.all_is_well();
  CHECK_EQ(program.pager->statistics().out_blocks, 2);
}

CASE(others_go_on_while_the_host_waits_for_a_copy) {
  sim_set("lazy", "1");  // the copy does not run before somebody waits for it
  Paged program(2 * block_bytes, false);
  char* away = program.made(0, 1);
  program.pager->free(program.made(0, 2, 2 * block_bytes));
  Pin pin;
  CHECK(program.pager->pin(away, false, &pin, program.users[0]).ok());  // brings it back
  const std::uint64_t waits = sim_calls("cuEventSynchronize");
  sim_hold("cuEventSynchronize", 1);
  Pin host_pin;
  std::thread other([&program, away, &host_pin] {
    rig::set_device();
    CHECK(program.pager->pin(away, false, &host_pin, host_stream).ok());
  });
  while (sim_calls("cuEventSynchronize") == waits) {
    std::this_thread::yield();
  }
  program.answers();
  sim_hold("cuEventSynchronize", 0);
  other.join();
  program.pager->unpin(host_pin, host_stream);
  program.pager->unpin(pin, program.users[0]);
  program.all_is_well();
}

// A block that came back leaves when its own copy and its use are over, however many other copies have begun since.
CASE(a_block_leaves_without_waiting_for_copies_of_others) {
  sim_set("lazy", "1");  // only what somebody waits for runs
  Paged program(3 * block_bytes, false);
  char* block = program.made(0, 1);
  char* other = program.made(1, 2);
  program.pager->free(program.made(0, 3, 3 * block_bytes));
  CHECK(program.used(0, block, 1).ok());
  Pin pin;
  CHECK(program.pager->pin(other, false, &pin, program.users[1]).ok());
  CHECK(program.used(0, block, 1).ok());
  std::uint64_t reclaimed = 0;
  CHECK(program.pager->reclaim(block_bytes, &reclaimed).ok());
  CHECK_EQ(reclaimed, block_bytes);
  const std::uint64_t* words = Program::at(other, 1);
  CHECK(words != nullptr);
  CHECK(*words != check::pattern_at(2, 0));  // its copy has not run
  program.read(1, other, block_bytes, 2);
  program.pager->unpin(pin, program.users[1]);
  CHECK(program.used(1, block, 1).ok());
  program.all_is_well();
}

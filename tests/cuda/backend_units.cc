// What the CUDA backend promises, case by case, on the simulated device.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <thread>

#include "backend/cuda/cuda_ipc.h"
#include "backend_rig.h"
#include "disk/file_store.h"

using check::mib;
using lms::Access;
using lms::any_stream;
using lms::host_stream;
using lms::no_stream;
using lms::Slot;
using lms::StreamId;
using lms::Uses;
using rig::page;
using rig::Program;

namespace {

constexpr int lost = 719;  // CUDA_ERROR_LAUNCH_FAILED

bool contains(const std::string& text, const char* part) { return check::contains(text.c_str(), part); }

// Pages out to the slot.
void leave(Program* program, unsigned stream, char* address, std::uint64_t bytes, const Slot& slot, Uses* copy) {
  if (!program->backend->page_out(address, bytes, slot, program->uses(stream), copy)) {
    CHECK_FAIL("page_out: %s", program->backend->failure().c_str());
  }
  CHECK(!Program::accessible(address, page, 3));
}

// The same where it cannot be read then.
void page_out(Program* program, unsigned stream, char* address, std::uint64_t bytes, const Slot& slot, Uses* copy) {
  leave(program, stream, address, bytes, slot, copy);
  CHECK(!Program::accessible(address, page));
}

void page_in(Program* program, unsigned stream, char* address, std::uint64_t bytes, const Slot& slot,
             const Uses& saved) {
  Uses copy;
  bool refused = false;
  CHECK(program->backend->copy_in(address, bytes, slot, Access::read_write, saved, &copy, &refused));
  CHECK(program->backend->order(copy, program->ids[stream]));
}

// A kernel on the stream finds the contents.
void expect(Program* program, unsigned stream, const char* address, std::uint64_t bytes, std::uint64_t seed) {
  program->read(stream, address, bytes, seed);
  rig::require(cuStreamSynchronize(program->handles[stream]), "cuStreamSynchronize");
  CHECK_EQ(program->wrong.load(), 0);
  CHECK_EQ(sim_device_error(0), 0);
}

// Kernels that do not end before they are let go, each on its own stream. Needs the simulation's mode "threads".
class Gate {
 public:
  void close(Program* program, unsigned stream) {
    program->launch(stream, [this] {
      for (unsigned waited = 0; !open_.load() && waited < 20000; ++waited) {
        usleep(1000);
      }
    });
  }
  void open() { open_.store(true); }

 private:
  std::atomic<bool> open_{false};
};

std::string refusal(int device) {
  lms::Status status;
  CHECK(lms::make_cuda_backend(device, 0, &status) == nullptr);
  CHECK_EQ(status.code, LMS_UNSUPPORTED);
  return status.message;
}

void environment(const char* option, const char* value) { setenv(option, value, 1); }

}  // namespace

// ---- opening

CASE(no_device) {
  environment("SIM_CUDA_DEVICES", "0");
  const std::string sentence = refusal(0);
  CHECK(contains(sentence, "no CUDA device is visible"));
  CHECK(contains(sentence, "CUDA_VISIBLE_DEVICES"));
}

CASE(wrong_device) {
  CHECK(contains(refusal(1), "there are 1"));
  CHECK(contains(refusal(-1), "no such device"));
}

CASE(driver_too_old) {
  environment("SIM_CUDA_DRIVER_VERSION", "10010");
  const std::string sentence = refusal(0);
  CHECK(contains(sentence, "supports CUDA 10.1"));
  CHECK(contains(sentence, "install a newer driver"));
}

CASE(no_virtual_memory_management) {
  sim_set("vmm", "0");
  CHECK(contains(refusal(0), "does not support virtual memory management"));
}

CASE(driver_does_not_start) {
  sim_fail("cuInit", 1, 999);
  CHECK(contains(refusal(0), "check that nvidia-smi works"));
}

CASE(context_refused) {
  sim_fail("cuDevicePrimaryCtxRetain", 1, 46);
  CHECK(contains(refusal(0), "primary context"));
}

CASE(no_address_space) {
  sim_fail("cuMemAddressReserve", 0, 2);
  CHECK(contains(refusal(0), "cuMemAddressReserve"));
}

CASE(less_address_space) {
  // 1 TiB is refused, and half of it is not.
  sim_fail("cuMemAddressReserve", 1, 2);
  lms::Status status;
  const auto backend = lms::make_cuda_backend(0, 0, &status);
  CHECK(backend != nullptr);
  CHECK_EQ(backend->span(), std::uint64_t{1} << 39);
}

CASE(what_it_is) {
  Program program(0, 5 * mib);
  CHECK_EQ(program.backend->page_bytes(), 2 * mib);
  CHECK_EQ(program.backend->span(), 8 * mib);
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(program.backend->base()) % lms::cuda_page_bytes, 0);
  CHECK_EQ(program.backend->capacity(), 1024 * mib);
  CHECK(program.backend->asynchronous());
  CHECK(!program.backend->serves_faults());
}

CASE(nothing_stays_behind) {
  std::uint64_t mappings = 0;
  {
    Program program(1);
    program.filled(0, 0, 34 * mib, 1);
    char* second = program.filled(0, 128 * mib, 2 * mib, 2);
    CHECK(program.backend->unmap(second, 2 * mib, program.uses(0)));
    program.slot(2 * mib);
    mappings = sim_mappings();
    CHECK(mappings > 0 && sim_pinned_bytes() > 0);
  }
  CHECK_EQ(sim_used_bytes(0), 0);
  CHECK_EQ(sim_pinned_bytes(), 0);
  CHECK_EQ(sim_mappings(), 0);
}

// ---- streams

CASE(stream_numbers) {
  Program program(2);
  lms::Backend& backend = *program.backend;
  CHECK(program.ids[0] != program.ids[1]);
  CHECK(program.ids[0] != host_stream && program.ids[0] < any_stream);
  CHECK_EQ(backend.stream(reinterpret_cast<std::uintptr_t>(program.handles[0]), true), program.ids[0]);
  CHECK_EQ(backend.stream(0, true), backend.stream(1, true));  // two handles of the default stream
  CHECK_EQ(backend.stream(2, true), any_stream);               // a stream per thread
  StreamId highest = 0;
  for (std::uintptr_t handle = 100; handle < 200; ++handle) {
    const StreamId id = backend.stream(handle, true);
    CHECK_EQ(backend.stream(handle, true), id);
    highest = id == any_stream ? highest : std::max(highest, id);
  }
  CHECK_EQ(highest, any_stream - 1);
  CHECK_EQ(backend.stream(1000, true), any_stream);
}

CASE(uses_end_with_their_own_work) {
  // Waiting for a use does not wait for what was enqueued on its stream after the next mark.
  environment("SIM_CUDA_MODE", "threads");
  Program program(2);
  Gate gate;
  program.launch(0, [] {});
  const Uses early = program.uses(0);
  program.backend->mark(program.ids[0]);
  gate.close(&program, 0);
  const Uses late = program.uses(0);
  program.backend->mark(program.ids[0]);
  CHECK(program.backend->order(early, host_stream));
  CHECK(program.backend->over(early));
  CHECK(!program.backend->over(late));
  CHECK(program.backend->order(late, program.ids[0]));  // its own stream needs no wait
  CHECK(program.backend->order(late, no_stream));
  CHECK(program.backend->order(late, program.ids[1]));  // the device waits, not the host
  std::atomic<bool> ran{false};
  program.launch(1, [&] { ran = true; });
  usleep(20000);
  CHECK(!ran.load());
  gate.open();
  CHECK(program.backend->order(late, host_stream));
  CHECK(program.backend->over(late));
  rig::require(cuStreamSynchronize(program.handles[1]), "cuStreamSynchronize");
  CHECK(ran.load());
}

CASE(a_use_without_a_mark) {
  environment("SIM_CUDA_MODE", "threads");
  Program program(1);
  Gate gate;
  gate.close(&program, 0);
  const Uses uses = program.uses(0);
  CHECK(!program.backend->over(uses));
  gate.open();
  CHECK(program.backend->order(uses, host_stream));
  CHECK(program.backend->over(uses));
}

CASE(a_mark_that_cannot_be_made) {
  environment("SIM_CUDA_MODE", "threads");
  Program program(1);
  Gate gate;
  gate.close(&program, 0);
  const Uses uses = program.uses(0);
  for (const char* function : {"cuEventRecord", "cuEventCreate"}) {
    sim_fail(function, 1, 2);
    CHECK(!program.backend->over(uses));
    sim_fail_clear();
  }
  gate.open();
  sim_drain();
  CHECK(program.backend->over(uses));
}

CASE(marks_are_bounded) {
  environment("SIM_CUDA_MODE", "threads");
  Program program(1);
  Gate gate;
  program.launch(0, [] {});
  const Uses before = program.uses(0);
  gate.close(&program, 0);
  const std::uint64_t events = sim_calls("cuEventCreate");
  for (unsigned count = 0; count < 6000; ++count) {
    program.backend->mark(program.ids[0]);
  }
  CHECK(sim_calls("cuEventCreate") - events <= 4097);
  CHECK(!program.backend->over(before));  // its own mark was dropped, and the next one is not over
  gate.open();
  CHECK(program.backend->order(before, host_stream));
  // Marks that are over make room for new ones.
  const std::uint64_t all = sim_calls("cuEventCreate");
  for (unsigned count = 0; count < 6000; ++count) {
    program.backend->mark(program.ids[0]);
  }
  CHECK(sim_calls("cuEventCreate") - all <= 4097);
}

CASE(marks_that_are_over_go) {
  Program program(1);
  for (unsigned count = 0; count < 1000; ++count) {
    program.launch(0, [] {});
    program.backend->mark(program.ids[0]);
    if (count % 10 == 0) {
      CHECK(program.backend->order(program.uses(0), host_stream));
    }
  }
  CHECK(sim_calls("cuEventCreate") < 100);
}

CASE(any_stream_means_the_device) {
  Program program(1);
  lms::Backend& backend = *program.backend;
  const Uses unknown = {lms::stream_bit(any_stream), backend.now()};
  CHECK(!backend.over(unknown));
  CHECK(backend.order(unknown, program.ids[0]));
  CHECK_EQ(sim_calls("cuCtxSynchronize"), 1);
  CHECK(backend.over(unknown));
  CHECK(backend.order(unknown, host_stream));
  CHECK_EQ(sim_calls("cuCtxSynchronize"), 1);  // known by now
  const Uses later = {lms::stream_bit(any_stream), backend.now()};
  CHECK(!backend.over(later));
}

CASE(an_unexpected_answer_is_not_over) {
  Program program(1);
  program.launch(0, [] {});
  const Uses uses = program.uses(0);
  for (const int code : {907, 1, 999}) {
    sim_drain();
    sim_fail("cuEventQuery", 1, code);
    CHECK(!program.backend->over(uses));
  }
  CHECK(program.backend->over(uses));
}

// A stream that the program makes, and destroys when it likes.
struct Passing {
  explicit Passing(Program* program) {
    rig::require(cuStreamCreate(&handle, 1), "cuStreamCreate");
    id = program->backend->stream(reinterpret_cast<std::uintptr_t>(handle), /*lasting=*/false);
  }
  void destroy() const { rig::require(cuStreamDestroy_v2(handle), "cuStreamDestroy"); }

  void* handle = nullptr;
  StreamId id = host_stream;
};

CASE(a_destroyed_stream_is_not_touched) {
  Program program(1);
  lms::Backend& backend = *program.backend;
  const Passing stream(&program);
  CHECK(backend.lasting(program.ids[0]) && !backend.lasting(stream.id));
  const Uses marked = {lms::stream_bit(stream.id), backend.now()};
  backend.mark(stream.id);
  const Uses later = {lms::stream_bit(stream.id), backend.now()};
  stream.destroy();
  CHECK(backend.order(marked, program.ids[0]) && backend.order(marked, host_stream));
  CHECK(backend.over(marked));
  CHECK_EQ(sim_calls("cuCtxSynchronize"), 0);
  // What no mark covers may be under way as long as the device is not idle.
  CHECK(!backend.over(later));
  CHECK(backend.order(later, program.ids[0]));
  CHECK_EQ(sim_calls("cuCtxSynchronize"), 1);
  CHECK(backend.over(later));
}

CASE(streams_with_the_same_handle) {
  environment("SIM_CUDA_MODE", "threads");
  Program program(1);
  lms::Backend& backend = *program.backend;
  std::atomic<bool> ends{false};
  const Passing first(&program);
  program.handles.push_back(first.handle);
  program.launch(1, [&] {
    while (!ends.load()) {
      std::this_thread::yield();
    }
  });
  backend.mark(first.id);
  program.launch(1, [] {});
  const Uses uses = {lms::stream_bit(first.id), backend.now()};  // no mark covers it
  first.destroy();
  // The next stream with the handle has the number when the device has been idle, so that its marks cover what they
  // say.
  const Passing second(&program);
  CHECK(second.handle == first.handle);
  CHECK_EQ(second.id, lms::any_stream);
  const auto number = [&] {
    return backend.stream(reinterpret_cast<std::uintptr_t>(second.handle), /*lasting=*/false);
  };
  CHECK_EQ(number(), lms::any_stream);
  CHECK_EQ(sim_calls("cuCtxSynchronize"), 0);
  CHECK(!backend.over(uses));
  ends.store(true);
  CHECK(backend.order(uses, host_stream));
  CHECK_EQ(sim_calls("cuCtxSynchronize"), 1);
  CHECK_EQ(number(), first.id);
  CHECK(backend.over(uses));
  // The one after that has to wait again.
  second.destroy();
  const Passing third(&program);
  CHECK(third.handle == first.handle);
  CHECK_EQ(third.id, lms::any_stream);
}

CASE(a_passing_stream_without_an_identity) {
  Program program(1);
  lms::Backend& backend = *program.backend;
  constexpr int not_supported = 801;
  sim_fail("cuStreamGetId", 1, not_supported);
  sim_fail("cuStreamGetId", 3, not_supported);
  const Passing first(&program);
  CHECK_EQ(first.id, lms::any_stream);
  const auto number = [&] { return backend.stream(reinterpret_cast<std::uintptr_t>(first.handle), /*lasting=*/false); };
  const StreamId known = number();  // asks twice: for a number, and whether it is still the stream's
  CHECK_EQ(known, lms::any_stream);
  CHECK(number() < lms::any_stream);
}

CASE(a_passing_stream_with_many_marks) {
  environment("SIM_CUDA_MODE", "threads");
  Program program(1);
  lms::Backend& backend = *program.backend;
  std::atomic<bool> ends{false};
  const Passing stream(&program);
  program.handles.push_back(stream.handle);
  program.launch(1, [&] {
    while (!ends.load()) {
      std::this_thread::yield();
    }
  });
  const Uses first = {lms::stream_bit(stream.id), backend.now()};
  for (int index = 0; index < 10000; ++index) {
    backend.mark(stream.id);
  }
  CHECK(sim_calls("cuEventCreate") < 5000);
  stream.destroy();
  CHECK(!backend.over(first));
  ends.store(true);
  // The first mark is not in the queue any more; a later one covers what it did.
  CHECK(backend.order(first, host_stream));
  CHECK_EQ(sim_calls("cuCtxSynchronize"), 0);
  CHECK(backend.over(first));
}

// ---- pages

CASE(paging_does_not_wait) {
  // Paging out enqueues the copy and returns; paging in does, too, on top of it.
  Program program(1);
  char* address = program.filled(0, 0, 34 * mib, 7);
  const Uses uses = program.uses(0);
  CHECK(program.backend->order(uses, host_stream));
  const std::uint64_t waits = sim_calls("cuEventSynchronize");
  const Slot slot = program.slot(34 * mib);
  Uses copy;
  CHECK(program.backend->page_out(address, 34 * mib, slot, uses, &copy));
  CHECK(!Program::accessible(address, page));
  CHECK(sim_queued() >= 2);  // a copy per chunk
  page_in(&program, 0, address, 34 * mib, slot, copy);
  CHECK_EQ(sim_calls("cuEventSynchronize"), waits);
  CHECK_EQ(sim_calls("cuStreamSynchronize") + sim_calls("cuCtxSynchronize"), 0);
  expect(&program, 0, address, 34 * mib, 7);
}

CASE(a_busy_device_refuses_for_a_moment) {
  Program program(1);
  constexpr int not_ready = 600;
  for (const char* function : {"cuMemMap", "cuMemSetAccess", "cuMemUnmap"}) {
    sim_fail(function, 1, not_ready);
    sim_fail(function, 2, not_ready);
    char* address = program.filled(0, 0, 34 * mib, 7);
    const Slot slot = program.slot(34 * mib);
    Uses copy;
    page_out(&program, 0, address, 34 * mib, slot, &copy);
    sim_fail(function, 1, not_ready);
    page_in(&program, 0, address, 34 * mib, slot, copy);
    expect(&program, 0, address, 34 * mib, 7);
    CHECK(program.backend->unmap(address, 34 * mib, program.uses(0)));
    program.backend->trim(UINT64_MAX);
  }
}

CASE(a_device_that_stays_busy) {
  Program program(1);
  char* address = program.filled(0, 0, 34 * mib, 7);
  const Slot slot = program.slot(34 * mib);
  Uses copy;
  sim_fail("cuMemUnmap", 0, 600);
  const auto tries = [&] {
    const std::uint64_t before = sim_calls("cuMemUnmap");
    CHECK(!program.backend->page_out(address, 34 * mib, slot, program.uses(0), &copy));
    CHECK(contains(program.backend->failure(), "cuMemUnmap"));
    CHECK(!program.backend->lacked_memory());
    return sim_calls("cuMemUnmap") - before;
  };
  CHECK_EQ(tries(), 17);  // 20 us, doubled up to 0.7 s
  CHECK_EQ(tries(), 6);   // an operation may have many blocks to wait for
  sim_fail_clear();
  expect(&program, 0, address, 34 * mib, 7);
  page_out(&program, 0, address, 34 * mib, slot, &copy);
  for (const char* function : {"cuMemMap", "cuMemSetAccess"}) {
    sim_fail(function, 0, 600);
    Uses arrival;
    bool refused = true;
    CHECK(!program.backend->copy_in(address, 34 * mib, slot, Access::read_write, copy, &arrival, &refused));
    CHECK(!refused);
    CHECK(contains(program.backend->failure(), function));
    sim_fail_clear();
  }
  page_in(&program, 0, address, 34 * mib, slot, copy);  // which is answered
  sim_fail("cuMemUnmap", 0, 600);
  CHECK_EQ(tries(), 17);
  sim_fail_clear();
  expect(&program, 0, address, 34 * mib, 7);
}

CASE(chunks_move_on_before_the_copy) {
  // What leaves gives its memory at once to what comes, whose kernels wait for the copy on the device.
  Program program(2);
  char* first = program.filled(0, 0, 32 * mib, 1);
  const Slot slot = program.slot(32 * mib);
  Uses copy;
  page_out(&program, 0, first, 32 * mib, slot, &copy);
  const std::uint64_t waits = sim_calls("cuEventSynchronize");
  char* second = program.filled(1, 128 * mib, 32 * mib, 2);
  CHECK_EQ(sim_calls("cuEventSynchronize"), waits);
  CHECK_EQ(sim_used_bytes(0), 32 * mib);
  const Slot other = program.slot(32 * mib);
  Uses other_copy;
  page_out(&program, 1, second, 32 * mib, other, &other_copy);
  page_in(&program, 0, first, 32 * mib, slot, copy);
  expect(&program, 0, first, 32 * mib, 1);
  page_out(&program, 0, first, 32 * mib, slot, &copy);
  page_in(&program, 1, second, 32 * mib, other, other_copy);
  expect(&program, 1, second, 32 * mib, 2);
}

CASE(a_refusal_keeps_memory_busy) {
  // Memory that work still uses was about to become part of a range that is too large; its next owner waits for the
  // work.
  environment("SIM_CUDA_MODE", "threads");
  environment("SIM_CUDA_MEMORY", "134217728");
  Program program(2);
  char* first = program.filled(0, 0, 64 * mib, 1);
  CHECK(program.backend->order(program.uses(0), host_stream));
  Gate gate;
  gate.close(&program, 1);
  const Uses busy = program.uses(1);
  CHECK(program.backend->unmap(first, 64 * mib, busy));
  CHECK(!program.backend->map(program.place(128 * mib), 160 * mib, program.ids[0]));
  CHECK(program.backend->map(program.place(512 * mib), 64 * mib, program.ids[0]));
  std::atomic<bool> ran{false};
  program.launch(0, [&] { ran = true; });
  usleep(20000);
  CHECK(!ran.load());
  gate.open();
  rig::require(cuStreamSynchronize(program.handles[0]), "cuStreamSynchronize");
  CHECK(ran.load());
}

// A driver takes pages away for a moment to change what may be done with them, whatever uses them.
CASE(access_to_pages_never_changes) {
  Program program(1);
  CHECK(!program.backend->protects());
  char* address = program.filled(0, 0, 4 * mib, 3);
  const Slot slot = program.slot(4 * mib);
  Uses copy;
  page_out(&program, 0, address, 4 * mib, slot, &copy);
  bool refused = false;
  Uses in;
  CHECK(program.backend->copy_in(address, 4 * mib, slot, Access::read_only, copy, &in, &refused));
  CHECK(Program::accessible(address, 4 * mib, 3));
  CHECK(program.backend->order(in, program.ids[0]));
  expect(&program, 0, address, 4 * mib, 3);
  // Each of the two mappings got its access once, as the alias did.
  CHECK_EQ(sim_calls("cuMemSetAccess"), 3);
}

// ---- away, and readable

CASE(what_is_away_stays_readable) {
  environment("LMS_CUDA_READABLE", "1");
  Program program(2);
  const std::uint64_t mappings = sim_mappings();
  const Slot slot = program.slot(34 * mib);
  CHECK(sim_mappings() > mappings);
  char* address = program.filled(0, 0, 34 * mib, 1);
  Uses copy;
  leave(&program, 0, address, 34 * mib, slot, &copy);
  CHECK(program.backend->order(copy, host_stream));
  program.backend->mark(program.ids[1]);
  CHECK(Program::accessible(address, 34 * mib) && !Program::accessible(address, page, 3));
  expect(&program, 1, address, 34 * mib, 1);
  // Back, changed, and away again: never the old contents.
  page_in(&program, 0, address, 34 * mib, slot, copy);
  CHECK(Program::accessible(address, 34 * mib, 3));
  program.write(0, address, 34 * mib, 2);
  leave(&program, 0, address, 34 * mib, slot, &copy);
  sim_drain();
  program.backend->mark(program.ids[0]);
  expect(&program, 1, address, 34 * mib, 2);
  program.backend->forget(address);
  CHECK(!Program::accessible(address, page));
  program.store->release(slot, 34 * mib);
}

CASE(a_write_to_what_is_away_is_an_error) {
  environment("LMS_CUDA_READABLE", "1");
  Program program(1);
  const Slot slot = program.slot(4 * mib);
  char* address = program.filled(0, 0, 4 * mib, 1);
  Uses copy;
  leave(&program, 0, address, 4 * mib, slot, &copy);
  sim_drain();
  program.backend->mark(program.ids[0]);
  program.write(0, address, 4 * mib, 2);
  CHECK(cuStreamSynchronize(program.handles[0]) != 0);
  CHECK(sim_device_error(0) != 0);
}

CASE(without_mappable_host_memory_nothing_is_readable) {
  environment("LMS_CUDA_READABLE", "1");
  environment("SIM_CUDA_HOST_VMM", "0");
  Program program(1);
  const Slot slot = program.slot(4 * mib);
  char* address = program.filled(0, 0, 4 * mib, 1);
  Uses copy;
  page_out(&program, 0, address, 4 * mib, slot, &copy);
  sim_drain();
  program.backend->mark(program.ids[0]);
  CHECK(!Program::accessible(address, page));
  page_in(&program, 0, address, 4 * mib, slot, copy);
  expect(&program, 0, address, 4 * mib, 1);
}

CASE(refused_host_memory_is_pinned_otherwise) {
  environment("LMS_CUDA_READABLE", "1");
  Program program(1);
  sim_fail("cuMemCreate", 5, 2);
  const Slot slot = program.slot(64 * mib);
  sim_fail_clear();
  char* address = program.filled(0, 0, 4 * mib, 1);
  Uses copy;
  page_out(&program, 0, address, 4 * mib, slot, &copy);
  sim_drain();
  program.backend->mark(program.ids[0]);
  CHECK(!Program::accessible(address, page));
  page_in(&program, 0, address, 4 * mib, slot, copy);
  expect(&program, 0, address, 4 * mib, 1);
}

CASE(a_read_by_the_host_is_complete) {
  Program program(1);
  char* address = program.filled(0, 0, 4 * mib, 3);
  const Slot slot = program.slot(4 * mib);
  Uses copy;
  page_out(&program, 0, address, 4 * mib, slot, &copy);
  bool refused = false;
  CHECK(program.backend->copy_in(address, 4 * mib, slot, Access::read_only, copy, &copy, &refused));
  CHECK(program.backend->order(copy, host_stream));
  for (std::uint64_t offset = 0; offset < 4 * mib; offset += page) {
    CHECK_EQ(Program::at(address + offset, 1)[7], check::pattern_at(3, offset + 7));
  }
}

CASE(freed_while_in_use) {
  environment("SIM_CUDA_MODE", "threads");
  Program program(2);
  char* address = program.filled(0, 0, 32 * mib, 1);
  Gate gate;
  gate.close(&program, 0);
  program.read(0, address, 32 * mib, 1);  // the address stays mapped for it
  CHECK(program.backend->unmap(address, 32 * mib, program.uses(0)));
  CHECK(!program.backend->settled(address, 32 * mib));
  CHECK(!program.backend->settled(address + 30 * mib, 2 * mib));
  CHECK(program.backend->settled(address + 32 * mib, 32 * mib));
  program.filled(1, 128 * mib, 32 * mib, 2);  // in the same memory, once the kernel above is over
  CHECK_EQ(sim_used_bytes(0), 32 * mib);
  gate.open();
  rig::require(cuStreamSynchronize(program.handles[0]), "cuStreamSynchronize");
  CHECK_EQ(program.wrong.load(), 0);
  CHECK(program.backend->settled(address, 32 * mib));
  CHECK(!Program::accessible(address, page));
  expect(&program, 1, program.place(128 * mib), 32 * mib, 2);
}

CASE(a_range_that_is_not_settled_is_waited_for) {
  Program program(1);
  char* address = program.filled(0, 0, 4 * mib, 1);
  CHECK(program.backend->unmap(address, 4 * mib, program.uses(0)));
  CHECK(program.backend->map(address + page, 6 * mib, program.ids[0]));
  CHECK(!Program::accessible(address, page));
  CHECK(Program::accessible(address + page, 6 * mib, 3));
  program.write(0, address + page, 6 * mib, 2);
  expect(&program, 0, address + page, 6 * mib, 2);
}

CASE(a_range_has_few_chunks) {
  // As few as may be, and one for what is left over.
  Program program(1);
  std::uint64_t created = 0;
  const std::pair<std::uint64_t, std::uint64_t> sizes[] = {{2, 1}, {50, 1}, {64, 1}, {66, 2}, {200, 4}};
  std::uint64_t offset = 0;
  for (const auto& size : sizes) {
    const std::uint64_t before = sim_calls("cuMemMap");
    program.filled(0, offset, size.first * mib, size.first);
    created += size.second;
    CHECK_EQ(sim_calls("cuMemCreate"), created);
    CHECK_EQ(sim_calls("cuMemMap") - before, size.second);
    offset += 256 * mib;
  }
}

CASE(chunks_move_on_with_their_aliases) {
  // Blocks that take turns in the same memory need an unmapping and a mapping each time, and nothing else.
  Program program(1);
  const Slot slots[] = {program.slot(50 * mib), program.slot(50 * mib)};
  Uses copies[2];
  char* blocks[2] = {};
  for (const int index : {0, 1}) {
    blocks[index] = program.filled(0, static_cast<std::uint64_t>(index) * 128 * mib, 50 * mib, 10 + index);
    page_out(&program, 0, blocks[index], 50 * mib, slots[index], &copies[index]);
  }
  std::uint64_t calls[3] = {};
  const char* functions[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};
  for (int round = 0; round < 10; ++round) {
    const int index = round % 2;
    if (round == 2) {
      std::transform(std::begin(functions), std::end(functions), calls, sim_calls);
    }
    page_in(&program, 0, blocks[index], 50 * mib, slots[index], copies[index]);
    expect(&program, 0, blocks[index], 50 * mib, 10 + index);
    page_out(&program, 0, blocks[index], 50 * mib, slots[index], &copies[index]);
  }
  CHECK_EQ(sim_calls("cuMemCreate") - calls[0], 0);
  CHECK_EQ(sim_calls("cuMemMap") - calls[1], 8);
  CHECK_EQ(sim_calls("cuMemSetAccess") - calls[2], 8);
  CHECK_EQ(sim_used_bytes(0), 50 * mib);
}

CASE(chunks_of_the_wrong_size) {
  Program program(1);
  char* address = program.filled(0, 0, 128 * mib, 1);
  CHECK(program.backend->unmap(address, 128 * mib, program.uses(0)));
  CHECK_EQ(sim_used_bytes(0), 128 * mib);
  // Two of the largest are free. A small block takes the place of one of them.
  char* small = program.filled(0, 256 * mib, 4 * mib, 2);
  CHECK_EQ(sim_used_bytes(0), 68 * mib);
  // 60 MiB may be created before something has to go again.
  char* more = program.filled(0, 512 * mib, 60 * mib, 3);
  CHECK_EQ(sim_used_bytes(0), 128 * mib);
  char* last = program.filled(0, 768 * mib, 64 * mib, 4);
  CHECK_EQ(sim_used_bytes(0), 128 * mib);
  expect(&program, 0, small, 4 * mib, 2);
  expect(&program, 0, more, 60 * mib, 3);
  expect(&program, 0, last, 64 * mib, 4);
  // And the other way round: small ones go for a large block. What remains of their place is used next.
  CHECK(program.backend->unmap(small, 4 * mib, Uses{}));
  CHECK(program.backend->unmap(more, 60 * mib, Uses{}));
  program.filled(0, 1024 * mib, 62 * mib, 5);
  CHECK_EQ(sim_used_bytes(0), 126 * mib);
  program.filled(0, 1280 * mib, 2 * mib, 6);
  CHECK_EQ(sim_used_bytes(0), 128 * mib);
  expect(&program, 0, program.place(1024 * mib), 62 * mib, 5);
  expect(&program, 0, program.place(1280 * mib), 2 * mib, 6);
}

CASE(what_is_over_makes_room_first) {
  // Of two free chunks of the wrong size the one goes that nothing has to wait for.
  Program program(2);
  char* busy = program.filled(0, 0, 40 * mib, 1);
  char* idle = program.filled(1, 128 * mib, 44 * mib, 2);
  rig::require(cuStreamSynchronize(program.handles[1]), "cuStreamSynchronize");
  program.launch(0, [] {});
  CHECK(program.backend->unmap(busy, 40 * mib, program.uses(0)));
  CHECK(program.backend->unmap(idle, 44 * mib, Uses{}));
  const std::uint64_t waits = sim_calls("cuEventSynchronize");
  program.filled(1, 256 * mib, 20 * mib, 3);
  CHECK_EQ(sim_calls("cuEventSynchronize"), waits);
  CHECK_EQ(sim_used_bytes(0), 60 * mib);
}

CASE(the_device_is_full) {
  environment("SIM_CUDA_MEMORY", "67108864");
  Program program(1);
  char* first = program.filled(0, 0, 32 * mib, 1);
  char* second = program.filled(0, 128 * mib, 32 * mib, 2);
  char* third = program.place(256 * mib);
  CHECK(!program.backend->map(third, 2 * mib, program.ids[0]));
  CHECK(contains(program.backend->failure(), "CUDA_ERROR_OUT_OF_MEMORY"));
  const Slot slot = program.slot(32 * mib);
  Uses copy;
  page_out(&program, 0, first, 32 * mib, slot, &copy);
  CHECK(program.backend->map(third, 2 * mib, program.ids[0]));  // in the place of a large chunk
  Uses in;
  bool refused = false;
  CHECK(!program.backend->copy_in(first, 32 * mib, slot, Access::read_write, copy, &in, &refused));
  CHECK(refused);
  CHECK(!Program::accessible(first, page));
  CHECK(program.backend->unmap(third, 2 * mib, Uses{}));
  page_in(&program, 0, first, 32 * mib, slot, copy);
  expect(&program, 0, first, 32 * mib, 1);
  expect(&program, 0, second, 32 * mib, 2);
}

CASE(trim_gives_back) {
  Program program(1);
  char* address = program.filled(0, 0, 96 * mib, 1);
  const Slot slot = program.slot(96 * mib);
  Uses copy;
  page_out(&program, 0, address, 96 * mib, slot, &copy);
  CHECK(sim_queued() >= 2);  // so it has to wait for them
  CHECK_EQ(program.backend->trim(33 * mib), 64 * mib);
  CHECK_EQ(sim_used_bytes(0), 32 * mib);
  CHECK_EQ(program.backend->trim(UINT64_MAX), 32 * mib);
  CHECK_EQ(program.backend->trim(UINT64_MAX), 0);
  CHECK_EQ(sim_used_bytes(0), 0);
  page_in(&program, 0, address, 96 * mib, slot, copy);
  expect(&program, 0, address, 96 * mib, 1);
}

// ---- failures

CASE(a_failed_copy_leaves_the_range) {
  Program program(1);
  char* address = program.filled(0, 0, 66 * mib, 5);
  const Slot slot = program.slot(66 * mib);
  sim_fail("cuMemcpyDtoHAsync", 2, 1);
  Uses copy;
  CHECK(!program.backend->page_out(address, 66 * mib, slot, program.uses(0), &copy));
  CHECK(
      contains(program.backend->failure(), "cuMemcpyDtoHAsync failed on CUDA device 0 with CUDA_ERROR_INVALID_VALUE"));
  CHECK_EQ(sim_queued(), 0);  // nothing goes on writing to the slot
  CHECK(Program::accessible(address, 66 * mib, 3));
  expect(&program, 0, address, 66 * mib, 5);
  page_out(&program, 0, address, 66 * mib, slot, &copy);
  page_in(&program, 0, address, 66 * mib, slot, copy);
  expect(&program, 0, address, 66 * mib, 5);
}

CASE(every_call_fails_once) {
  const char* functions[] = {"cuCtxPushCurrent",   "cuThreadExchangeStreamCaptureMode",
                             "cuStreamWaitEvent",  "cuEventCreate",
                             "cuEventRecord",      "cuEventQuery",
                             "cuEventSynchronize", "cuMemCreate",
                             "cuMemMap",           "cuMemUnmap",
                             "cuMemSetAccess",     "cuMemcpyDtoHAsync",
                             "cuMemcpyHtoDAsync",  "cuMemHostRegister"};
  for (const char* function : functions) {
    unsigned failures = 0;
    for (std::uint64_t nth = 1; nth <= 6; ++nth) {
      Program program(2);
      lms::Backend& backend = *program.backend;
      Uses copy;
      bool refused = false;
      char* address = program.place(0);
      const Slot slot = program.slot(36 * mib);
      sim_fail(function, nth, 304);
      // Whatever fails is done again: then it works, and nothing is lost.
      const auto insist = [&](const std::function<bool()>& call) {
        if (call()) {
          return;
        }
        ++failures;
        CHECK(!backend.failure().empty());
        if (!call()) {
          CHECK_FAIL("%s, call %llu: %s", function, static_cast<unsigned long long>(nth), backend.failure().c_str());
        }
      };
      insist([&] { return backend.map(address, 36 * mib, program.ids[0]); });
      program.write(0, address, 36 * mib, nth);
      insist([&] { return backend.page_out(address, 36 * mib, slot, program.uses(0), &copy); });
      const Uses saved = copy;
      insist([&] { return backend.copy_in(address, 36 * mib, slot, Access::read_write, saved, &copy, &refused); });
      insist([&] { return backend.order(copy, program.ids[1]); });
      program.read(1, address, 36 * mib, nth);
      insist([&] { return backend.order(program.uses(1), program.ids[0]); });
      program.write(0, address, 36 * mib, 9);
      insist([&] { return backend.page_out(address, 36 * mib, slot, program.uses(0), &copy); });
      insist([&] { return backend.copy_in(address, 36 * mib, slot, Access::read_write, copy, &copy, &refused); });
      insist([&] { return backend.order(copy, program.ids[0]); });
      expect(&program, 0, address, 36 * mib, 9);
      insist([&] { return backend.unmap(address, 36 * mib, program.uses(0)); });
      sim_drain();
      CHECK(backend.settled(address, 36 * mib) || backend.settled(address, 36 * mib));
      sim_fail_clear();
    }
    std::printf("%s: %u failures were seen\n", function, failures);
  }
}

CASE(device_lost_in_mid_copy) {
  Program program(2);
  lms::Backend& backend = *program.backend;
  char* first = program.filled(0, 0, 32 * mib, 1);
  char* second = program.filled(0, 128 * mib, 32 * mib, 2);
  CHECK(backend.order(program.uses(0), host_stream));
  const Slot slot = program.slot(32 * mib);
  const Slot other = program.slot(32 * mib);
  Uses copy;
  page_out(&program, 0, first, 32 * mib, slot, &copy);
  CHECK(sim_queued() >= 1);
  program.write(0, second, 32 * mib, 3);
  const Uses uses = program.uses(0);
  sim_device_lost(0, lost);
  bool refused = false;
  Uses in;
  CHECK(!backend.copy_in(first, 32 * mib, slot, Access::read_write, copy, &in, &refused));
  CHECK(!refused);
  CHECK(contains(backend.failure(), "CUDA_ERROR_LAUNCH_FAILED"));
  CHECK(!backend.page_out(second, 32 * mib, other, uses, &in));
  CHECK(!backend.order(copy, host_stream));
  CHECK(!backend.order(copy, program.ids[1]));
  CHECK(!backend.order(Uses{lms::stream_bit(any_stream), backend.now()}, host_stream));
  backend.over(copy);
  backend.over(uses);
  CHECK(!backend.map(program.place(256 * mib), 64 * mib, program.ids[0]));
  backend.mark(program.ids[0]);
  backend.trim(UINT64_MAX);
  backend.unmap(second, 32 * mib, uses);
  CHECK(program.store->allocate(32 * mib, const_cast<Slot*>(&other)));
}

CASE(device_lost_while_threads_wait) {
  environment("SIM_CUDA_MODE", "threads");
  Program program(2);
  Gate gate;
  char* address = program.filled(0, 0, 32 * mib, 1);
  const Slot slot = program.slot(32 * mib);
  gate.close(&program, 0);
  const Uses uses = program.uses(0);
  std::atomic<unsigned> failed{0};
  std::vector<std::thread> threads;
  threads.emplace_back([&] { failed += program.backend->order(uses, host_stream) ? 0 : 1; });
  threads.emplace_back([&] {
    const Uses all = {lms::stream_bit(any_stream), program.backend->now()};
    failed += program.backend->order(all, host_stream) ? 0 : 1;
  });
  threads.emplace_back([&] {
    Uses copy;
    failed += program.backend->page_out(address, 32 * mib, slot, uses, &copy) ? 0 : 1;
  });
  usleep(20000);
  sim_device_lost(0, lost);
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK_EQ(failed.load(), 3);
  gate.open();
}

CASE(driver_shut_down) {
  // As at the end of a process, when others' destructors still free memory: errors, and nothing worse.
  Program program(1);
  char* address = program.filled(0, 0, 4 * mib, 1);
  const Uses uses = program.uses(0);
  const Slot slot = program.slot(4 * mib);
  for (const char* function : {"cuCtxGetCurrent", "cuCtxPushCurrent", "cuMemUnmap", "cuEventQuery", "cuEventRecord"}) {
    sim_fail(function, 0, 4);
  }
  Uses copy;
  CHECK(!program.backend->page_out(address, 4 * mib, slot, uses, &copy));
  CHECK(contains(program.backend->failure(), "cuCtxPushCurrent failed"));
  CHECK(!program.backend->unmap(address, 4 * mib, uses));
  program.backend->mark(program.ids[0]);
  program.store->release(slot, 4 * mib);
}

// ---- threads, forks, captures

CASE(a_thread_without_a_device) {
  Program program(1);
  char* address = program.filled(0, 0, 4 * mib, 1);
  const Uses uses = program.uses(0);
  const Slot slot = program.slot(4 * mib);
  std::thread([&] {
    void* context = nullptr;
    rig::require(cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    CHECK(context == nullptr);
    program.backend->mark(program.ids[0]);
    CHECK(program.backend->stream(reinterpret_cast<std::uintptr_t>(program.handles[0]), true) == program.ids[0]);
    Uses copy;
    CHECK(program.backend->page_out(address, 4 * mib, slot, uses, &copy));
    page_in(&program, 0, address, 4 * mib, slot, copy);
    char* other = program.place(128 * mib);
    CHECK(program.backend->map(other, 34 * mib, program.ids[0]));
    CHECK(program.backend->unmap(other, 34 * mib, program.uses(0)));
    CHECK(program.backend->order(program.uses(0), host_stream) && program.backend->settled(other, 34 * mib));
    CHECK_EQ(program.backend->trim(UINT64_MAX), 34 * mib);
    program.slot(100 * mib);
    rig::require(cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    CHECK(context == nullptr);  // as it was
  }).join();
  expect(&program, 0, address, 4 * mib, 1);
}

CASE(a_forked_child) {
  Program program(1);
  lms::Backend& backend = *program.backend;
  char* address = program.filled(0, 0, 4 * mib, 1);
  const Slot slot = program.slot(4 * mib);
  Slot away = program.slot(4 * mib);
  char* second = program.filled(0, 128 * mib, 4 * mib, 2);
  Uses copy;
  page_out(&program, 0, second, 4 * mib, away, &copy);
  const Uses uses = program.uses(0);
  const pid_t child = fork();
  if (child == 0) {
    backend.after_fork_in_child();
    Uses none;
    bool refused = false;
    const std::uint64_t calls = sim_calls("cuCtxGetCurrent") + sim_calls("cuEventQuery");
    CHECK(!backend.map(program.place(256 * mib), 2 * mib, program.ids[0]));
    CHECK(contains(backend.failure(), "forked child"));
    CHECK(contains(backend.failure(), "spawn"));
    CHECK(!backend.page_out(address, 4 * mib, slot, uses, &none));
    CHECK(!backend.copy_in(second, 4 * mib, away, Access::read_write, copy, &none, &refused));
    CHECK(!refused);
    CHECK(!backend.order(uses, host_stream));
    CHECK(!backend.add_peer(0));
    CHECK(backend.unmap(address, 4 * mib, uses));
    CHECK(backend.settled(address, 4 * mib));
    CHECK(backend.over(uses));
    CHECK_EQ(backend.trim(UINT64_MAX), 0);
    backend.mark(program.ids[0]);
    program.store->release(away, 4 * mib);
    lms::Status status;
    CHECK(lms::make_cuda_backend(0, 0, &status) == nullptr);
    CHECK(contains(status.message, "forked"));
    program.store.reset();
    program.backend.reset();
    CHECK_EQ(sim_calls("cuCtxGetCurrent") + sim_calls("cuEventQuery"), calls);
    std::_Exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  page_in(&program, 0, second, 4 * mib, away, copy);
  expect(&program, 0, second, 4 * mib, 2);
  expect(&program, 0, address, 4 * mib, 1);
}

CASE(a_child_writes_while_the_device_copies) {
  // Pinned memory is not the child's: what lies there is neither copied for it nor taken from under the device.
  Program program(1);
  char* address = program.filled(0, 0, 4 * mib, 1);
  const Slot slot = program.slot(4 * mib);
  char* host = slot.segment->at(slot.offset);
  CHECK(host != nullptr);
  const pid_t child = fork();
  if (child == 0) {
    unsigned char resident = 0;
    std::_Exit(mincore(host, 4096, &resident) != 0 ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  Uses copy;
  page_out(&program, 0, address, 4 * mib, slot, &copy);
  page_in(&program, 0, address, 4 * mib, slot, copy);
  expect(&program, 0, address, 4 * mib, 1);
}

CASE(while_a_graph_is_captured) {
  Program program(2);
  lms::Backend& backend = *program.backend;
  char* captured = program.filled(0, 0, 4 * mib, 1);
  char* unmarked = program.filled(0, 64 * mib, 4 * mib, 5);
  char* other = program.filled(1, 128 * mib, 4 * mib, 2);
  const Uses before = program.uses(0);
  const Slot slot = program.slot(4 * mib);
  backend.mark(program.ids[0]);
  rig::require(cuStreamBeginCapture_v2(program.handles[0], 0), "cuStreamBeginCapture");  // the strictest mode
  program.read(0, captured, 4 * mib, 1);
  const Uses inside = program.uses(0);
  const std::uint64_t records = sim_calls("cuEventRecord");
  backend.mark(program.ids[0]);
  CHECK(!backend.over(inside));
  CHECK_EQ(sim_calls("cuEventRecord"), records);
  Uses copy;
  CHECK(!backend.page_out(captured, 4 * mib, slot, inside, &copy));
  CHECK(contains(backend.failure(), "capturing a CUDA graph"));
  CHECK(Program::accessible(captured, 4 * mib, 3));
  // A use from before the capture that has a mark is no problem, nor is the capturing stream as a user: the host waits.
  const std::uint64_t waits = sim_calls("cuStreamWaitEvent");
  page_out(&program, 1, other, 4 * mib, slot, &copy);
  bool refused = false;
  Uses in;
  CHECK(backend.copy_in(other, 4 * mib, slot, Access::read_write, copy, &in, &refused));
  CHECK(backend.order(in, program.ids[0]));
  CHECK(backend.over(in));
  const Slot third = program.slot(4 * mib);
  CHECK(backend.page_out(unmarked, 4 * mib, third, before, &copy));
  CHECK(backend.order(program.uses(1), program.ids[0]));
  CHECK(!backend.order(Uses{lms::stream_bit(any_stream), backend.now()}, host_stream));
  CHECK(contains(backend.failure(), "graph is captured"));
  (void)waits;
  // The capture survived all of it.
  void* graph = nullptr;
  rig::require(cuStreamEndCapture(program.handles[0], &graph), "cuStreamEndCapture");
  expect(&program, 1, other, 4 * mib, 2);
  CHECK(backend.order(inside, host_stream));
  expect(&program, 0, captured, 4 * mib, 1);
}

// ---- stores

CASE(through_a_file) {
  Program program(1);
  std::string error;
  lms::FileStoreOptions options;
  options.directories = {check::directory()};
  const auto store = lms::make_file_store(options, &error);
  CHECK(store != nullptr);
  Slot slot;
  CHECK(store->allocate(38 * mib, &slot));
  char* address = program.filled(0, 0, 38 * mib, 4);
  Uses copy;
  page_out(&program, 0, address, 38 * mib, slot, &copy);
  CHECK_EQ(copy.streams, 0);  // complete
  page_in(&program, 0, address, 38 * mib, slot, copy);
  expect(&program, 0, address, 38 * mib, 4);
}

namespace {

// A store on a disk that fails.
class BrokenSegment final : public lms::Segment {
 public:
  BrokenSegment() : Segment(64 * mib) {}
  bool write(std::uint64_t /*offset*/, const char* /*from*/, std::size_t /*bytes*/) override {
    errno = EIO;
    return --good_ >= 0;
  }
  bool read(std::uint64_t /*offset*/, char* /*to*/, std::size_t /*bytes*/) override {
    errno = EIO;
    return --good_ >= 0;
  }

 private:
  int good_ = 2;
};

}  // namespace

CASE(a_store_that_fails) {
  Program program(1);
  BrokenSegment segment;
  const Slot slot = {program.store.get(), &segment, 0};
  char* address = program.filled(0, 0, 34 * mib, 4);
  Uses copy;
  CHECK(!program.backend->page_out(address, 34 * mib, slot, program.uses(0), &copy));
  CHECK(contains(program.backend->failure(), "cannot be written: Input/output error"));
  expect(&program, 0, address, 34 * mib, 4);
  bool refused = false;
  char* other = program.place(128 * mib);
  CHECK(!program.backend->copy_in(other, 34 * mib, slot, Access::read_write, Uses{}, &copy, &refused));
  CHECK(!refused);
  CHECK(contains(program.backend->failure(), "cannot be read: Input/output error"));
  CHECK(!Program::accessible(other, page));
}

// What goes to stderr until the end is asked for.
class Said {
 public:
  Said() : before_(dup(2)) {
    CHECK(pipe(ends_) == 0);
    dup2(ends_[1], 2);
  }

  std::string end() {
    dup2(before_, 2);
    close(ends_[1]);
    std::array<char, 4096> text = {};
    return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(read(ends_[0], text.data(), text.size()), 0))};
  }

 private:
  const int before_;
  int ends_[2] = {};
};

CASE(pinning_refused) {
  Said said;
  sim_set("pinned_limit", "0");
  Program program(1);
  const Slot slot = program.slot(34 * mib);
  const Slot second = program.slot(100 * mib);
  CHECK(slot.segment->at(slot.offset) == nullptr && second.segment->at(second.offset) == nullptr);
  char* address = program.filled(0, 0, 34 * mib, 4);
  Uses copy;
  page_out(&program, 0, address, 34 * mib, slot, &copy);
  page_in(&program, 0, address, 34 * mib, slot, copy);
  expect(&program, 0, address, 34 * mib, 4);
  const std::string text = said.end();
  CHECK(contains(text, "cannot be pinned"));
  CHECK(contains(text, "ulimit -l"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);  // once
}

CASE(pinning_that_the_driver_does_not_do) {
  Said said;
  sim_fail("cuMemHostRegister", 0, 801);
  Program program(1);
  CHECK(program.slot(34 * mib).segment->at(0) == nullptr);
  const std::string text = said.end();
  CHECK(contains(text, "cannot be pinned"));
  CHECK(contains(text, "NOT_SUPPORTED") && contains(text, "driver does not do that") && !contains(text, "ulimit"));
}

CASE(slabs_grow_while_copies_run) {
  Program program(1);
  std::vector<Uses> copies(6);
  std::vector<Slot> slots;
  for (std::uint64_t index = 0; index < copies.size(); ++index) {
    char* address = program.filled(0, index * 128 * mib, 34 * mib, index);
    slots.push_back(program.slot(34 * mib));
    page_out(&program, 0, address, 34 * mib, slots.back(), &copies[index]);
  }
  CHECK(sim_pinned_bytes() >= 6 * 34 * mib);
  for (std::uint64_t index = 0; index < copies.size(); ++index) {
    page_in(&program, 0, program.place(index * 128 * mib), 34 * mib, slots[index], copies[index]);
    expect(&program, 0, program.place(index * 128 * mib), 34 * mib, index);
  }
  const std::uint64_t pinned = sim_pinned_bytes();
  for (const Slot& slot : slots) {
    program.store->release(slot, 34 * mib);
  }
  CHECK_EQ(sim_pinned_bytes(), pinned);  // kept for what leaves next
  program.store->take_empty();
  CHECK_EQ(sim_pinned_bytes(), 0);
}

// ---- other devices and processes

CASE(peers) {
  environment("SIM_CUDA_DEVICES", "2");
  Program program(1);
  lms::Backend& backend = *program.backend;
  char* first = program.filled(0, 0, 4 * mib, 1);
  const auto from_peer = [](const char* address, int access) {
    return sim_accessible(1, reinterpret_cast<std::uintptr_t>(address), 4 * mib, access) != 0;
  };
  CHECK(!from_peer(first, 1));
  CHECK(!backend.add_peer(2));
  CHECK(backend.add_peer(1));
  CHECK(backend.add_peer(1));
  CHECK(from_peer(first, 3));
  char* second = program.filled(0, 64 * mib, 4 * mib, 2);
  CHECK(from_peer(second, 3));
  CHECK(backend.order(program.uses(0), host_stream));
  const Slot slot = program.slot(4 * mib);
  Uses copy;
  page_out(&program, 0, first, 4 * mib, slot, &copy);
  CHECK(!from_peer(first, 1));
  page_in(&program, 0, first, 4 * mib, slot, copy);
  CHECK(from_peer(first, 3));
}

CASE(a_range_in_another_process) {
  int to_child[2];
  CHECK(pipe(to_child) == 0);
  struct Message {
    lms::CudaExport exports[2];
  };
  const pid_t parent = getpid();
  const pid_t child = fork();  // before anybody has called CUDA
  close(child == 0 ? to_child[1] : to_child[0]);  // so that neither waits for one that has failed
  if (child == 0) {
    Message message = {};
    CHECK(read(to_child[0], &message, sizeof message) == sizeof message);
    std::string error;
    rig::set_device();
    const std::vector<lms::CudaExport> exports(message.exports, message.exports + 2);
    auto import = lms::CudaImport::open(0, parent, exports, &error);
    if (import == nullptr) {
      CHECK_FAIL("%s", error.c_str());
    }
    CHECK_EQ(import->bytes(), 68 * mib);
    for (std::uint64_t offset = 0; offset < 68 * mib; offset += page) {
      std::uint64_t* words = Program::at(import->address() + offset, 3);
      CHECK(words != nullptr);
      CHECK_EQ(words[7], check::pattern_at(6, offset + 7));
      words[0] = check::pattern_at(8, offset);
      words[7] = check::pattern_at(8, offset + 7);
    }
    const std::vector<lms::CudaExport> wrong(1, lms::CudaExport{9999, 2 * mib});
    CHECK(lms::CudaImport::open(0, parent, wrong, &error) == nullptr);
    CHECK(contains(error, "pidfd_getfd"));
    import.reset();
    CHECK_EQ(sim_mappings(), 0);
    std::_Exit(0);
  }
  prctl(PR_SET_PTRACER, child, 0, 0, 0);
  Program program(1);
  char* address = program.filled(0, 0, 68 * mib, 6);
  rig::require(cuStreamSynchronize(program.handles[0]), "cuStreamSynchronize");
  std::vector<lms::CudaExport> exports;
  CHECK(program.backend->export_range(address, &exports));
  CHECK_EQ(exports.size(), 2);
  Message message = {};
  std::copy(exports.begin(), exports.end(), message.exports);
  CHECK(write(to_child[1], &message, sizeof message) == sizeof message);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  for (const lms::CudaExport& one : exports) {
    close(one.file);
  }
  expect(&program, 0, address, 68 * mib, 8);
  exports.clear();
  CHECK(!program.backend->export_range(program.place(128 * mib), &exports));
}

// What the simulated CUDA promises in sim.h, through the driver's interface. `simulator_units NAME` runs one case; the
// options that some need come from the environment (test_simulator.py).
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "sim.h"

using Address = std::uint64_t;
using Handle = std::uint64_t;

struct Location {
  int type;
  int id;
};
struct Properties {
  int type;
  int handle_types;
  Location location;
  void* win32;
  unsigned char flags[8];
};
struct AccessDescription {
  Location location;
  int flags;
};

extern "C" {
int cuInit(unsigned);
int cuDriverGetVersion(int*);
int cuDeviceGetAttribute(int*, int, int);
int cuDevicePrimaryCtxRetain(void**, int);
int cuCtxSetCurrent(void*);
int cuCtxSynchronize();
int cuCtxEnablePeerAccess(void*, unsigned);
int cuMemGetInfo_v2(std::size_t*, std::size_t*);
int cuMemAlloc_v2(Address*, std::size_t);
int cuMemFree_v2(Address);
int cuMemAllocAsync(Address*, std::size_t, void*);
int cuMemFreeAsync(Address, void*);
int cuMemHostAlloc(void**, std::size_t, unsigned);
int cuMemFreeHost(void*);
int cuMemHostRegister_v2(void*, std::size_t, unsigned);
int cuMemHostUnregister(void*);
int cuMemAddressReserve(Address*, std::size_t, std::size_t, Address, unsigned long long);
int cuMemAddressFree(Address, std::size_t);
int cuMemCreate(Handle*, std::size_t, const Properties*, unsigned long long);
int cuMemRelease(Handle);
int cuMemMap(Address, std::size_t, std::size_t, Handle, unsigned long long);
int cuMemUnmap(Address, std::size_t);
int cuMemSetAccess(Address, std::size_t, const AccessDescription*, std::size_t);
int cuMemRetainAllocationHandle(Handle*, void*);
int cuMemExportToShareableHandle(void*, Handle, int, unsigned long long);
int cuMemImportFromShareableHandle(Handle*, void*, int);
int cuMemcpyHtoD_v2(Address, const void*, std::size_t);
int cuMemcpyDtoH_v2(void*, Address, std::size_t);
int cuMemcpyAsync(Address, Address, std::size_t, void*);
int cuMemsetD8Async(Address, unsigned char, std::size_t, void*);
int cuMemsetD32Async(Address, unsigned, std::size_t, void*);
int cuStreamCreate(void**, unsigned);
int cuStreamDestroy_v2(void*);
int cuStreamQuery(void*);
int cuStreamSynchronize(void*);
int cuStreamWaitEvent(void*, void*, unsigned);
int cuEventCreate(void**, unsigned);
int cuEventDestroy_v2(void*);
int cuEventRecord(void*, void*);
int cuEventQuery(void*);
int cuEventSynchronize(void*);
int cuEventElapsedTime(float*, void*, void*);
int cuLaunchHostFunc(void*, void (*)(void*), void*);
int cuThreadExchangeStreamCaptureMode(int*);
int cuStreamBeginCapture_v2(void*, int);
int cuStreamEndCapture(void*, void**);
int cuStreamIsCapturing(void*, int*);
int cuGraphInstantiateWithFlags(void**, void*, unsigned long long);
int cuGraphLaunch(void*, void*);
int cuGraphDestroy(void*);
int cuGraphExecDestroy(void*);
int cuModuleLoadData(void**, const void*);
int cuModuleUnload(void*);
int cuModuleGetFunction(void**, void*, const char*);
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
int cuGetProcAddress_v2(const char*, void**, int, std::uint64_t, int*);
int cuPointerGetAttribute(void*, int, Address);
}

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t granule = 2 * mib;
constexpr int read_only = 1;
constexpr int read_write = 3;
constexpr int illegal_address = 700;

struct Case {
  const char* name;
  void (*run)();
};

std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Registration {
  Registration(const char* name, void (*run)()) { cases().push_back(Case{name, run}); }
};

// pytest reads the names of the cases from the source, so CASE starts a line.
#define CASE(name)                                            \
  void case_##name();                                         \
  const Registration registration_##name(#name, case_##name); \
  void case_##name()

#define CHECK_EQ(left, right)                                                                                    \
  do {                                                                                                           \
    const long long check_left = static_cast<long long>(left);                                                   \
    const long long check_right = static_cast<long long>(right);                                                 \
    if (check_left != check_right) {                                                                             \
      std::fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #left, check_left, check_right); \
      std::fflush(nullptr);                                                                                      \
      std::_Exit(1);                                                                                             \
    }                                                                                                            \
  } while (false)
#define CHECK(condition) CHECK_EQ((condition) ? 1 : 0, 1)
#define OK(call) CHECK_EQ(call, 0)

void* start(int device = 0) {
  void* context = nullptr;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  return context;
}

void* new_stream(unsigned flags = 1) {
  void* stream = nullptr;
  OK(cuStreamCreate(&stream, flags));
  return stream;
}

void* new_event(unsigned flags = 2) {
  void* event = nullptr;
  OK(cuEventCreate(&event, flags));
  return event;
}

const Properties on_device = {1, 1, {1, 0}, nullptr, {}};

Handle create(std::uint64_t bytes = granule) {
  Handle handle = 0;
  OK(cuMemCreate(&handle, bytes, &on_device, 0));
  return handle;
}

Address reserve(std::uint64_t bytes) {
  Address address = 0;
  OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  CHECK_EQ(address % granule, 0);
  return address;
}

int set_access(Address address, std::uint64_t bytes, int flags, int device = 0) {
  const AccessDescription access = {{1, device}, flags};
  return cuMemSetAccess(address, bytes, &access, 1);
}

Address mapped(std::uint64_t bytes = granule) {
  const Address address = reserve(bytes);
  const Handle handle = create(bytes);
  OK(cuMemMap(address, bytes, 0, handle, 0));
  OK(set_access(address, bytes, read_write));
  OK(cuMemRelease(handle));
  return address;
}

char byte_at(Address address) {
  char byte = 0;
  OK(cuMemcpyDtoH_v2(&byte, address, 1));
  return byte;
}

// One stream writes, another one reads; with or without an event between them. Whether the reader saw the write.
bool read_after_write(std::uint64_t seed, bool with_event) {
  static const Address from = mapped();
  static const Address to = mapped();
  static void* const writer = new_stream();
  static void* const reader = new_stream();
  static void* const event = new_event();
  sim_seed(seed);
  OK(cuMemsetD8Async(from, 1, 64, nullptr));
  OK(cuCtxSynchronize());
  OK(cuMemsetD8Async(from, 2, 64, writer));
  if (with_event) {
    OK(cuEventRecord(event, writer));
    OK(cuStreamWaitEvent(reader, event, 0));
  }
  OK(cuMemcpyAsync(to, from, 64, reader));
  OK(cuStreamSynchronize(reader));
  const bool seen = byte_at(to) == 2;
  OK(cuCtxSynchronize());
  return seen;
}

CASE(copies_and_fills_move_all_bytes) {
  start();
  const Address address = mapped(2 * granule);
  std::vector<char> from(3 * mib);
  std::vector<char> to(3 * mib);
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<char>(i * 7 + i / 4096);
  }
  OK(cuMemcpyHtoD_v2(address + 12345, from.data(), from.size()));
  OK(cuMemcpyDtoH_v2(to.data(), address + 12345, to.size()));
  CHECK(from == to);
  void* stream = new_stream();
  OK(cuMemsetD32Async(address, 0x04030201, 1000, stream));
  OK(cuStreamSynchronize(stream));
  for (int i = 0; i < 4000; i += 997) {
    CHECK_EQ(byte_at(address + static_cast<Address>(i)), i % 4 + 1);
  }
}

CASE(a_missing_event_shows) {
  start();
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    wrong += read_after_write(seed, false) ? 0 : 1;
    CHECK(read_after_write(seed, true));
  }
  CHECK(wrong > 0);
  CHECK(wrong < 40);
}

CASE(a_dropped_wait_shows) {
  start();
  CHECK_EQ(sim_set("drop_waits", "1"), 0);
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    wrong += read_after_write(seed, true) ? 0 : 1;
  }
  CHECK(wrong > 0);
}

CASE(an_early_answer_shows) {
  start();
  const Address address = mapped();
  void* stream = new_stream();
  void* event = new_event();
  void* pinned = nullptr;
  OK(cuMemHostAlloc(&pinned, 4096, 0));
  volatile char* const seen = static_cast<char*>(pinned);
  OK(cuMemsetD8Async(address, 1, 1, stream));
  for (const char* early : {"0", "1"}) {
    CHECK_EQ(sim_set("early_events", early), 0);
    int wrong = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      sim_seed(seed);
      *seen = 0;
      OK(cuMemcpyAsync(reinterpret_cast<Address>(pinned), address, 1, stream));
      OK(cuEventRecord(event, stream));
      OK(cuEventSynchronize(event));
      wrong += *seen == 1 ? 0 : 1;
      OK(cuStreamSynchronize(stream));
    }
    CHECK_EQ(wrong > 0, *early == '1');
  }
}

CASE(a_seed_repeats_the_schedule) {
  start();
  const Address address = mapped();
  std::vector<void*> streams;
  for (int i = 0; i < 6; ++i) {
    streams.push_back(new_stream());
  }
  const auto order = [&](std::uint64_t seed) {
    static std::string seen;
    sim_seed(seed);
    seen.clear();
    static const char names[] = "abcdef";
    for (int round = 0; round < 10; ++round) {
      for (std::size_t i = 0; i < streams.size(); ++i) {
        OK(cuLaunchHostFunc(
            streams[i], [](void* name) { seen += *static_cast<const char*>(name); }, const_cast<char*>(names + i)));
      }
    }
    OK(cuMemsetD8Async(address, 1, 1, streams[0]));
    OK(cuStreamSynchronize(streams[3]));
    OK(cuCtxSynchronize());
    return seen;
  };
  const std::string first = order(1);
  CHECK_EQ(first.size(), 60);
  CHECK(order(1) == first);
  CHECK(order(2) != first);
}

CASE(nothing_runs_before_it_may) {
  start();
  const Address address = mapped();
  void* stream = new_stream();
  void* other = new_stream();
  void* event = new_event();
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    sim_seed(seed);
    // The wait is for the first recording, not for the one that follows.
    OK(cuMemsetD8Async(address, 1, 1, stream));
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(other, event, 0));
    OK(cuMemsetD8Async(address, 2, 1, other));
    OK(cuEventRecord(event, other));
    OK(cuEventSynchronize(event));
    OK(cuEventQuery(event));
    CHECK_EQ(byte_at(address), 2);
    OK(cuCtxSynchronize());
  }
}

CASE(a_lazy_schedule_runs_what_is_waited_for_alone) {
  start();
  CHECK_EQ(sim_set("lazy", "1"), 0);
  void* stream = new_stream();
  void* other = new_stream();
  void* event = new_event();
  static std::atomic<int> runs{0};
  const auto enqueue = [](void* on) { OK(cuLaunchHostFunc(on, [](void*) { ++runs; }, nullptr)); };
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    sim_seed(seed);
    runs = 0;
    for (int i = 0; i < 20; ++i) {
      enqueue(other);
    }
    enqueue(stream);
    CHECK_EQ(runs, 0);
    OK(cuStreamSynchronize(stream));
    CHECK_EQ(runs, 1);
    enqueue(other);
    OK(cuEventRecord(event, other));
    OK(cuStreamWaitEvent(stream, event, 0));
    enqueue(other);
    OK(cuStreamSynchronize(stream));
    CHECK_EQ(runs, 22);
    while (cuStreamQuery(other) != 0) {  // who only asks comes to an end as well
    }
    CHECK_EQ(runs, 23);
  }
}

CASE(a_program_that_is_stuck_is_told) {
  start();
  CHECK_EQ(sim_set("patience", "1"), 0);
  void* stream = new_stream();
  void* other = new_stream();
  void* event = new_event();
  static std::atomic<bool> begun{false};
  static std::atomic<bool> goes_on{false};
  std::thread stuck([stream] {
    void* context = nullptr;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuLaunchHostFunc(
        stream,
        [](void*) {
          begun = true;
          while (!goes_on) {
            std::this_thread::yield();
          }
        },
        nullptr));
    CHECK_EQ(cuStreamSynchronize(stream), 999);
  });
  while (!begun) {
    std::this_thread::yield();
  }
  OK(cuEventRecord(event, stream));
  OK(cuStreamWaitEvent(other, event, 0));
  CHECK_EQ(cuStreamSynchronize(other), 999);
  goes_on = true;
  stuck.join();
}

CASE(events_tell_what_is_over) {
  start();
  const Address address = mapped();
  void* stream = new_stream();
  void* before = new_event(0);
  void* after = new_event(0);
  OK(cuEventQuery(before));
  OK(cuEventRecord(before, stream));
  for (int i = 0; i < 20; ++i) {
    OK(cuMemsetD8Async(address, 1, 1, stream));
  }
  OK(cuEventRecord(after, stream));
  int polls = 0;
  int code = 0;
  while ((code = cuEventQuery(after)) == 600) {
    ++polls;
    CHECK(polls < 1000000);
  }
  OK(code);
  CHECK(polls > 0);
  float ms = -1;
  OK(cuEventElapsedTime(&ms, before, after));
  CHECK(ms >= 0);
  OK(cuStreamQuery(stream));
  OK(cuEventDestroy_v2(after));
  CHECK_EQ(cuEventQuery(after), 400);
  OK(cuStreamDestroy_v2(stream));
}

CASE(the_handle_of_a_destroyed_stream) {
  const pid_t child = fork();
  start();
  void* first = new_stream();
  void* second = new_stream();
  OK(cuStreamDestroy_v2(first));
  CHECK(new_stream() == first);  // a program that kept the handle meets another stream
  int unknown = 0;
  CHECK_EQ(cuStreamSynchronize(&unknown), 400);
  OK(cuStreamDestroy_v2(second));
  if (child == 0) {
    cuStreamSynchronize(second);
    _exit(0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

CASE(the_legacy_stream_orders_blocking_ones) {
  start();
  const Address address = mapped();
  void* blocking = new_stream(0);
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    sim_seed(seed);
    OK(cuMemsetD8Async(address, 1, 1, blocking));
    OK(cuMemsetD8Async(address, 2, 1, nullptr));
    OK(cuMemsetD8Async(address + 1, 3, 1, nullptr));
    OK(cuMemcpyAsync(address + 2, address, 2, blocking));
    OK(cuStreamSynchronize(blocking));
    CHECK_EQ(byte_at(address + 2), 2);
    CHECK_EQ(byte_at(address + 3), 3);
  }
}

CASE(an_access_without_a_mapping_loses_the_device) {
  start();
  const Address address = mapped(2 * granule);
  void* stream = new_stream();
  OK(cuMemsetD8Async(address, 1, 2 * granule, stream));
  OK(cuStreamSynchronize(stream));
  OK(cuMemUnmap(address, 2 * granule));
  OK(cuMemsetD8Async(address + granule, 1, 1, stream));
  CHECK_EQ(cuStreamSynchronize(stream), illegal_address);
  CHECK_EQ(sim_device_error(0), illegal_address);
  Address other = 0;
  CHECK_EQ(cuMemAlloc_v2(&other, 1), illegal_address);
  CHECK_EQ(cuStreamSynchronize(stream), illegal_address);
  CHECK_EQ(cuMemsetD8Async(address, 1, 1, stream), illegal_address);
}

CASE(an_access_past_a_mapping_loses_the_device) {
  start();
  const Address address = reserve(2 * granule);
  const Handle handle = create();
  OK(cuMemMap(address, granule, 0, handle, 0));
  OK(set_access(address, granule, read_write));
  void* stream = new_stream();
  OK(cuMemsetD8Async(address + granule - 8, 1, 9, stream));
  CHECK_EQ(cuCtxSynchronize(), illegal_address);
}

CASE(a_write_where_only_reads_are_allowed_loses_the_device) {
  start();
  const Address address = mapped();
  void* stream = new_stream();
  OK(cuMemsetD8Async(address, 9, 1, stream));
  OK(cuStreamSynchronize(stream));
  OK(set_access(address, granule, read_only));
  CHECK_EQ(byte_at(address), 9);
  CHECK(sim_accessible(0, address, granule, read_only));
  CHECK(!sim_accessible(0, address, granule, read_write));
  OK(cuMemsetD8Async(address, 1, 1, stream));
  CHECK_EQ(cuStreamSynchronize(stream), illegal_address);
}

// The driver takes the mapping away for a moment.
CASE(an_access_that_changes_under_work_loses_the_device) {
  start();
  const Address address = mapped();
  void* stream = new_stream();
  void* pinned = nullptr;
  OK(cuMemHostAlloc(&pinned, 1, 0));
  const auto read_while_access_changes = [&](bool wait) {
    int code = 0;
    for (int round = 0; code == 0 && round < 40; ++round) {
      OK(cuMemcpyAsync(reinterpret_cast<Address>(pinned), address, 1, stream));
      if (wait) {
        OK(cuStreamSynchronize(stream));
      }
      set_access(address, granule, round % 2 == 0 ? read_only : read_write);
      code = cuStreamSynchronize(stream);
    }
    return code;
  };
  CHECK_EQ(read_while_access_changes(true), 0);
  CHECK_EQ(read_while_access_changes(false), illegal_address);
}

CASE(a_mapping_without_access_cannot_be_read) {
  start();
  const Address address = reserve(granule);
  OK(cuMemMap(address, granule, 0, create(), 0));
  char byte = 0;
  CHECK_EQ(cuMemcpyDtoH_v2(&byte, address, 1), illegal_address);
}

CASE(a_freed_allocation_cannot_be_used) {
  start();
  Address address = 0;
  OK(cuMemAlloc_v2(&address, 100));
  OK(cuMemFree_v2(address));
  CHECK_EQ(cuMemFree_v2(address), 1);
  char byte = 0;
  CHECK_EQ(cuMemcpyDtoH_v2(&byte, address, 1), illegal_address);
}

CASE(the_driver_refuses_what_breaks_its_rules) {
  start();
  const Address address = reserve(4 * granule);
  const Handle handle = create(2 * granule);
  Address other = 0;
  Handle none = 0;
  CHECK_EQ(cuMemAddressReserve(&other, granule + 4096, 0, 0, 0), 1);
  CHECK_EQ(cuMemCreate(&none, mib, &on_device, 0), 1);
  CHECK_EQ(cuMemMap(address + 4096, granule, 0, handle, 0), 1);
  CHECK_EQ(cuMemMap(address, 4 * granule, 0, handle, 0), 1);                // more than the handle has
  CHECK_EQ(cuMemMap(address, granule, granule, handle, 0), 1);              // the offset must be zero
  CHECK_EQ(cuMemMap(address + 3 * granule, 2 * granule, 0, handle, 0), 1);  // leaves the reservation
  CHECK_EQ(cuMemMap(address, 2 * granule, 0, handle + 77, 0), 1);
  OK(cuMemMap(address, 2 * granule, 0, handle, 0));
  CHECK_EQ(cuMemMap(address + granule, 2 * granule, 0, handle, 0), 208);  // over a mapping
  CHECK_EQ(cuMemUnmap(address, granule), 1);                              // a part of one
  CHECK_EQ(cuMemUnmap(address, 3 * granule), 1);                          // with a hole
  CHECK_EQ(set_access(address, granule, read_write), 1);
  CHECK_EQ(set_access(address, 4 * granule, read_write), 1);
  CHECK_EQ(set_access(address, 2 * granule, 2), 1);
  CHECK_EQ(cuMemAddressFree(address, 4 * granule), 1);  // something is mapped there
  OK(set_access(address, 2 * granule, read_write));
  OK(cuMemUnmap(address, 2 * granule));
  CHECK_EQ(cuMemUnmap(address, 2 * granule), 1);
  CHECK_EQ(cuMemAddressFree(address, granule), 1);
  OK(cuMemAddressFree(address, 4 * granule));
  CHECK_EQ(cuMemAddressFree(address, 4 * granule), 1);
  OK(cuMemRelease(handle));
  CHECK_EQ(cuMemRelease(handle), 1);
  CHECK_EQ(cuMemMap(address, 2 * granule, 0, handle, 0), 1);
  CHECK_EQ(sim_used_bytes(0), 0);
  CHECK_EQ(sim_mappings(), 0);
}

CASE(a_handle_shows_the_same_bytes_everywhere) {
  start();
  const Address address = reserve(3 * granule);
  const Handle handle = create();
  for (int i = 0; i < 3; ++i) {
    OK(cuMemMap(address + static_cast<Address>(i) * granule, granule, 0, handle, 0));
  }
  OK(set_access(address, 3 * granule, read_write));
  void* stream = new_stream();
  OK(cuMemsetD8Async(address + granule + 5, 42, 1, stream));
  OK(cuStreamSynchronize(stream));
  CHECK_EQ(byte_at(address + 5), 42);
  CHECK_EQ(byte_at(address + 2 * granule + 5), 42);
  CHECK(sim_pointer(0, address, 1, read_only) == sim_pointer(0, address + granule, 1, read_only));
  CHECK_EQ(*reinterpret_cast<volatile char*>(address + 5), 42);  // mappings are real

  int fd = -1;
  OK(cuMemExportToShareableHandle(&fd, handle, 1, 0));
  Handle imported = 0;
  OK(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), 1));
  close(fd);
  OK(cuMemUnmap(address, granule));
  OK(cuMemMap(address, granule, 0, imported, 0));
  OK(set_access(address, granule, read_only));
  CHECK_EQ(byte_at(address + 5), 42);
  Handle retained = 0;
  OK(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(address + 7)));
  OK(cuMemRelease(handle));
  OK(cuMemRelease(imported));
  OK(cuMemUnmap(address, 3 * granule));
  CHECK_EQ(sim_used_bytes(0), granule);  // the retained handle keeps it
  OK(cuMemRelease(retained));
  CHECK_EQ(sim_used_bytes(0), 0);
}

CASE(an_exported_handle_works_in_another_process) {
  // The other process begins before this one uses CUDA.
  int pipes[2][2];
  CHECK_EQ(pipe(pipes[0]), 0);
  CHECK_EQ(pipe(pipes[1]), 0);
  const pid_t child = fork();
  const bool parent = child != 0;
  start();
  char token[256] = {};
  if (parent) {
    const Address address = reserve(granule);
    const Handle handle = create();
    OK(cuMemMap(address, granule, 0, handle, 0));
    OK(set_access(address, granule, read_write));
    void* stream = new_stream();
    OK(cuMemsetD8Async(address, 17, granule, stream));
    OK(cuStreamSynchronize(stream));
    int fd = -1;
    OK(cuMemExportToShareableHandle(&fd, handle, 1, 0));
    const ssize_t bytes = pread(fd, token, sizeof token, 0);
    CHECK(bytes > 0);
    CHECK_EQ(write(pipes[0][1], token, static_cast<std::size_t>(bytes)), bytes);
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_EQ(byte_at(address + 1), 18);
    return;
  }
  const ssize_t bytes = read(pipes[0][0], token, sizeof token);
  CHECK(bytes > 0);
  const int fd = memfd_create("handle", 0);
  CHECK_EQ(write(fd, token, static_cast<std::size_t>(bytes)), bytes);
  Handle imported = 0;
  OK(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), 1));
  const Address address = reserve(granule);
  OK(cuMemMap(address, granule, 0, imported, 0));
  OK(set_access(address, granule, read_write));
  CHECK_EQ(byte_at(address + 1), 17);
  void* stream = new_stream();
  OK(cuMemsetD8Async(address, 18, granule, stream));
  OK(cuStreamSynchronize(stream));
  std::_Exit(0);
}

CASE(memory_is_limited) {
  start();
  std::size_t free = 0;
  std::size_t total = 0;
  OK(cuMemGetInfo_v2(&free, &total));
  CHECK_EQ(total, 64 * mib);
  CHECK_EQ(free, total);
  std::vector<Handle> handles;
  for (int i = 0; i < 31; ++i) {
    handles.push_back(create());
  }
  Address address = 0;
  Handle none = 0;
  CHECK_EQ(cuMemCreate(&none, 2 * granule, &on_device, 0), 2);
  OK(cuMemAlloc_v2(&address, 1));
  CHECK_EQ(cuMemCreate(&none, granule, &on_device, 0), 2);
  CHECK_EQ(cuMemAlloc_v2(&address, 1), 2);
  OK(cuMemGetInfo_v2(&free, &total));
  CHECK_EQ(free, 0);
  // Every other one given back: as much as that can be had in one piece.
  for (std::size_t i = 0; i < handles.size(); i += 2) {
    OK(cuMemRelease(handles[i]));
  }
  OK(cuMemCreate(&none, 16 * granule, &on_device, 0));
  CHECK_EQ(cuMemCreate(&none, granule, &on_device, 0), 2);
}

CASE(fresh_memory_is_garbage_and_freed_memory_is_overwritten) {
  start();
  const Address address = mapped();
  std::vector<char> bytes(granule);
  OK(cuMemcpyDtoH_v2(bytes.data(), address, bytes.size()));
  std::uint64_t zeros = 0;
  for (const char byte : bytes) {
    zeros += byte == 0 ? 1 : 0;
  }
  CHECK(zeros < granule / 64);
  void* stream = new_stream();
  OK(cuMemsetD8Async(address, 0x55, granule, stream));
  OK(cuStreamSynchronize(stream));
  OK(cuMemUnmap(address, granule));
  OK(cuMemcpyDtoH_v2(bytes.data(), mapped(), bytes.size()));  // the same physical memory: there is no other
  std::uint64_t same = 0;
  for (const char byte : bytes) {
    same += byte == 0x55 ? 1 : 0;
  }
  CHECK(same < granule / 64);
}

CASE(pageable_copies_are_over_at_once_and_pinned_ones_are_not) {
  start();
  const Address address = mapped();
  void* stream = new_stream();
  std::vector<char> pageable(4096, 5);
  OK(cuMemcpyAsync(address, reinterpret_cast<Address>(pageable.data()), 4096, stream));
  CHECK_EQ(byte_at(address), 5);
  void* pinned = nullptr;
  OK(cuMemHostAlloc(&pinned, 4096, 0));
  std::memset(pinned, 6, 4096);
  int late = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    sim_seed(seed);
    std::memset(pinned, 6, 4096);
    OK(cuMemcpyAsync(address, reinterpret_cast<Address>(pinned), 4096, stream));
    std::memset(pinned, 7, 4096);  // too early
    OK(cuStreamSynchronize(stream));
    late += byte_at(address) == 7 ? 1 : 0;
  }
  CHECK(late > 0);
  OK(cuMemFreeHost(pinned));
  CHECK_EQ(sim_pinned_bytes(), 0);
}

CASE(page_locked_memory_is_limited_and_registered_once) {
  start();
  std::vector<char> memory(mib);
  OK(cuMemHostRegister_v2(memory.data(), memory.size(), 0));
  CHECK_EQ(cuMemHostRegister_v2(memory.data() + 4096, 4096, 0), 712);
  void* more = nullptr;
  CHECK_EQ(cuMemHostAlloc(&more, mib, 0), 2);  // the limit is 1.5 MiB
  OK(cuMemHostUnregister(memory.data()));
  CHECK_EQ(cuMemHostUnregister(memory.data()), 713);
  OK(cuMemHostAlloc(&more, mib, 0));
  CHECK_EQ(cuMemHostRegister_v2(memory.data(), memory.size(), 0), 2);
}

CASE(memory_that_is_no_longer_page_locked_cannot_be_copied) {
  start();
  const Address address = mapped();
  void* stream = new_stream();
  std::vector<char> memory(mib);
  OK(cuMemHostRegister_v2(memory.data(), memory.size(), 0));
  OK(cuMemcpyAsync(address, reinterpret_cast<Address>(memory.data()), memory.size(), stream));
  OK(cuMemHostUnregister(memory.data()));
  CHECK_EQ(cuStreamSynchronize(stream), illegal_address);
}

CASE(a_thread_needs_a_context) {
  start();
  const Address address = mapped();
  void* stream = new_stream();
  std::thread([&] {
    Address other = 0;
    void* event = nullptr;
    CHECK_EQ(cuMemAlloc_v2(&other, 1), 201);
    CHECK_EQ(cuEventCreate(&event, 2), 201);
    CHECK_EQ(cuMemsetD8Async(address, 1, 1, stream), 201);
    OK(cuMemUnmap(address, granule));  // virtual memory management does not
  }).join();
}

CASE(cuda_must_be_initialized) {
  int value = 0;
  CHECK_EQ(cuDeviceGetAttribute(&value, 102, 0), 3);
  OK(cuInit(0));
  OK(cuDeviceGetAttribute(&value, 102, 0));
  CHECK_EQ(value, 1);
}

CASE(there_may_be_no_device) { CHECK_EQ(cuInit(0), 100); }

CASE(a_device_may_lack_virtual_memory_management) {
  start();
  int value = 1;
  OK(cuDeviceGetAttribute(&value, 102, 0));
  CHECK_EQ(value, 0);
  Handle handle = 0;
  Address address = 0;
  CHECK_EQ(cuMemCreate(&handle, granule, &on_device, 0), 801);
  CHECK_EQ(cuMemAddressReserve(&address, granule, 0, 0, 0), 801);
}

CASE(an_old_driver_lacks_functions) {
  int version = 0;
  OK(cuDriverGetVersion(&version));
  CHECK_EQ(version, 10010);
  void* function = nullptr;
  int status = 0;
  OK(cuGetProcAddress_v2("cuMemCreate", &function, 12000, 0, &status));
  CHECK(function == nullptr);
  CHECK_EQ(status, 1);
  OK(cuGetProcAddress_v2("cuStreamIsCapturing", &function, 12000, 0, &status));
  CHECK(function == reinterpret_cast<void*>(&cuStreamIsCapturing));
  OK(cuGetProcAddress_v2("cuStreamIsCapturing", &function, 9000, 0, &status));
  CHECK_EQ(status, 2);
  OK(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &status));
  CHECK(function == reinterpret_cast<void*>(&cuMemAlloc_v2));
}

CASE(calls_fail_on_request) {
  start();
  Handle handle = 0;
  sim_fail("cuMemCreate", 2, 2);
  const std::uint64_t before = sim_calls("cuMemCreate");
  OK(cuMemCreate(&handle, granule, &on_device, 0));
  CHECK_EQ(cuMemCreate(&handle, granule, &on_device, 0), 2);
  OK(cuMemCreate(&handle, granule, &on_device, 0));
  CHECK_EQ(sim_calls("cuMemCreate") - before, 3);
  CHECK_EQ(sim_used_bytes(0), 2 * granule);
  sim_fail("cuMemAlloc", 0, 46);
  Address address = 0;
  CHECK_EQ(cuMemAlloc_v2(&address, 1), 46);
  CHECK_EQ(cuMemAlloc_v2(&address, 1), 46);
  sim_fail_clear();
  OK(cuMemAlloc_v2(&address, 1));
}

CASE(calls_fail_as_the_environment_says) {
  start();
  Address address = 0;
  CHECK_EQ(cuMemAlloc_v2(&address, 1), 2);
  OK(cuMemAlloc_v2(&address, 1));
  CHECK_EQ(cuMemAlloc_v2(&address, 1), 999);
}

CASE(a_lost_device_lets_no_call_wait) {
  start();
  const Address address = mapped();
  void* stream = new_stream();
  void* event = new_event();
  for (int i = 0; i < 10; ++i) {
    OK(cuMemsetD8Async(address, 1, 1, stream));
  }
  OK(cuEventRecord(event, stream));
  std::thread waiter;
  waiter = std::thread([&] { sim_device_lost(0, 719); });
  waiter.join();
  CHECK_EQ(cuEventSynchronize(event), 719);
  CHECK_EQ(cuStreamSynchronize(stream), 719);
  CHECK_EQ(cuCtxSynchronize(), 719);
  CHECK_EQ(cuEventQuery(event), 719);
}

CASE(host_functions_cannot_call_cuda) {
  start();
  void* stream = new_stream();
  static int code = 0;
  OK(cuLaunchHostFunc(
      stream,
      [](void*) {
        Address address = 0;
        code = cuMemAlloc_v2(&address, 1);
      },
      nullptr));
  OK(cuStreamSynchronize(stream));
  CHECK_EQ(code, 800);
}

CASE(a_graph_repeats_what_was_captured) {
  start();
  const Address address = mapped();
  void* stream = new_stream();
  void* forked = new_stream();
  void* fork_event = new_event();
  void* join_event = new_event();
  OK(cuMemsetD8Async(address, 1, 16, stream));
  OK(cuStreamSynchronize(stream));
  OK(cuStreamBeginCapture_v2(stream, 0));
  OK(cuMemsetD8Async(address, 2, 1, stream));
  OK(cuEventRecord(fork_event, stream));
  OK(cuStreamWaitEvent(forked, fork_event, 0));
  int status = 0;
  OK(cuStreamIsCapturing(forked, &status));
  CHECK_EQ(status, 1);
  OK(cuMemcpyAsync(address + 1, address, 1, forked));
  OK(cuEventRecord(join_event, forked));
  OK(cuStreamWaitEvent(stream, join_event, 0));
  OK(cuMemcpyAsync(address + 2, address + 1, 1, stream));
  void* graph = nullptr;
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuStreamIsCapturing(forked, &status));
  CHECK_EQ(status, 0);
  CHECK_EQ(byte_at(address + 2), 1);  // nothing ran
  void* exec = nullptr;
  OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (int i = 0; i < 2; ++i) {
    OK(cuMemsetD8Async(address, 1, 16, stream));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK_EQ(byte_at(address + 2), 2);
  }
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
}

int end_of_capture(void* stream) {
  void* graph = nullptr;
  return cuStreamEndCapture(stream, &graph);
}

CASE(a_capture_refuses_what_cannot_be_replayed) {
  start();
  void* stream = new_stream();
  void* outside = new_stream();
  void* event = new_event();
  OK(cuEventRecord(event, outside));
  // Waiting for work that is not captured.
  OK(cuStreamBeginCapture_v2(stream, 0));
  CHECK_EQ(cuStreamWaitEvent(stream, event, 0), 905);
  CHECK_EQ(cuMemsetD8Async(mapped(), 1, 1, stream), 901);
  CHECK_EQ(end_of_capture(stream), 901);
  // Waiting on the host.
  OK(cuStreamBeginCapture_v2(stream, 2));
  CHECK_EQ(cuStreamSynchronize(stream), 900);
  CHECK_EQ(end_of_capture(stream), 901);
  OK(cuStreamBeginCapture_v2(stream, 2));
  OK(cuEventRecord(event, stream));
  CHECK_EQ(cuEventQuery(event), 907);
  // Work that leads nowhere.
  OK(cuStreamWaitEvent(outside, event, 0));
  OK(cuMemsetD8Async(mapped(), 1, 1, outside));
  CHECK_EQ(end_of_capture(stream), 904);
  OK(cuStreamSynchronize(outside));
}

CASE(unsafe_calls_end_a_capture_unless_the_thread_is_relaxed) {
  start();
  void* stream = new_stream();
  Address address = 0;
  OK(cuStreamBeginCapture_v2(stream, 0));
  int mode = 2;
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  CHECK_EQ(mode, 0);
  OK(cuMemAlloc_v2(&address, 1));
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  CHECK_EQ(mode, 2);
  OK(end_of_capture(stream));
  // A thread that knows nothing of it.
  OK(cuStreamBeginCapture_v2(stream, 0));
  std::thread([] {
    void* context = nullptr;
    Address other = 0;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    CHECK_EQ(cuMemAlloc_v2(&other, 1), 900);
  }).join();
  CHECK_EQ(end_of_capture(stream), 901);
  // Thread-local captures are nothing to other threads.
  OK(cuStreamBeginCapture_v2(stream, 1));
  std::thread([] {
    void* context = nullptr;
    Address other = 0;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc_v2(&other, 1));
  }).join();
  CHECK_EQ(cuMemAlloc_v2(&address, 1), 900);
  CHECK_EQ(end_of_capture(stream), 901);
}

CASE(kernels_run_as_registered_functions) {
  start();
  const Address address = mapped();
  void* stream = new_stream();
  void* module = nullptr;
  void* function = nullptr;
  OK(cuModuleLoadData(&module, "any image"));
  OK(cuModuleGetFunction(&function, module, "fill_kernel"));
  Address to = address;
  int value = 13;
  void* arguments[] = {&to, &value};
  CHECK_EQ(cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr), 801);
  CHECK(std::string(sim_refused_kernels()) == "fill_kernel\n");
  const std::size_t sizes[] = {sizeof(Address), sizeof(int)};
  sim_register_kernel(
      "fill_kernel",
      [](void** args, const sim_launch* launch) {
        const Address target = *static_cast<Address*>(args[0]);
        const std::size_t count = launch->grid[0] * launch->block[0];
        void* pointer = sim_pointer(launch->device, target, count, read_write);
        if (pointer == nullptr) {
          sim_illegal_access(launch->device);
          return;
        }
        std::memset(pointer, *static_cast<int*>(args[1]), count);
      },
      2, sizes);
  OK(cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr));
  value = 99;  // arguments were taken at the launch
  OK(cuStreamSynchronize(stream));
  CHECK_EQ(byte_at(address + 127), 13);
  CHECK(byte_at(address + 128) != 13 || byte_at(address + 129) != 13);
  OK(cuModuleUnload(module));
  to = address + granule;
  OK(cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr));
  CHECK_EQ(cuStreamSynchronize(stream), illegal_address);
}

CASE(memory_in_stream_order_comes_back_in_order) {
  start();
  void* stream = new_stream();
  Address address = 0;
  OK(cuMemAllocAsync(&address, 40 * mib, stream));
  OK(cuMemsetD8Async(address, 1, 1000, stream));
  OK(cuMemFreeAsync(address, stream));
  OK(cuMemAllocAsync(&address, 40 * mib, stream));  // of 64: fits once the first one is freed
  OK(cuMemFreeAsync(address, stream));
  OK(cuStreamSynchronize(stream));
  CHECK_EQ(sim_used_bytes(0), 0);
  CHECK_EQ(cuMemFreeAsync(address, stream), 1);
}

CASE(a_child_process_has_no_cuda) {
  start();
  const Address address = mapped();
  void* stream = new_stream();
  OK(cuMemsetD8Async(address, 7, 1, stream));
  OK(cuStreamSynchronize(stream));
  const pid_t child = fork();
  if (child == 0) {
    std::size_t free = 0;
    std::size_t total = 0;
    CHECK_EQ(cuInit(0), 3);
    CHECK_EQ(cuMemGetInfo_v2(&free, &total), 3);
    CHECK_EQ(cuStreamSynchronize(stream), 3);
    std::_Exit(0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK_EQ(byte_at(address), 7);
}

CASE(sampled_operations_touch_the_samples) {
  start();
  CHECK_EQ(sim_set("sample", "65536"), 0);
  const Address address = mapped();
  const Address other = mapped();
  void* stream = new_stream();
  OK(cuMemsetD8Async(address, 9, granule, stream));
  OK(cuMemsetD8Async(other, 1, granule, stream));
  OK(cuMemcpyAsync(other, address, granule, stream));
  OK(cuStreamSynchronize(stream));
  CHECK_EQ(sim_set("sample", "0"), 0);
  for (Address unit = 0; unit < granule; unit += 65536) {
    CHECK_EQ(byte_at(other + unit), 9);
    CHECK_EQ(byte_at(other + unit + 63), 9);
    CHECK(byte_at(other + unit + 64) != 9 || byte_at(other + unit + 65) != 9);
  }
}

CASE(devices_have_their_own_memory) {
  void* second = nullptr;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  start(0);
  const Address address = mapped();
  Address there = 0;
  OK(cuCtxSetCurrent(second));
  OK(cuMemAlloc_v2(&there, mib));
  CHECK_EQ(sim_used_bytes(0), granule);
  CHECK_EQ(sim_used_bytes(1), granule);
  int ordinal = -1;
  OK(cuPointerGetAttribute(&ordinal, 9, there));
  CHECK_EQ(ordinal, 1);
  CHECK(!sim_accessible(1, address, 1, read_only));
  OK(set_access(address, granule, read_only, 1));
  CHECK(sim_accessible(1, address, 1, read_only));
  CHECK(!sim_accessible(0, there, 1, read_only));
  void* first = start(0);
  OK(cuCtxEnablePeerAccess(second, 0));
  CHECK_EQ(cuCtxEnablePeerAccess(second, 0), 704);
  CHECK(sim_accessible(0, there, 1, read_only));
  OK(cuCtxSetCurrent(first));
  void* event = new_event();
  OK(cuCtxSetCurrent(second));
  void* stream = new_stream();
  CHECK_EQ(cuEventRecord(event, stream), 400);  // of another device
  OK(cuMemcpyAsync(there, address, 1000, stream));
  OK(cuStreamSynchronize(stream));
  // One device's loss is not the other's.
  sim_device_lost(1, 719);
  CHECK_EQ(cuStreamSynchronize(stream), 719);
  OK(cuCtxSetCurrent(first));
  OK(cuCtxSynchronize());
}

CASE(threads_may_do_all_of_this_at_once) {
  start();
  const Address shared = mapped();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i, shared] {
      void* context = nullptr;
      OK(cuDevicePrimaryCtxRetain(&context, 0));
      OK(cuCtxSetCurrent(context));
      void* stream = new_stream();
      void* event = new_event();
      void* pinned = nullptr;
      OK(cuMemHostAlloc(&pinned, 4096, 0));
      for (int round = 0; round < 50; ++round) {
        const Address own = mapped();
        const auto value = static_cast<unsigned char>(i * 50 + round);
        OK(cuMemsetD8Async(own, value, 4096, stream));
        OK(cuMemcpyAsync(shared + static_cast<Address>(i) * 4096, own, 4096, stream));
        OK(cuEventRecord(event, stream));
        OK(cuStreamWaitEvent(stream, event, 0));
        OK(cuMemcpyAsync(reinterpret_cast<Address>(pinned), shared + static_cast<Address>(i) * 4096, 4096, stream));
        OK(cuStreamSynchronize(stream));
        CHECK_EQ(*(static_cast<unsigned char*>(pinned) + 4095), value);
        OK(cuMemUnmap(own, granule));
        OK(cuMemAddressFree(own, granule));
      }
      OK(cuMemFreeHost(pinned));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK_EQ(sim_mappings(), 1);
}

}  // namespace

int main(int count, char** arguments) {
  for (const Case& one : cases()) {
    if (count > 1 && std::string(arguments[1]) == one.name) {
      one.run();
      std::fflush(nullptr);
      return 0;
    }
  }
  std::fprintf(stderr, "usage: %s CASE\n", arguments[0]);
  return 2;
}

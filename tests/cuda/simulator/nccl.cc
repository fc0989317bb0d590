// libnccl.so.2: collectives as NCCL's interface has them, between the simulated devices of one process, or of a process
// a device. As NCCL's, they run on the streams that they are given: the host returns at once.
//
// In one process the streams of a collective wait for each other by events, and one host function does the work.
// Between processes each rank's host function waits for the others in shared memory; in virtual time the call does, and
// the collective begins when the last rank's stream has come to it. Reductions add the ranks up in their order. What is
// not served fails with ncclInvalidUsage and is named on stderr: sending and receiving, splitting.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "api.h"
#include "settings.h"
#include "sim.h"
#include "turns.h"

#define NCCL extern "C" __attribute__((visibility("default"))) int

extern "C" {
int cuCtxPushCurrent_v2(void* context);
int cuCtxPopCurrent_v2(void** context);
int cuCtxGetDevice(int* device);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuEventCreate(void** event, unsigned flags);
int cuEventDestroy_v2(void* event);
int cuEventRecord(void* event, void* stream);
int cuStreamWaitEvent(void* stream, void* event, unsigned flags);
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* data);
}

namespace {

enum Result { success = 0, cuda_error = 1, system_error = 2, invalid_argument = 4, invalid_usage = 5 };
enum Type {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9
};
enum Reduction { sum = 0, product = 1, maximum = 2, minimum = 3, average = 4, first_own = 16 };
enum class Kind { all_reduce, broadcast, reduce, all_gather, reduce_scatter };

constexpr std::uint64_t chunk = 256 << 10;  // bytes of a rank's part of the shared memory
constexpr int most_ranks = 16;

struct UniqueId {
  char name[128];
};

// What ranks in other processes share.
struct Shared {
  std::atomic<std::uint64_t> arrived;  // grows by one with each rank at each meeting
  sim::Nanoseconds moments[most_ranks];  // when each could begin, in the mode timed
  alignas(64) char parts[most_ranks][chunk];
};

struct Clique {
  int ranks = 0;
  Shared* shared = nullptr;  // null: all ranks are in this process
};

struct Communicator {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int device = 0;
  std::uint64_t meetings = 0;  // of its rank, in the order of its stream
  std::map<int, double> scales;  // of reductions that multiply first
};

// One rank's call.
struct Call {
  Kind kind;
  const void* send;
  void* receive;
  std::uint64_t count;  // elements: of the operand; of the result for reduce_scatter
  int type;
  int reduction;
  int root;
  Communicator* communicator;
  void* stream;
};

struct Group {
  int depth = 0;
  std::vector<Call> calls;
};
Group& group() {
  static thread_local Group own;
  return own;
}

std::string& last_error() {
  static thread_local std::string text;
  return text;
}

int fail(int code, const std::string& why) {
  last_error() = "simulated NCCL: " + why;
  std::fprintf(stderr, "%s\n", last_error().c_str());
  return code;
}

int refuse(const char* what) { return fail(invalid_usage, std::string(what) + " has no stand-in"); }

std::uint64_t size_of(int type) {
  switch (type) {
    case int8:
    case uint8:
      return 1;
    case int32:
    case uint32:
    case float32:
      return 4;
    case int64:
    case uint64:
    case float64:
      return 8;
    case float16:
    case bfloat16:
      return 2;
    default:
      return 0;
  }
}

// The upper half of a float, rounded to the nearest, to even where two are as near.
class Bfloat16 {
 public:
  explicit Bfloat16(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    upper_ = static_cast<std::uint16_t>(value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  operator float() const {  // NOLINT(google-explicit-constructor): is one
    const std::uint32_t bits = std::uint32_t{upper_} << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

 private:
  std::uint16_t upper_;
};

// IEEE 754's binary16; not every compiler has it. Rounded as the other.
class Float16 {
 public:
  explicit Float16(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    const std::uint32_t size = bits & 0x7fffffff;
    std::uint32_t rounded = 0;
    if (size >= 0x47800000) {  // too large, or no number
      rounded = size > 0x7f800000 ? 0x7e00 : 0x7c00;
    } else if (size < 0x38800000) {  // subnormal: whole multiples of 2^-24
      rounded = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(std::fabs(value), 24)));
    } else {  // another bias, and 13 bits fewer
      rounded = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
    }
    bits_ = static_cast<std::uint16_t>((bits >> 16 & 0x8000) | rounded);
  }
  operator float() const {  // NOLINT(google-explicit-constructor): is one
    const int exponent = bits_ >> 10 & 31;
    const int fraction = bits_ & 1023;
    float size = std::ldexp(static_cast<float>(fraction), -24);
    if (exponent == 31) {
      size = fraction != 0 ? NAN : INFINITY;
    } else if (exponent != 0) {
      size = std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
    }
    return (bits_ & 0x8000) != 0 ? -size : size;
  }

 private:
  std::uint16_t bits_;
};

template <typename Value>
void combine_as(void* into, const void* other, std::uint64_t count, int reduction) {
  auto* const to = static_cast<Value*>(into);
  const auto* const from = static_cast<const Value*>(other);
  for (std::uint64_t index = 0; index < count; ++index) {
    switch (reduction) {
      case product:
        to[index] = static_cast<Value>(to[index] * from[index]);
        break;
      case maximum:
        to[index] = std::max(to[index], from[index]);
        break;
      case minimum:
        to[index] = std::min(to[index], from[index]);
        break;
      default:
        to[index] = static_cast<Value>(to[index] + from[index]);
    }
  }
}

void combine(void* into, const void* other, std::uint64_t count, int type, int reduction) {
  switch (type) {
    case int8:
      return combine_as<std::int8_t>(into, other, count, reduction);
    case uint8:
      return combine_as<std::uint8_t>(into, other, count, reduction);
    case int32:
      return combine_as<std::int32_t>(into, other, count, reduction);
    case uint32:
      return combine_as<std::uint32_t>(into, other, count, reduction);
    case int64:
      return combine_as<std::int64_t>(into, other, count, reduction);
    case uint64:
      return combine_as<std::uint64_t>(into, other, count, reduction);
    case float16:
      return combine_as<Float16>(into, other, count, reduction);
    case bfloat16:
      return combine_as<Bfloat16>(into, other, count, reduction);
    case float32:
      return combine_as<float>(into, other, count, reduction);
    default:
      return combine_as<double>(into, other, count, reduction);
  }
}

// Multiplies by `factor`; only of floats.
void scale(void* values, std::uint64_t count, int type, double factor) {
  const auto as = [&](auto* typed) {
    for (std::uint64_t index = 0; index < count; ++index) {
      using Value = std::remove_pointer_t<decltype(typed)>;
      using Wide = std::conditional_t<std::is_same<Value, double>::value, double, float>;
      typed[index] = static_cast<Value>(static_cast<Wide>(typed[index]) * static_cast<Wide>(factor));
    }
  };
  switch (type) {
    case float16:
      return as(static_cast<Float16*>(values));
    case bfloat16:
      return as(static_cast<Bfloat16*>(values));
    case float32:
      return as(static_cast<float*>(values));
    case float64:
      return as(static_cast<double*>(values));
    default:
      break;
  }
}

std::uint64_t operand_count(const Call& call, int ranks) {
  return call.kind == Kind::reduce_scatter ? call.count * static_cast<std::uint64_t>(ranks) : call.count;
}
std::uint64_t result_count(const Call& call, int ranks) {
  return call.kind == Kind::all_gather ? call.count * static_cast<std::uint64_t>(ranks) : call.count;
}
bool sends(const Call& call) { return call.kind != Kind::broadcast || call.communicator->rank == call.root; }
bool receives(const Call& call) { return call.kind != Kind::reduce || call.communicator->rank == call.root; }

// Whether a device may touch the rank's operand and result; else it is lost as by an illegal address.
bool check_for(const Call& call, int device) {
  const int ranks = call.communicator->clique->ranks;
  const std::uint64_t size = size_of(call.type);
  const auto may = [&](const void* address, std::uint64_t count, int access) {
    return count == 0 || sim_accessible(device, reinterpret_cast<std::uint64_t>(address), count * size, access) != 0;
  };
  if ((sends(call) && !may(call.send, operand_count(call, ranks), 1)) ||
      (receives(call) && !may(call.receive, result_count(call, ranks), 3))) {
    std::fprintf(stderr, "simulated NCCL: a collective touches memory that device %d may not\n", device);
    sim_illegal_access(device);
    return false;
  }
  return true;
}

bool check(const Call& call) { return check_for(call, call.communicator->device); }

// Within a process a device reads and writes the memory of its neighbours in the ring, which NCCL asks nobody for.
// Those have made each other peers, as far as memory of cudaMalloc goes.
bool check_neighbours(const std::vector<Call>& calls) {
  return std::all_of(calls.begin(), calls.end(), [&](const Call& call) {
    const int device = call.communicator->device;
    const int next = (call.communicator->rank + 1) % call.communicator->clique->ranks;
    const auto other =
        std::find_if(calls.begin(), calls.end(), [&](const Call& one) { return one.communicator->rank == next; });
    if (device == other->communicator->device) {
      return true;
    }
    sim::memory().set_peer(device, other->communicator->device, true);
    return check_for(*other, device);
  });
}

bool leaves_out(const Call& call) { return sim::settings().leaves_out(call.count * size_of(call.type)); }

// What one rank contributes, ready to be combined: multiplied where the reduction says so.
void prepare(const Call& call, const void* from, void* to, std::uint64_t count) {
  std::memcpy(to, from, count * size_of(call.type));
  const auto found = call.communicator->scales.find(call.reduction);
  if (found != call.communicator->scales.end()) {
    scale(to, count, call.type, found->second);
  }
}

// Elements [begin, begin + count) of the reduction of what the ranks contribute.
void reduce(const Call& call, const std::vector<const void*>& contributions, void* to, std::uint64_t count) {
  const std::uint64_t size = size_of(call.type);
  std::memcpy(to, contributions[0], count * size);
  for (std::size_t rank = 1; rank < contributions.size(); ++rank) {
    combine(to, contributions[rank], count, call.type, call.reduction);
  }
  if (call.reduction == average) {
    scale(to, count, call.type, 1.0 / static_cast<double>(contributions.size()));
  }
}

// --- ranks of one process

void run_together(void* data) {  // is never freed: a graph may run it again
  const auto& calls = *static_cast<std::vector<Call>*>(data);
  if (!std::all_of(calls.begin(), calls.end(), check) || !check_neighbours(calls) || leaves_out(calls.front())) {
    return;
  }
  const Call& first = calls.front();
  const int ranks = first.communicator->clique->ranks;
  const std::uint64_t size = size_of(first.type);
  std::vector<std::vector<char>> operands(calls.size());
  for (const Call& call : calls) {
    std::vector<char>& operand = operands[static_cast<std::size_t>(call.communicator->rank)];
    operand.resize(operand_count(call, ranks) * size);
    if (sends(call) && !operand.empty()) {
      prepare(call, call.send, operand.data(), operand_count(call, ranks));
    }
  }
  for (const Call& call : calls) {
    if (!receives(call) || call.count == 0) {
      continue;
    }
    auto* const to = static_cast<char*>(call.receive);
    const auto rank = static_cast<std::uint64_t>(call.communicator->rank);
    if (call.kind == Kind::broadcast) {
      std::memcpy(to, operands[static_cast<std::size_t>(call.root)].data(), call.count * size);
    } else if (call.kind == Kind::all_gather) {
      for (std::size_t other = 0; other < operands.size(); ++other) {
        std::memcpy(to + other * call.count * size, operands[other].data(), call.count * size);
      }
    } else {
      const std::uint64_t begin = call.kind == Kind::reduce_scatter ? rank * call.count * size : 0;
      std::vector<const void*> contributions;
      for (const std::vector<char>& operand : operands) {
        contributions.push_back(operand.data() + begin);
      }
      reduce(call, contributions, to, call.count);
    }
  }
}

class OnDevice {
 public:
  explicit OnDevice(int device) {
    void* context = nullptr;
    cuDevicePrimaryCtxRetain(&context, device);
    cuCtxPushCurrent_v2(context);
  }
  ~OnDevice() { cuCtxPopCurrent_v2(nullptr); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
};

// `waits` goes on when `first` has come to where it is now.
int order(const Call& first, const Call& waits) {
  void* event = nullptr;
  int code = 0;
  {
    const OnDevice on(first.communicator->device);
    code = cuEventCreate(&event, 2);
    code = code != 0 ? code : cuEventRecord(event, first.stream);
  }
  const OnDevice on(waits.communicator->device);
  code = code != 0 ? code : cuStreamWaitEvent(waits.stream, event, 0);
  cuEventDestroy_v2(event);
  return code;
}

// The bytes that go out of every device, with rings as NCCL's documents have them (nccl-tests, "bus bandwidth").
std::uint64_t ring_bytes(const Call& call) {
  const auto ranks = static_cast<std::uint64_t>(call.communicator->clique->ranks);
  const std::uint64_t bytes = call.count * size_of(call.type);
  switch (call.kind) {
    case Kind::all_reduce:
      return 2 * bytes * (ranks - 1) / ranks;
    case Kind::all_gather:
    case Kind::reduce_scatter:
      return bytes * (ranks - 1);
    default:
      return ranks > 1 ? bytes : 0;
  }
}

sim::Cost cost(const Call& call) {
  sim::Cost cost = sim::timed()->copy(call.communicator->device, sim::host_device, ring_bytes(call));
  cost.name = "collective";
  return cost;
}

int enqueue_together(const std::vector<Call>& calls) {
  const Call& first = calls.front();
  int code = 0;
  for (std::size_t index = 1; index < calls.size() && code == 0; ++index) {
    code = order(calls[index], first);
  }
  if (code == 0) {
    const OnDevice on(first.communicator->device);
    if (sim::timed() != nullptr) {
      sim::api_next_kernel() = cost(first);
    }
    code = cuLaunchHostFunc(first.stream, &run_together, new std::vector<Call>(calls));
  }
  for (std::size_t index = 1; index < calls.size() && code == 0; ++index) {
    code = order(first, calls[index]);
  }
  return code == 0 ? success : cuda_error;
}

// --- a rank a process

// While a thread waits for other processes.
class Held {
 public:
  Held() { hold(1); }
  ~Held() { hold(0); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  static void hold(int on) {
    if (sim_turns_hold != nullptr) {
      sim_turns_hold(on);
    }
  }
};

// Waits until all ranks are here. False: they did not come.
bool meet(Communicator* communicator) {
  Shared& shared = *communicator->clique->shared;
  const auto ranks = static_cast<std::uint64_t>(communicator->clique->ranks);
  const std::uint64_t wanted = ++communicator->meetings * ranks;
  const Held held;
  shared.arrived.fetch_add(1);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(sim::settings().patience);
  for (unsigned spins = 0; shared.arrived.load() < wanted; ++spins) {
    if (spins < 200) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (std::chrono::steady_clock::now() > until) {
      std::fprintf(stderr, "simulated NCCL: the other ranks of a collective did not come\n");
      sim_report_queues();
      sim_device_lost(communicator->device, 719);  // a launch failed
      return false;
    }
  }
  return true;
}

// When the last rank is ready.
sim::Nanoseconds latest(Communicator* communicator, sim::Nanoseconds ready) {
  Shared& shared = *communicator->clique->shared;
  shared.moments[communicator->rank] = ready;
  if (meet(communicator)) {
    ready = *std::max_element(&shared.moments[0], &shared.moments[0] + communicator->clique->ranks);
    meet(communicator);  // all have read it
  }
  return ready;
}

void run_apart(void* data) {  // is never freed: a graph may run it again
  const Call& call = *static_cast<Call*>(data);
  if (!check(call) || leaves_out(call)) {
    return;
  }
  Communicator* const own = call.communicator;
  Shared& shared = *own->clique->shared;
  const auto ranks = static_cast<std::size_t>(own->clique->ranks);
  const auto rank = static_cast<std::size_t>(own->rank);
  const std::uint64_t size = size_of(call.type);
  // Every rank's piece of each part, for those kinds that have parts.
  const std::uint64_t parts = call.kind == Kind::reduce_scatter ? ranks : 1;
  for (std::uint64_t part = 0; part < parts; ++part) {
    for (std::uint64_t begin = 0; begin < call.count; begin += chunk / size) {
      const std::uint64_t count = std::min(chunk / size, call.count - begin);
      if (sends(call)) {
        const char* const from = static_cast<const char*>(call.send) + (part * call.count + begin) * size;
        prepare(call, from, shared.parts[rank], count);
      }
      if (!meet(own)) {
        return;
      }
      auto* const to = static_cast<char*>(call.receive) + begin * size;
      if (call.kind == Kind::broadcast) {
        std::memcpy(to, shared.parts[call.root], count * size);
      } else if (call.kind == Kind::all_gather) {
        for (std::size_t other = 0; other < ranks; ++other) {
          std::memcpy(to + other * call.count * size, shared.parts[other], count * size);
        }
      } else if (receives(call) && (call.kind != Kind::reduce_scatter || part == rank)) {
        const std::vector<const void*> contributions(&shared.parts[0], &shared.parts[0] + ranks);
        reduce(call, contributions, to, count);
      }
      if (!meet(own)) {
        return;
      }
    }
  }
}

int enqueue_apart(const Call& call) {
  const OnDevice on(call.communicator->device);
  if (sim::timed() != nullptr) {
    sim::api_next_kernel() = cost(call);
    sim::api_next_kernel().agree = [own = call.communicator](sim::Nanoseconds ready) { return latest(own, ready); };
  }
  return cuLaunchHostFunc(call.stream, &run_apart, new Call(call)) == 0 ? success : cuda_error;
}

// --- calls

// The calls that were made in a group: the nth of each rank belong together.
int run_group(const std::vector<Call>& calls) {
  std::map<Clique*, std::vector<std::vector<Call>>> together;
  std::map<Communicator*, std::size_t> position;
  for (const Call& call : calls) {
    Clique* const clique = call.communicator->clique.get();
    if (clique->shared != nullptr) {
      if (const int code = enqueue_apart(call)) {
        return code;
      }
      continue;
    }
    std::vector<std::vector<Call>>& rounds = together[clique];
    const std::size_t round = position[call.communicator]++;
    rounds.resize(std::max(rounds.size(), round + 1));
    rounds[round].push_back(call);
  }
  for (const auto& [clique, rounds] : together) {
    for (const std::vector<Call>& round : rounds) {
      if (round.size() != static_cast<std::size_t>(clique->ranks)) {
        return fail(invalid_usage, std::to_string(round.size()) + " of " + std::to_string(clique->ranks) +
                                       " ranks take part in a group");
      }
      if (std::any_of(round.begin(), round.end(), [&](const Call& call) { return call.count != round[0].count; })) {
        return fail(invalid_argument, "the ranks of a collective do not give it as much");
      }
      if (const int code = enqueue_together(round)) {
        return code;
      }
    }
  }
  return success;
}

int add(const Call& call) {
  if (call.communicator == nullptr || call.communicator->clique == nullptr) {
    return invalid_argument;
  }
  if (size_of(call.type) == 0) {
    return refuse("a collective of that type");
  }
  if (group().depth > 0) {
    group().calls.push_back(call);
    return success;
  }
  return run_group({call});
}

Communicator* make(std::shared_ptr<Clique> clique, int rank, int device) {
  auto* const communicator = new Communicator;
  communicator->clique = std::move(clique);
  communicator->rank = rank;
  communicator->device = device;
  return communicator;
}

}  // namespace

NCCL ncclGetVersion(int* version) {
  *version = 22105;
  return success;
}

extern "C" __attribute__((visibility("default"))) const char* ncclGetErrorString(int code) {
  return code == success ? "no error" : code == invalid_usage ? "invalid usage" : "simulated NCCL: error";
}

extern "C" __attribute__((visibility("default"))) const char* ncclGetLastError(void* /*communicator*/) {
  return last_error().c_str();
}

NCCL ncclGetUniqueId(UniqueId* id) {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) {
    return system_error;
  }
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->name, sizeof id->name, "/simulated-nccl-%016llx", static_cast<unsigned long long>(number));
  return success;
}

NCCL ncclCommInitAll(Communicator** communicators, int count, const int* devices) {
  auto clique = std::make_shared<Clique>();
  clique->ranks = count;
  for (int rank = 0; rank < count; ++rank) {
    communicators[rank] = make(clique, rank, devices == nullptr ? rank : devices[rank]);
  }
  return success;
}

NCCL ncclCommInitRank(Communicator** communicator, int ranks, UniqueId id, int rank) {
  if (ranks < 1 || ranks > most_ranks || rank < 0 || rank >= ranks) {
    return invalid_argument;
  }
  const int file = shm_open(id.name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) {
    return system_error;
  }
  void* const shared = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (shared == MAP_FAILED) {
    return system_error;
  }
  auto clique = std::make_shared<Clique>();
  clique->ranks = ranks;
  clique->shared = static_cast<Shared*>(shared);  // new memory of a file is zero
  int device = 0;
  cuCtxGetDevice(&device);
  *communicator = make(std::move(clique), rank, device);
  const bool all_are_here = meet(*communicator);
  if (all_are_here && sim::timed() != nullptr) {
    sim::timed()->wait_until(latest(*communicator, sim::timed()->now()), "ncclCommInitRank");
  }
  shm_unlink(id.name);  // by each; the memory goes with the last process
  return all_are_here ? success : fail(system_error, "the other ranks of a communicator did not come");
}

NCCL ncclCommInitRankConfig(Communicator** communicator, int ranks, UniqueId id, int rank, void* /*config*/) {
  return ncclCommInitRank(communicator, ranks, id, rank);
}

NCCL ncclCommSplit(Communicator*, int, int, Communicator**, void*) { return refuse("splitting a communicator"); }

NCCL ncclCommCount(const Communicator* communicator, int* count) {
  *count = communicator->clique->ranks;
  return success;
}

NCCL ncclCommUserRank(const Communicator* communicator, int* rank) {
  *rank = communicator->rank;
  return success;
}

NCCL ncclCommCuDevice(const Communicator* communicator, int* device) {
  *device = communicator->device;
  return success;
}

NCCL ncclCommGetAsyncError(Communicator*, int* code) {
  *code = success;
  return success;
}

// What is queued may still use it, so it is never freed.
NCCL ncclCommDestroy(Communicator*) { return success; }
NCCL ncclCommFinalize(Communicator*) { return success; }
NCCL ncclCommAbort(Communicator*) { return success; }
NCCL ncclCommRegister(const Communicator*, void*, std::size_t, void** handle) {
  *handle = nullptr;
  return success;
}
NCCL ncclCommDeregister(const Communicator*, void*) { return success; }

NCCL ncclRedOpCreatePreMulSum(int* reduction, void* factor, int type, int /*residence*/, Communicator* communicator) {
  static std::atomic<int> next{first_own};
  if (type != float32 && type != float64) {
    return refuse("a reduction that multiplies other than 32 and 64-bit floats");
  }
  *reduction = next++;
  communicator->scales[*reduction] = type == float32 ? *static_cast<float*>(factor) : *static_cast<double*>(factor);
  return success;
}
NCCL ncclRedOpDestroy(int, Communicator*) { return success; }

NCCL ncclGroupStart(void) {
  ++group().depth;
  return success;
}

NCCL ncclGroupEnd(void) {
  if (group().depth == 0) {
    return invalid_usage;
  }
  if (--group().depth > 0) {
    return success;
  }
  const std::vector<Call> calls = std::move(group().calls);
  group().calls.clear();
  return run_group(calls);
}

NCCL ncclAllReduce(const void* send, void* receive, std::size_t count, int type, int reduction,
                   Communicator* communicator, void* stream) {
  return add({Kind::all_reduce, send, receive, count, type, reduction, 0, communicator, stream});
}

NCCL ncclBroadcast(const void* send, void* receive, std::size_t count, int type, int root, Communicator* communicator,
                   void* stream) {
  return add({Kind::broadcast, send, receive, count, type, sum, root, communicator, stream});
}

NCCL ncclBcast(void* buffer, std::size_t count, int type, int root, Communicator* communicator, void* stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, communicator, stream);
}

NCCL ncclReduce(const void* send, void* receive, std::size_t count, int type, int reduction, int root,
                Communicator* communicator, void* stream) {
  return add({Kind::reduce, send, receive, count, type, reduction, root, communicator, stream});
}

NCCL ncclAllGather(const void* send, void* receive, std::size_t count, int type, Communicator* communicator,
                   void* stream) {
  return add({Kind::all_gather, send, receive, count, type, sum, 0, communicator, stream});
}

NCCL ncclReduceScatter(const void* send, void* receive, std::size_t count, int type, int reduction,
                       Communicator* communicator, void* stream) {
  return add({Kind::reduce_scatter, send, receive, count, type, reduction, 0, communicator, stream});
}

NCCL ncclSend(const void*, std::size_t, int, int, Communicator*, void*) { return refuse("sending to a rank"); }
NCCL ncclRecv(void*, std::size_t, int, int, Communicator*, void*) { return refuse("receiving from a rank"); }

// What libtorch_cuda.so of later releases links to, whatever the arguments.
NCCL ncclAlltoAll(void) { return refuse("ncclAlltoAll"); }
NCCL ncclGather(void) { return refuse("ncclGather"); }
NCCL ncclPutSignal(void) { return refuse("ncclPutSignal"); }
NCCL ncclSignal(void) { return refuse("ncclSignal"); }
NCCL ncclWaitSignal(void) { return refuse("ncclWaitSignal"); }
NCCL ncclCommGetUniqueId(void) { return refuse("ncclCommGetUniqueId"); }
NCCL ncclCommGrow(void) { return refuse("ncclCommGrow"); }
NCCL ncclCommInitRankScalable(void) { return refuse("ncclCommInitRankScalable"); }
NCCL ncclCommMemStats(void) { return refuse("ncclCommMemStats"); }
NCCL ncclCommResume(void) { return refuse("ncclCommResume"); }
NCCL ncclCommRevoke(void) { return refuse("ncclCommRevoke"); }
NCCL ncclCommShrink(void) { return refuse("ncclCommShrink"); }
NCCL ncclCommSuspend(void) { return refuse("ncclCommSuspend"); }
NCCL ncclCommWindowDeregister(void) { return refuse("ncclCommWindowDeregister"); }
NCCL ncclCommWindowRegister(void) { return refuse("ncclCommWindowRegister"); }
NCCL ncclDevCommCreate(void) { return refuse("ncclDevCommCreate"); }
NCCL ncclDevCommDestroy(void) { return refuse("ncclDevCommDestroy"); }
NCCL ncclGetLsaMultimemDevicePointer(void) { return refuse("ncclGetLsaMultimemDevicePointer"); }
NCCL ncclGetPeerDevicePointer(void) { return refuse("ncclGetPeerDevicePointer"); }
NCCL ncclGroupSimulateEnd(void) { return refuse("ncclGroupSimulateEnd"); }
NCCL ncclMemAlloc(void) { return refuse("ncclMemAlloc"); }
NCCL ncclMemFree(void) { return refuse("ncclMemFree"); }
NCCL ncclWinGetUserPtr(void) { return refuse("ncclWinGetUserPtr"); }

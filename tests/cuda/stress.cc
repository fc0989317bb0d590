// The allocator decorator and the pager under a random program, on the real libc10_cuda.so and the simulated CUDA.
//
//   stress SEED STEPS [THREADS] [POLICY]
//
// The program allocates, uses, copies and frees blocks on several streams, in the order that a correct program keeps:
// what one stream wrote is awaited by the next that touches it, and a block is freed only where its own stream has
// awaited the others or recordStream was called. Meanwhile it reclaims, changes the limit, empties the cache and
// switches LMS off and on. Every block has a pattern, which "kernels" (host functions of the streams) compare and
// rewrite when the simulated schedule runs them; they find memory through sim_pointer, so a block without pages is
// found out as well. Other things of the program take memory of the device, too, and now and then a call to the
// driver fails for want of memory.
//
// With the policy iteration the program does the same several times over before it does something else, so that there
// is something to foresee. With one thread and the policy lru a seed repeats a run exactly, and the last line is the
// same each time.
#include <ATen/LmsFailures.h>
#include <ATen/cuda/LmsCuda.h>
#include <ATen/lms/pager.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "observer.h"
#include "release.h"
#include "sim.h"

#ifdef __SANITIZE_ADDRESS__
// The allocator of libc10_cuda.so is never destroyed.
extern "C" const char* __lsan_default_suppressions() { return "leak:NativeCachingAllocator::init\n"; }
#endif

namespace {

constexpr uint64_t mib = uint64_t{1} << 20;
constexpr uint64_t unit = mib;  // as the simulation's option "sample": nothing is looked at between
constexpr uint64_t min_size = 2 * mib;
constexpr uint64_t largest = 40 * mib;
constexpr uint64_t device_bytes = 256 * mib;
constexpr int streams_of_a_thread = 4;
constexpr int own_stream = 3;  // of them, that which the program makes and destroys
constexpr size_t slots_of_a_thread = 24;
constexpr uint64_t steps_of_an_iteration = 300;
constexpr int most_held = 2;
constexpr size_t others = 2;

uint64_t run_seed = 0;
std::atomic<uint64_t> steps_done{0};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "seed %llu, about step %llu: %s\n", static_cast<unsigned long long>(run_seed),
               static_cast<unsigned long long>(steps_done.load()), what.c_str());
  std::fflush(nullptr);
  std::_Exit(1);
}

void require(bool condition, const char* what) {
  if (!condition) {
    fail(what);
  }
}

void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) {
    fail(std::string(what) + ": " + cudaGetErrorString(code));
  }
}

void check(const lms::Status& status, const char* what) {
  if (!status.ok()) {
    fail(std::string(what) + ": " + status.message);
  }
}

uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix(seed)) {}
  uint64_t next() { return mix(state_++); }
  uint64_t below(uint64_t bound) { return next() % bound; }
  bool chance(uint64_t percent) { return below(100) < percent; }

 private:
  uint64_t state_;
};

// ------------------------------------------------------------------------------------------------ contents

uint64_t word_at(uint64_t pattern, uint64_t offset) { return mix(pattern ^ offset); }

// Calls act(offset) for every place of [address, address + bytes) that is looked at, offsets from `address`.
template <typename Act>
void for_places(uint64_t address, uint64_t bytes, Act act) {
  for (uint64_t place = (address + unit - 1) / unit * unit; place + 8 <= address + bytes; place += unit) {
    act(place - address);
  }
}

struct Range {
  uint64_t address;
  uint64_t bytes;
  uint64_t pattern;
};

// What runs on a stream: compares some ranges, fills another.
struct Kernel {
  std::vector<Range> reads;
  Range written;  // bytes 0: none
  uint64_t step;
};

uint64_t* place_in_device(uint64_t address, int access, const char* what) {
  void* found = sim_pointer(0, address, 8, access);
  if (found == nullptr) {
    fail(std::string("a kernel ") + what + " memory that is not there");
  }
  return static_cast<uint64_t*>(found);
}

void compare(const Range& range, uint64_t step) {
  for_places(range.address, range.bytes, [&](uint64_t offset) {
    const uint64_t found = *place_in_device(range.address + offset, 1, "reads");
    if (found != word_at(range.pattern, offset)) {
      char text[160];
      std::snprintf(text, sizeof text, "a kernel of step %llu finds wrong contents %llu MiB into a block of %llu KiB",
                    static_cast<unsigned long long>(step), static_cast<unsigned long long>(offset / mib),
                    static_cast<unsigned long long>(range.bytes / 1024));
      fail(text);
    }
  });
}

void run_kernel(void* data) {
  const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(data));
  for (const Range& range : kernel->reads) {
    compare(range, kernel->step);
  }
  const Range& written = kernel->written;
  for_places(written.address, written.bytes, [&](uint64_t offset) {
    *place_in_device(written.address + offset, 3, "writes") = word_at(written.pattern, offset);
  });
}

// ------------------------------------------------------------------------------------------------ threads that free

// Frees what it is given on a thread of its own, which never set a device; the giver waits, so that the order is fixed.
class Undertaker {
 public:
  Undertaker() : thread_([this] { work(); }) {}
  ~Undertaker() {
    {
      const std::lock_guard<std::mutex> guard(lock_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void free(c10::DataPtr data) {
    std::unique_lock<std::mutex> guard(lock_);
    changed_.wait(guard, [this] { return !full_; });
    given_ = std::move(data);
    full_ = true;
    changed_.notify_all();
    changed_.wait(guard, [this] { return !full_; });
  }

 private:
  void work() {
    std::unique_lock<std::mutex> guard(lock_);
    while (true) {
      changed_.wait(guard, [this] { return full_ || over_; });
      if (!full_) {
        return;
      }
      given_ = c10::DataPtr();
      full_ = false;
      changed_.notify_all();
    }
  }

  std::mutex lock_;
  std::condition_variable changed_;
  c10::DataPtr given_;
  bool full_ = false;
  bool over_ = false;
  std::thread thread_;
};

// ------------------------------------------------------------------------------------------------ the program

struct Block {
  c10::DataPtr data;
  uint64_t bytes = 0;
  uint64_t pattern = 0;
  int home = 0;         // the stream that it was allocated on
  int writer = 0;       // the stream that wrote it last
  unsigned users = 0;   // bits of the streams that used it since
  bool held = false;    // stays where it is, so that it may be used without a pin
  bool common = false;  // all threads read it, none writes it
  uint64_t address() const { return reinterpret_cast<uint64_t>(data.get()); }
  bool lives() const { return data.get() != nullptr; }
};

struct Shared {
  std::string policy;
  uint64_t capacity = 0;
  bool alone = true;  // one thread
  Block common[3];
  std::mutex switching;
  Undertaker undertaker;

  lms::Pager* pager() const { return reinterpret_cast<lms::Pager*>(lms_torch_cuda_pager(0)); }
  void enable(uint64_t limit) {
    lms_options options = {};
    options.struct_size = sizeof options;
    options.limit = limit;
    options.policy = policy.c_str();
    if (lms_torch_cuda_enable(0, &options, min_size) != LMS_OK) {
      fail(std::string("enable: ") + lms_last_error());
    }
  }
};

class Program {
 public:
  Program(Shared* shared, uint64_t seed) : shared_(shared), random_(seed), other_random_(~seed) {
    c10::cuda::set_device(0);
    for (int i = 0; i < streams_of_a_thread; ++i) {
      streams_.push_back(i == 0 && shared->alone ? c10::cuda::getDefaultCUDAStream(0)
                         : i == own_stream       ? make_stream()
                                                 : c10::cuda::getStreamFromPool(/*isHighPriority=*/i % 2 == 0, 0));
      check(cudaEventCreateWithFlags(&events_[i], cudaEventDisableTiming), "cudaEventCreate");
    }
    check(cudaHostAlloc(reinterpret_cast<void**>(&host_), largest, 0), "cudaHostAlloc");
    std::memset(host_, 0, mib);
  }

  ~Program() {
    check(cudaFreeHost(host_), "cudaFreeHost");
    for (cudaEvent_t event : events_) {
      check(cudaEventDestroy(event), "cudaEventDestroy");
    }
  }

  void run(uint64_t steps) {
    const bool repeats = shared_->policy == "iteration";
    uint64_t iteration_seed = other_random_.next();
    for (uint64_t i = 0; i < steps; ++i) {
      step_ = ++steps_done;
      if (repeats && i % steps_of_an_iteration == 0) {
        free_all();
        if (other_random_.chance(15)) {
          iteration_seed = other_random_.next();
        }
        random_ = Random(iteration_seed);
      }
      if (off_ && other_random_.chance(1)) {
        switch_on();
      }
      try {
        step();
      } catch (const c10::Error& error) {
        // A request that does not fit is refused; nothing else may have changed.
        refuse(error);
      }
    }
    repair();
    give_device_memory_back();
    if (off_) {
      switch_on();
    }
    free_all();
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  uint64_t refused() const { return refused_; }

 private:
  void step() {
    const uint64_t what = random_.below(1000);
    if (what < 300) {
      replace();
    } else if (what < 700) {
      compute();
    } else if (what < 800) {
      copy();
    } else if (what < 860) {
      copy_to_host();
    } else if (what < 900) {
      copy_from_host();
    } else if (what < 930) {
      wait_for_something();
    } else if (what < 945) {
      hold();
    } else {
      disturb();
    }
  }

  // What is no part of an iteration.
  void disturb() {
    const uint64_t what = other_random_.below(shared_->policy == "iteration" ? 580 : 58);
    lms::Pager* pager = shared_->pager();
    if (what < 15) {
      raw();
    } else if (what < 25) {
      look_at_statistics();
    } else if (what < 35 && !off_) {
      uint64_t reclaimed = 0;
      const uint64_t bytes = other_random_.chance(20) ? UINT64_MAX : other_random_.below(64 * mib);
      expect(pager->reclaim(bytes, &reclaimed), "reclaim");
    } else if (what < 42 && !off_) {
      expect(pager->set_limit(limit()), "set_limit");
    } else if (what < 46) {
      c10::cuda::CUDACachingAllocator::emptyCache();
    } else if (what < 52) {
      take_device_memory();
    } else if (what < 54 && shared_->alone) {
      break_something();
    } else if (what < 55 && !off_) {
      switch_off();
    } else if (what >= 55) {
      replace_stream();
    }
  }

  // A stream of the program's own, in releases that know such.
  static c10::cuda::CUDAStream make_stream() {
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreate");
    return release::stream_of(made, 0);
  }

  // Destroys it and goes on with a new one, which has the handle of the last but one.
  void replace_stream() {
    if (!release::has_own_streams) {
      return;
    }
    c10::cuda::CUDAStream& own = streams_[own_stream];
    enter(0);
    if (!shared_->alone) {
      // Another thread's stream may get the handle, and by that, unordered, what the stock allocator keeps for it.
      for (Block& block : blocks_) {
        if (block.lives() && block.home == own_stream && !shared_->pager()->owns(block.data.get())) {
          free(&block);
        }
      }
      check(cudaStreamSynchronize(own.stream()), "cudaStreamSynchronize");
    }
    check(cudaEventRecord(events_[own_stream], own.stream()), "cudaEventRecord");
    const c10::cuda::CUDAStream made = make_stream();
    check(cudaStreamDestroy(own.stream()), "cudaStreamDestroy");
    own = made;
    check(cudaStreamWaitEvent(own.stream(), events_[own_stream], 0), "cudaStreamWaitEvent");
  }

  // One of the next calls to the driver fails for want of memory, which harms only the request that needed the call.
  void break_something() {
    constexpr const char* calls[] = {"cuMemCreate",   "cuMemMap",          "cuMemSetAccess",    "cuEventCreate",
                                     "cuEventRecord", "cuStreamWaitEvent", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"};
    repair();
    broken_ = true;
    const char* call = calls[other_random_.below(sizeof calls / sizeof *calls)];
    sim_fail(call, 1 + other_random_.below(5), CUDA_ERROR_OUT_OF_MEMORY);
  }

  void repair() {
    if (broken_) {
      sim_fail_clear();
      broken_ = false;
    }
  }

  // There is too little memory, or a call that was made to fail did.
  void refuse(const c10::Error& error) {
    if (!lms_torch::is_no_memory(error)) {
      if (!broken_) {
        fail(error.what_without_backtrace());
      }
      repair();
    }
    ++refused_;
  }
  void expect(const lms::Status& status, const char* what) {
    if (!broken_) {
      check(status, what);
    } else if (!status.ok()) {
      repair();
      ++refused_;
    }
  }

  // Often much less than the blocks need, now and then more than the device can give.
  uint64_t limit() { return other_random_.chance(10) ? shared_->capacity : (16 + other_random_.below(128)) * mib; }

  Block& any_slot() { return blocks_[random_.below(slots_of_a_thread)]; }
  Block* live_block() {
    const uint64_t first = random_.below(slots_of_a_thread);
    for (uint64_t i = 0; i < slots_of_a_thread; ++i) {
      Block& block = blocks_[(first + i) % slots_of_a_thread];
      if (block.lives()) {
        return &block;
      }
    }
    return nullptr;
  }
  int any_stream() { return static_cast<int>(random_.below(streams_of_a_thread)); }
  cudaStream_t stream(int index) const { return streams_[static_cast<size_t>(index)].stream(); }

  void enter(int index) { c10::cuda::setCurrentCUDAStream(streams_[static_cast<size_t>(index)]); }

  lms::StreamId number(int index) {
    return shared_->pager()->backend().stream(reinterpret_cast<uintptr_t>(stream(index)),
                                              /*lasting=*/index != own_stream || !release::has_own_streams);
  }

  // Makes one stream wait for all that another one has been given.
  void order(int later, int earlier) {
    if (later != earlier) {
      cudaEvent_t event = events_[static_cast<size_t>(earlier)];
      check(cudaEventRecord(event, stream(earlier)), "cudaEventRecord");
      check(cudaStreamWaitEvent(stream(later), event, 0), "cudaStreamWaitEvent");
    }
  }

  // What a program does before it touches a block on a stream.
  void order_use(const Block& block, int index, bool write) {
    if (block.common) {
      return;
    }
    order(index, block.writer);
    for (int other = 0; write && other < streams_of_a_thread; ++other) {
      if ((block.users >> other & 1) != 0) {
        order(index, other);
      }
    }
  }

  static void used(Block* block, int index, bool written) {
    if (block->common) {
      return;
    }
    block->users = (written ? 0 : block->users) | 1U << index;
    if (written) {
      block->writer = index;
    }
  }

  // Calls enqueue() with the blocks resident for the stream, as the observer does around an operation.
  void with_resident(int index, const std::vector<Block*>& reads, Block* written,
                     const std::function<void()>& enqueue) {
    enter(index);
    std::vector<Block*> all = reads;
    if (written != nullptr) {
      all.push_back(written);
    }
    const bool observed =
        !off_ &&
        !(std::all_of(all.begin(), all.end(), [](const Block* block) { return block->held; }) && random_.chance(50));
    std::vector<lms::Pin> pins;
    if (observed) {
      shared_->pager()->begin_scope();
      for (const Block* block : all) {
        pin(*block, block == written, index, &pins);
      }
    }
    for (Block* block : all) {
      order_use(*block, index, block == written);
    }
    enqueue();
    for (Block* block : all) {
      used(block, index, block == written);
    }
    if (observed) {
      leave(pins, index);
    }
  }

  void pin(const Block& block, bool write, int index, std::vector<lms::Pin>* pins) {
    lms::Pin taken;
    const lms::Status status = shared_->pager()->pin(block.data.get(), write, &taken, number(index));
    if (!status.ok()) {
      leave(*pins, index);
      lms_torch::throw_status(status);
    }
    pins->push_back(taken);
  }

  void leave(const std::vector<lms::Pin>& pins, int index) {
    for (const lms::Pin& pin : pins) {
      shared_->pager()->unpin(pin, number(index));
    }
    shared_->pager()->end_scope(number(index));
  }

  // A kernel that compares blocks, and fills one with a new pattern.
  void operation(int index, const std::vector<Block*>& reads, Block* written) {
    with_resident(index, reads, written, [&] { launch(index, reads, written); });
  }

  void launch(int index, const std::vector<Block*>& reads, Block* written) {
    auto kernel = std::make_unique<Kernel>();
    kernel->step = step_;
    for (const Block* block : reads) {
      kernel->reads.push_back(Range{block->address(), block->bytes, block->pattern});
    }
    kernel->written = {};
    if (written != nullptr) {
      written->pattern = other_random_.next();
      kernel->written = Range{written->address(), written->bytes, written->pattern};
    }
    check(cudaLaunchHostFunc(stream(index), &run_kernel, kernel.release()), "cudaLaunchHostFunc");
  }

  static uint64_t size(Random* random) {
    const uint64_t what = random->below(100);
    if (what < 10) {
      return unit + random->below(unit);  // the stock allocator's
    }
    if (what < 60) {
      return min_size * (1 + random->below(3));
    }
    if (what < 97) {
      return min_size + random->below(12 * mib);
    }
    return largest - random->below(8 * mib);
  }

  void replace() {
    Block& block = any_slot();
    if (block.lives()) {
      free(&block);
      return;
    }
    const int index = any_stream();
    enter(index);
    const uint64_t bytes = size(&random_);
    // In an operation, which fills it at once, or outside of any.
    const bool inside = random_.chance(70) && !off_;
    if (inside) {
      shared_->pager()->begin_scope();
    }
    try {
      block.data = c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
    } catch (const c10::Error&) {
      if (inside) {
        leave({}, index);
      }
      throw;
    }
    block.bytes = bytes;
    block.home = index;
    block.writer = index;
    block.users = 0;
    block.held = false;
    launch(index, {}, &block);
    used(&block, index, true);
    if (!off_) {
      shared_->pager()->mark_seen(block.data.get(), number(index));
    }
    if (inside) {
      leave({}, index);
    }
  }

  void free(Block* block) {
    // At the end of a block the stock allocator touches the streams that were recorded.
    const bool recordable =
        (block->users >> own_stream & 1) == 0 || !release::has_own_streams || shared_->pager()->owns(block->data.get());
    // Unannounced uses of a held block are known by the stream that it was allocated on, which may be destroyed by now.
    const bool homeless = block->held && block->home == own_stream;
    if (homeless || (random_.chance(50) && recordable)) {
      for (int other = 0; other < streams_of_a_thread; ++other) {
        if ((block->users >> other & 1) != 0 && (homeless || other != block->home)) {
          release::record_stream(block->data, streams_[static_cast<size_t>(other)]);
        }
      }
    } else {
      order_use(*block, block->home, true);
    }
    held_ -= block->held ? 1 : 0;
    if (random_.chance(4)) {
      shared_->undertaker.free(std::move(block->data));
    }
    block->data = c10::DataPtr();
  }

  void free_all() {
    for (Block& block : blocks_) {
      if (block.lives()) {
        while (!finished(block)) {
        }
        free(&block);
      }
    }
  }

  // Reads the block once more. False when there was no memory for it this time.
  bool finished(Block& block) {
    try {
      operation(block.home, {&block}, nullptr);
      return true;
    } catch (const c10::Error& error) {
      refuse(error);
    }
    give_device_memory_back();  // other threads may wait for it here as well
    return false;
  }

  // What shares a block with another process or captures a graph asks for this.
  void hold() {
    Block* block = live_block();
    if (block == nullptr || block->held || held_ == most_held || off_ || !shared_->pager()->owns(block->data.get())) {
      return;
    }
    const lms::Status status = shared_->pager()->hold(block->data.get());
    if (!status.ok()) {
      lms_torch::throw_status(status);
    }
    block->held = true;
    ++held_;
  }

  void compute() {
    std::vector<Block*> reads;
    for (uint64_t i = random_.below(3); i > 0; --i) {
      Block* block = live_block();
      if (block != nullptr && std::find(reads.begin(), reads.end(), block) == reads.end()) {
        reads.push_back(block);
      }
    }
    if (random_.chance(15)) {
      reads.push_back(&shared_->common[random_.below(sizeof shared_->common / sizeof *shared_->common)]);
    }
    Block* written = random_.chance(60) ? live_block() : nullptr;
    const auto both = std::find(reads.begin(), reads.end(), written);
    if (both != reads.end() && random_.chance(50)) {
      reads.erase(both);  // else it is read first, then written
    }
    operation(any_stream(), reads, written);
  }

  void copy() {
    Block* from = live_block();
    Block* to = live_block();
    if (from == nullptr || from == to || !aligned(*from) || !aligned(*to)) {
      return;
    }
    if (from->bytes > to->bytes) {
      std::swap(from, to);
    }
    const int index = any_stream();
    with_resident(index, {from}, to, [&] {
      // The rest of the target keeps its pattern, so it is written first.
      launch(index, {}, to);
      const uint64_t whole = from->bytes / unit * unit;
      check(cudaMemcpyAsync(to->data.get(), from->data.get(), whole, cudaMemcpyDeviceToDevice, stream(index)),
            "cudaMemcpyAsync");
      auto kernel = std::make_unique<Kernel>();
      kernel->step = step_;
      kernel->reads = {Range{to->address(), whole, from->pattern}};
      to->pattern = other_random_.next();
      kernel->written = Range{to->address(), to->bytes, to->pattern};
      check(cudaLaunchHostFunc(stream(index), &run_kernel, kernel.release()), "cudaLaunchHostFunc");
    });
  }

  // Copies carry what lies at multiples of `unit`, on both sides; not every block of the stock allocator begins at one.
  static bool aligned(const Block& block) { return block.address() % unit == 0; }

  void copy_to_host() {
    Block* from = live_block();
    if (from == nullptr || !aligned(*from)) {
      return;
    }
    const int index = any_stream();
    with_resident(index, {from}, nullptr, [&] {
      check(cudaMemcpyAsync(host_, from->data.get(), from->bytes, cudaMemcpyDeviceToHost, stream(index)),
            "cudaMemcpyAsync");
    });
    check(cudaStreamSynchronize(stream(index)), "cudaStreamSynchronize");
    for_places(0, from->bytes, [&](uint64_t offset) {
      uint64_t found = 0;
      std::memcpy(&found, host_ + offset, sizeof found);
      require(found == word_at(from->pattern, offset), "a copy to the host has wrong contents");
    });
  }

  void copy_from_host() {
    Block* to = live_block();
    if (to == nullptr || !aligned(*to)) {
      return;
    }
    const uint64_t pattern = other_random_.next();
    for_places(0, to->bytes, [&](uint64_t offset) {
      const uint64_t word = word_at(pattern, offset);
      std::memcpy(host_ + offset, &word, sizeof word);
    });
    const int index = any_stream();
    with_resident(index, {}, to, [&] {
      check(cudaMemcpyAsync(to->data.get(), host_, to->bytes, cudaMemcpyHostToDevice, stream(index)),
            "cudaMemcpyAsync");
      to->pattern = pattern;
    });
    check(cudaStreamSynchronize(stream(index)), "cudaStreamSynchronize");  // the buffer is used again
  }

  void wait_for_something() {
    switch (random_.below(3)) {
      case 0:
        check(cudaStreamSynchronize(stream(any_stream())), "cudaStreamSynchronize");
        return;
      case 1:
        check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        return;
      default: {
        const cudaError_t code = cudaStreamQuery(stream(any_stream()));
        require(code == cudaSuccess || code == cudaErrorNotReady, "cudaStreamQuery failed");
        static_cast<void>(cudaGetLastError());
      }
    }
  }

  // Memory that extensions take for themselves comes from the stock allocator.
  void raw() {
    enter(static_cast<int>(other_random_.below(streams_of_a_thread)));
    void* address = c10::cuda::CUDACachingAllocator::raw_alloc(size(&other_random_));
    require(!shared_->pager()->owns(address), "raw_alloc gave memory of the pager");
    c10::cuda::CUDACachingAllocator::raw_delete(address);
  }

  // Other libraries do that behind the allocator's back, and keep it for a while.
  void take_device_memory() {
    void*& memory = others_[other_random_.below(others)];
    if (memory != nullptr) {
      check(cudaFree(memory), "cudaFree");
      memory = nullptr;
    } else if (cudaMalloc(&memory, other_random_.below(48) * mib + mib) != cudaSuccess) {
      require(cudaGetLastError() == cudaErrorMemoryAllocation, "cudaMalloc failed");
      memory = nullptr;
    }
  }

  void give_device_memory_back() {
    for (void*& memory : others_) {
      check(cudaFree(memory), "cudaFree");
      memory = nullptr;
    }
  }

  void look_at_statistics() {
    const lms::Statistics now = shared_->pager()->statistics();
    require(sim_used_bytes(0) <= shared_->capacity, "more is in use than the device has");
    if (shared_->alone && shared_->policy == "lru") {  // else another thread may be moving a block
      require(now.device_bytes <= shared_->capacity, "the pager counts more than the device has");
      require(now.resident_bytes + now.away_bytes == now.allocated_bytes, "blocks are neither resident nor away");
      const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
      require(off_ || stats.allocated_bytes[0].current >= static_cast<int64_t>(now.resident_bytes),
              "getDeviceStats misses what LMS has");
    }
  }

  // A lone thread goes on without LMS for a while. Other threads would not know, so there it is on again at once.
  void switch_off() {
    const std::unique_lock<std::mutex> guard(shared_->switching, std::try_to_lock);
    if (!guard.owns_lock()) {
      return;
    }
    // Refused while the blocks need more than the device has.
    const bool off = lms_torch_cuda_disable(0) == LMS_OK;
    require(lms_torch_cuda_enabled(0) == (off ? 0 : 1), "whether LMS is enabled is told wrongly");
    off_ = off && shared_->alone;
    if (!off_) {
      switch_on();
    }
  }

  void switch_on() {
    off_ = false;
    repair();
    shared_->enable(limit());
  }

  Shared* const shared_;
  Random random_;        // of the program; the same in each iteration
  Random other_random_;  // of all else
  std::vector<c10::cuda::CUDAStream> streams_;
  cudaEvent_t events_[streams_of_a_thread] = {};
  Block blocks_[slots_of_a_thread];
  char* host_ = nullptr;
  void* others_[others] = {};  // memory of the device that is not the allocator's
  bool off_ = false;
  bool broken_ = false;  // a call to the driver may fail that should not
  int held_ = 0;
  uint64_t step_ = 0;
  uint64_t refused_ = 0;
};

void fill(Block* block, uint64_t bytes) {
  block->data = c10::cuda::CUDACachingAllocator::get()->allocate(bytes);
  block->bytes = bytes;
  block->pattern = mix(bytes);
  block->common = true;
  auto kernel = std::make_unique<Kernel>();
  kernel->step = 0;
  kernel->written = Range{block->address(), bytes, block->pattern};
  check(cudaLaunchHostFunc(c10::cuda::getCurrentCUDAStream(0), &run_kernel, kernel.release()), "cudaLaunchHostFunc");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

uint64_t number(const char* text) {
  char* end = nullptr;
  const uint64_t value = std::strtoull(text, &end, 10);
  require(*text != '\0' && *end == '\0', "the arguments are SEED STEPS [THREADS] [POLICY]");
  return value;
}

void run(uint64_t steps, uint64_t threads, const std::string& policy) {
  Shared shared;
  shared.policy = policy;
  c10::cuda::set_device(0);
  release::start(1);
  size_t free = 0;
  check(cudaMemGetInfo(&free, &shared.capacity), "cudaMemGetInfo");
  shared.enable(64 * mib);
  for (Block& block : shared.common) {
    fill(&block, (4 + 8 * static_cast<uint64_t>(&block - shared.common)) * mib);
  }
  uint64_t refused = 0;
  shared.alone = threads == 1;
  if (shared.alone) {
    Program program(&shared, run_seed);
    program.run(steps);
    refused = program.refused();
  } else {
    std::vector<std::thread> all;
    for (uint64_t i = 0; i < threads; ++i) {
      all.emplace_back([&shared, i, steps, threads] {
        Program program(&shared, run_seed * 1000 + i);
        program.run(steps / threads);
      });
    }
    for (std::thread& thread : all) {
      thread.join();
    }
  }
  for (Block& block : shared.common) {
    block.data = c10::DataPtr();
  }
  lms::Pager* pager = shared.pager();
  lms::Statistics counts = pager->statistics();
  require(counts.allocated_bytes == 0 && counts.allocated_blocks == 0, "blocks are left");
  require(counts.device_bytes <= shared.capacity, "the pager counts more than the device has");
  require(sim_device_error(0) == 0, "the device was lost");
  require(lms_torch_cuda_disable(0) == LMS_OK, "disable failed at the end");
  c10::cuda::CUDACachingAllocator::emptyCache();
  pager->backend().trim(UINT64_MAX);
  require(sim_used_bytes(0) == 0, "physical memory is left");
  std::printf("out %llu MiB, in %llu MiB, foreseen %llu, cached %llu, mapped %llu, over %llu, refused %llu\n",
              static_cast<unsigned long long>(counts.out_bytes / mib),
              static_cast<unsigned long long>(counts.in_bytes / mib),
              static_cast<unsigned long long>(counts.prefetch_blocks),
              static_cast<unsigned long long>(counts.cached_allocations),
              static_cast<unsigned long long>(counts.mapped_allocations),
              static_cast<unsigned long long>(counts.over_limit_requests), static_cast<unsigned long long>(refused));
}

}  // namespace

int main(int count, char** arguments) {
  require(count >= 3 && count <= 5, "the arguments are SEED STEPS [THREADS] [POLICY]");
  run_seed = number(arguments[1]);
  // The device's options, unless others are set. It is small, and only what this program looks at exists.
  setenv("SIM_CUDA_SEED", arguments[1], 0);
  setenv("SIM_CUDA_MEMORY", std::to_string(device_bytes).c_str(), 0);
  setenv("SIM_CUDA_SAMPLE", std::to_string(unit).c_str(), 0);
  setenv("SIM_CUDA_HOST_ACCESS", "0", 0);
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);  // so the kernel clears no more of the host's store than that
  try {
    run(number(arguments[2]), count > 3 ? number(arguments[3]) : 1, count > 4 ? arguments[4] : "lru");
  } catch (const std::exception& error) {
    fail(error.what());
  }
  return 0;
}

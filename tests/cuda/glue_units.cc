// The CUDA glue on the real allocator of the wheel: what it takes over, what it leaves, and that no byte gets lost.
#include <sys/wait.h>

#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "glue_rig.h"
#include "override.h"

using namespace rig;

namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

cudaStream_t stream_now() { return c10::cuda::getCurrentCUDAStream().stream(); }

void enqueue_fill(const at::Tensor& tensor, int64_t value) {
  C10_CUDA_CHECK(cudaMemsetAsync(address(tensor), static_cast<int>(value), tensor.numel(), stream_now()));
}

void enqueue_download(const at::Tensor& tensor, int64_t host) {
  C10_CUDA_CHECK(cudaMemcpyAsync(reinterpret_cast<void*>(host), address(tensor), tensor.numel(), cudaMemcpyDeviceToHost,
                                 stream_now()));
}

// The work of a collective; `finished` says when it is done.
class TestWork : public c10d::Work {
 public:
  bool isCompleted() override { return finished; }
  static bool finished;
};
bool TestWork::finished = false;

// Sends the tensor on a stream of its own, as the collectives of a process group do.
c10::intrusive_ptr<c10d::Work> collective(const at::Tensor& tensor, int64_t host, bool none) {
  static const CUDAStream own = c10::cuda::getStreamFromPool();
  cudaEvent_t ready = nullptr;
  C10_CUDA_CHECK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
  C10_CUDA_CHECK(cudaEventRecord(ready, stream_now()));
  C10_CUDA_CHECK(cudaStreamWaitEvent(own.stream(), ready, 0));
  C10_CUDA_CHECK(cudaEventDestroy(ready));
  const CUDAStreamGuard guard(own);
  enqueue_download(tensor, host);
  return none ? nullptr : c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<TestWork>());
}

TORCH_LIBRARY(lms_test, library) {
  library.def("fill(Tensor(a!) x, int value) -> ()");
  library.def("sneak(Tensor x, int value) -> ()");
  library.def("download(Tensor x, int host) -> ()");
  library.def("collective(Tensor x, int host, bool none) -> __torch__.torch.classes.c10d.Work");
}
TORCH_LIBRARY_IMPL(lms_test, CUDA, library) {
  library.impl("fill", &enqueue_fill);
  library.impl("sneak", &enqueue_fill);
  library.impl("download", &enqueue_download);
  library.impl("collective", &collective);
}
TORCH_LIBRARY_FRAGMENT(aten, library) { library.def("lms_test_download(Tensor x, int host) -> ()"); }
TORCH_LIBRARY_IMPL(aten, CUDA, library) { library.impl("lms_test_download", &enqueue_download); }

// An allocator of the user's own, in front of another one.
class UserAllocatorBase : public CUDAAllocator {
 public:
  std::string name() override { return name_; }
  void recordStream(const c10::DataPtr& data, CUDAStream stream) override { inner->recordStream(data, stream); }
  c10::DeleterFnPtr raw_deleter() const override { return inner->raw_deleter(); }
  CUDAAllocator* inner = nullptr;
  std::string name_ = "mine";
};
// clang-format off
#define USER_METHODS(X)                                                                                               \
  X(allocate) X(copy_data) X(raw_alloc) X(raw_alloc_with_stream) X(raw_delete) X(init) X(initialized)                 \
  X(getMemoryFraction) X(setMemoryFraction) X(emptyCache) X(enable) X(isEnabled) X(cacheInfo) X(getBaseAllocation)    \
  X(getDeviceStats) X(resetAccumulatedStats) X(resetPeakStats) X(snapshot) X(beginAllocateToPool)                     \
  X(endAllocateToPool) X(releasePool) X(shareIpcHandle) X(getIpcDevPtr) X(recordHistory)                              \
  X(attachOutOfMemoryObserver) X(attachAllocatorTraceTracker) X(enablePeerAccess) X(memcpyAsync)                      \
  X(getCheckpointState) X(setCheckpointPoolState)
// clang-format on
#define USER_DEFINE(method) LMS_DEFINE_OVERRIDE(method, this->inner->)
USER_METHODS(USER_DEFINE)
#define USER_LINK(method) , lms_override_##method<CUDAAllocator>::Link
using UserAllocator = lms::Chain<UserAllocatorBase USER_METHODS(USER_LINK)>::type;

int64_t reserved_by_stock() {
  return allocator()->getDeviceStats(device).reserved_bytes[0].current -
         static_cast<int64_t>(statistic("device_bytes.current"));
}

uint64_t reclaim_all() { return check::reclaim(pager()); }

}  // namespace

// ------------------------------------------------------------------------------------------------ what is taken over

CASE(takes_large_requests_of_enabled_devices) {
  start();
  CUDAAllocator* stock = allocator();
  at::Tensor before = empty(4 * mib);
  enable(64 * mib, 2 * mib);
  CHECK(allocator() != stock);
  CHECK(allocator()->name() == "native");
  CHECK(!paged(before));
  CHECK(paged(empty(2 * mib)));
  CHECK(!paged(empty(2 * mib - 1)));
  CHECK(empty(0).unsafeGetTensorImpl()->unsafe_storage().data() == nullptr);
  {
    const c10::cuda::CUDAGuard other(1);
    CHECK(!paged(empty(4 * mib)));
  }
  CHECK_EQ(lms_torch_cuda_enabled(0), 1);
  CHECK_EQ(lms_torch_cuda_enabled(1), 0);
  CHECK_EQ(lms_torch_cuda_min_size(0), 2 * mib);
  const at::Tensor block = empty(4 * mib);
  size_t bytes = 0;
  CHECK(allocator()->getBaseAllocation(address(block) + 5, &bytes) == address(block));
  CHECK_EQ(bytes, 4 * mib);
  disable();
  CHECK(allocator() == stock);
  CHECK(paged(block));
  CHECK(!paged(empty(4 * mib)));
}

CASE(is_enabled_at_first_use) {
  start();
  CUDAAllocator* stock = allocator();
  const lms_options options = check::options(UINT64_MAX, "lru", nullptr, false, 4096 * mib);
  CHECK_EQ(lms_torch_cuda_enable(-1, &options, 2 * mib), LMS_OK);
  CHECK_EQ(lms_torch_cuda_enabled(0), 0);
  const at::Tensor small = empty(mib);
  CHECK_EQ(lms_torch_cuda_enabled(0), 0);
  const uint64_t used = sim_used_bytes(0);
  CHECK(paged(empty(4 * mib)));
  CHECK_EQ(lms_torch_cuda_enabled(0), 1);
  CHECK_EQ(lms_torch_cuda_enabled(1), 0);
  CHECK_EQ(lms_limit(pager()), (128 * mib - used) / 100 * 95);
  disable();
  CHECK(!paged(empty(4 * mib)));  // switched off by name: stays so
  CHECK(allocator() != stock);
  disable(-1);
  CHECK(allocator() == stock);
}

CASE(leaves_the_allocator_of_another_library) {
  start();
  CUDAAllocator* stock = allocator();
  enable(64 * mib);
  UserAllocator user;
  user.inner = allocator();
  c10::cuda::CUDACachingAllocator::allocator.store(&user);
  const at::Tensor block = empty(4 * mib);
  CHECK(paged(block));
  disable();
  CHECK(allocator() == &user);
  CHECK(!paged(empty(4 * mib)));
  enable(64 * mib);
  CHECK(allocator() == &user);
  CHECK(paged(empty(4 * mib)));
  c10::cuda::CUDACachingAllocator::allocator.store(user.inner);
  disable();
  CHECK(allocator() == stock);
}

CASE(refuses_a_pluggable_allocator) {
  start();
  UserAllocator user;
  user.inner = allocator();
  user.name_ = "pluggable";
  c10::cuda::CUDACachingAllocator::allocator.store(&user);
  const lms_options options = check::options(64 * mib);
  CHECK_EQ(lms_torch_cuda_enable(0, &options, mib), LMS_UNSUPPORTED);
  CHECK(check::contains(lms_last_error(), "CUDAPluggableAllocator is in use"));
  CHECK(allocator() == &user);
  c10::cuda::CUDACachingAllocator::allocator.store(user.inner);
}

CASE(refuses_a_device_that_is_not_there) {
  start();
  const lms_options options = check::options(64 * mib);
  CHECK_EQ(lms_torch_cuda_enable(1000, &options, mib), LMS_INVALID_ARGUMENT);
  CHECK(check::contains(lms_last_error(), "no CUDA device"));
  CHECK(lms_torch_cuda_enable(7, &options, mib) != LMS_OK);
  CHECK_EQ(lms_torch_cuda_enabled(7), 0);
}

// ------------------------------------------------------------------------------------------------ contents

CASE(contents_survive_on_several_streams) {
  enable(24 * mib);
  check::Random random(check::seed());
  sim_seed(random.next());
  std::vector<CUDAStream> streams = {c10::cuda::getDefaultCUDAStream()};
  for (int i = 0; i < 3; ++i) {
    streams.push_back(c10::cuda::getStreamFromPool());
  }
  struct Entry {
    at::Tensor tensor;
    int64_t value;
    size_t stream;
  };
  std::vector<Entry> entries;
  for (int step = 0; step < 1500; ++step) {
    const size_t stream = random.below(streams.size());
    if (entries.size() < 10 || random.chance(10)) {
      const CUDAStreamGuard guard(streams[stream]);
      entries.push_back(Entry{empty((1 + random.below(4)) * mib), static_cast<int64_t>(random.below(256)), stream});
      fill(entries.back().tensor, entries.back().value);
    }
    Entry& entry = entries[random.below(entries.size())];
    const CUDAStreamGuard guard(streams[entry.stream]);
    if (random.chance(50)) {
      CHECK(holds(entry.tensor, entry.value, random.chance(50)));
    } else {
      entry.value = static_cast<int64_t>(random.below(256));
      random.chance(50) ? fill(entry.tensor, entry.value) : sneak(entry.tensor, entry.value);
    }
    if (entries.size() > 14) {
      entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(random.below(entries.size())));
    }
  }
  CHECK(statistic("out.blocks") > 100);
  CHECK(statistic("in.blocks") > 100);
  disable();
  for (const Entry& entry : entries) {
    const CUDAStreamGuard guard(streams[entry.stream]);
    CHECK(holds(entry.tensor, entry.value));
  }
}

CASE(saves_what_was_only_read) {
  enable(64 * mib);
  const at::Tensor block = empty(4 * mib);
  fill(block, 1);
  CHECK(reclaim_all() == 4 * mib);
  CHECK(holds(block, 1));
  CHECK_EQ(statistic("clean_bytes.current"), 0);
  sneak(block, 2);  // a kernel that nobody announced
  reclaim_all();
  CHECK_EQ(statistic("out.blocks"), 2);
  CHECK(holds(block, 2, /*trusted=*/false));
}

CASE(clones_and_copies_blocks) {
  enable(64 * mib);
  const at::Tensor block = empty(4 * mib);
  fill(block, 3);
  reclaim_all();
  const at::Tensor copy = over(allocator()->clone(address(block), 4 * mib), 4 * mib);
  CHECK(paged(copy));
  CHECK(address(copy) != address(block));
  CHECK(holds(copy, 3));
  at::Tensor small = empty(mib / 2);
  fill(small, 4);
  CHECK(holds(over(allocator()->clone(address(small), mib / 2), mib / 2), 4));
}

CASE(record_stream_keeps_the_block_from_others) {
  enable(64 * mib);
  const CUDAStream side = c10::cuda::getStreamFromPool();
  for (int round = 0; round < 50; ++round) {
    sim_seed(static_cast<uint64_t>(round) + 1);
    const HostBytes host(4 * mib);
    {
      const at::Tensor block = empty(4 * mib);
      fill(block, 5);
      cudaEvent_t filled = nullptr;
      CHECK_EQ(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming), cudaSuccess);
      CHECK_EQ(cudaEventRecord(filled, stream_now()), cudaSuccess);
      CHECK_EQ(cudaStreamWaitEvent(side.stream(), filled, 0), cudaSuccess);
      // Not an operation: only record_stream tells of it.
      CHECK_EQ(cudaMemcpyAsync(reinterpret_cast<void*>(host.address()), address(block), 4 * mib, cudaMemcpyDeviceToHost,
                               side.stream()),
               cudaSuccess);
      allocator()->recordStream(block.storage().data_ptr(), side);
      CHECK_EQ(cudaEventDestroy(filled), cudaSuccess);
    }
    const at::Tensor next = empty(4 * mib);
    fill(next, 6);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK(host.all(5));
  }
}

// ------------------------------------------------------------------------------------------------ memory for both

CASE(stock_allocator_gets_memory_back) {
  enable(112 * mib, 8 * mib);
  std::vector<at::Tensor> blocks;
  for (int i = 0; i < 13; ++i) {
    blocks.push_back(empty(8 * mib));
    fill(blocks.back(), i);
  }
  CHECK(sim_used_bytes(0) > 100 * mib);
  std::vector<at::Tensor> others;
  for (int i = 0; i < 8; ++i) {
    others.push_back(empty(7 * mib));
    CHECK(!paged(others.back()));
    fill(others.back(), 100 + i);
  }
  void* raw = allocator()->raw_alloc(30 * mib);
  CHECK(lms_owns(pager(), raw) == 0);
  allocator()->raw_delete(raw);
  for (int i = 0; i < 8; ++i) {
    CHECK(holds(others[static_cast<size_t>(i)], 100 + i));
  }
  others.clear();
  allocator()->emptyCache();
  for (int i = 0; i < 13; ++i) {
    CHECK(holds(blocks[static_cast<size_t>(i)], i));
  }
}

CASE(stock_error_stays_when_nothing_helps) {
  enable(64 * mib, 8 * mib);
  const std::string error = failure_of([] { allocator()->raw_alloc(400 * mib); });
  CHECK(error.find("CUDA out of memory") != std::string::npos);
  const std::string absurd = failure_of([] { allocator()->allocate(size_t{1} << 61); });
  CHECK(absurd.find("1EB") != std::string::npos);
}

CASE(pager_gets_the_cache_of_the_stock_allocator) {
  enable(112 * mib, 24 * mib);
  {
    std::vector<at::Tensor> others;
    for (int i = 0; i < 5; ++i) {
      others.push_back(empty(20 * mib));
      CHECK(!paged(others.back()));
    }
  }
  CHECK(reserved_by_stock() >= static_cast<int64_t>(100 * mib));
  const at::Tensor block = empty(96 * mib);
  CHECK(paged(block));
  fill(block, 7);
  CHECK(holds(block, 7));
  CHECK(reserved_by_stock() == 0);
}

CASE(strict_limit_is_an_out_of_memory_error) {
  enable(16 * mib, mib, /*strict=*/true);
  std::vector<at::Tensor> held;
  try {
    held.push_back(empty(24 * mib));
    CHECK_FAIL("nothing was thrown");
  } catch (const c10::OutOfMemoryError& error) {
    CHECK(check::contains(error.what(), "LMS: "));
  }
  held.push_back(empty(12 * mib));
  fill(held.back(), 8);
  CHECK(holds(held.back(), 8));
}

CASE(statistics_count_both) {
  enable(64 * mib);
  const auto before = allocator()->getDeviceStats(device);
  at::Tensor block = empty(4 * mib);
  fill(block, 1);
  const at::Tensor small = empty(mib / 2);
  auto stats = allocator()->getDeviceStats(device);
  for (const size_t row : {0, 2}) {
    const int64_t stock_bytes = row == 0 ? static_cast<int64_t>(mib / 2) : 0;
    CHECK_EQ(stats.allocated_bytes[row].current - before.allocated_bytes[row].current, 4 * mib + stock_bytes);
    CHECK_EQ(stats.active_bytes[row].current - before.active_bytes[row].current, 4 * mib + stock_bytes);
    CHECK(stats.reserved_bytes[row].current - before.reserved_bytes[row].current >= static_cast<int64_t>(4 * mib));
    CHECK(stats.allocated_bytes[row].peak >= stats.allocated_bytes[row].current);
  }
  reclaim_all();
  stats = allocator()->getDeviceStats(device);
  CHECK_EQ(stats.allocated_bytes[2].current, before.allocated_bytes[2].current);
  CHECK(stats.allocated_bytes[2].peak >= static_cast<int64_t>(4 * mib));
  allocator()->resetPeakStats(device);
  CHECK_EQ(allocator()->getDeviceStats(device).allocated_bytes[2].peak, before.allocated_bytes[2].current);
  block.reset();
}

CASE(empty_cache_gives_cached_pages_back) {
  enable(64 * mib);
  const uint64_t before = sim_used_bytes(0);
  const at::Tensor kept = empty(4 * mib);
  fill(kept, 9);
  empty(32 * mib);
  CHECK(statistic("cached_bytes.current") >= 32 * mib);
  allocator()->emptyCache();
  CHECK_EQ(statistic("cached_bytes.current"), 0);
  CHECK_EQ(sim_used_bytes(0), before + 4 * mib);
  CHECK_EQ(statistic("out.blocks"), 0);
  CHECK(holds(kept, 9));
}

// To pin takes longer than to copy: what one iteration has left empty serves the next.
CASE(pinned_memory_is_kept_until_nothing_uses_it) {
  enable(16 * mib);
  const uint64_t before = sim_calls("cuMemHostRegister");
  const uint64_t unpinned = sim_calls("cuMemHostUnregister");
  uint64_t pinned = 0;
  for (int iteration = 0; iteration < 3; ++iteration) {
    std::vector<at::Tensor> blocks;
    for (int i = 0; i < 60; ++i) {  // more than one segment of the store
      blocks.push_back(empty(4 * mib));
      fill(blocks.back(), i);
    }
    for (int i = 0; i < 60; ++i) {
      CHECK(holds(blocks[static_cast<size_t>(i)], i));
    }
    blocks.clear();
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const uint64_t now = sim_calls("cuMemHostRegister") - before;
    CHECK(now > 1);
    CHECK(iteration == 0 || now == pinned);
    pinned = now;
    allocator()->emptyCache();  // which some programs do in every iteration
  }
  CHECK_EQ(sim_calls("cuMemHostUnregister"), unpinned);
  allocator()->emptyCache();  // nothing was used since the last one
  CHECK_EQ(sim_calls("cuMemHostUnregister") - unpinned, pinned);
  const at::Tensor after = empty(16 * mib);
  fill(after, 1);
  fill(empty(16 * mib), 2);
  CHECK(holds(after, 1));
  CHECK(sim_calls("cuMemHostRegister") - before > pinned);
  disable();
}

CASE(memory_fraction_bounds_the_limit) {
  enable(100 * mib);
  const at::Tensor small = empty(mib / 2);  // a segment of 2 MiB
  allocator()->setMemoryFraction(0.5, device);
  CHECK_EQ(lms_limit(pager()), 62 * mib);
  disable();
  enable(100 * mib);
  CHECK_EQ(lms_limit(pager()), 62 * mib);
  allocator()->setMemoryFraction(1, device);
}

// ------------------------------------------------------------------------------------------------ graphs

CASE(private_pools_are_not_paged) {
  enable(64 * mib);
  const CUDAStream taken = c10::cuda::getStreamFromPool();
  const cudaStream_t handle = taken.stream();
  const c10::cuda::MempoolId_t pool = {0, 17};
  CHECK(allocator()->raw_deleter() != nullptr);
  allocator()->beginAllocateToPool(device, pool, [handle](cudaStream_t stream) { return stream == handle; });
  at::Tensor pooled;
  {
    const CUDAStreamGuard guard(taken);
    pooled = empty(4 * mib);
    CHECK(!paged(pooled));
  }
  CHECK(paged(empty(4 * mib)));
  allocator()->endAllocateToPool(device, pool);
  CHECK(pooled.storage().data_ptr().get_deleter() == allocator()->raw_deleter());
  const CUDAStreamGuard guard(taken);
  CHECK(paged(empty(4 * mib)));
  pooled.reset();
  allocator()->releasePool(device, pool);
}

CASE(captured_blocks_stay) {
  enable(16 * mib);
  const CUDAStream stream = c10::cuda::getStreamFromPool();
  const CUDAStreamGuard guard(stream);
  const at::Tensor used = empty(4 * mib);
  const at::Tensor unused = empty(4 * mib);
  fill(used, 1);
  fill(unused, 2);
  CHECK_EQ(reclaim_all(), 8 * mib);
  CHECK_EQ(cudaStreamSynchronize(stream.stream()), cudaSuccess);

  const c10::cuda::MempoolId_t pool = {18, 0};
  const cudaStream_t handle = stream.stream();
  allocator()->beginAllocateToPool(device, pool, [handle](cudaStream_t other) { return other == handle; });
  CHECK_EQ(cudaStreamBeginCapture(handle, cudaStreamCaptureModeGlobal), cudaSuccess);
  fill(used, 3);
  const at::Tensor inside = empty(2 * mib);
  CHECK(!paged(inside));
  fill(inside, 4);
  cudaGraph_t graph = nullptr;
  CHECK_EQ(cudaStreamEndCapture(handle, &graph), cudaSuccess);
  allocator()->endAllocateToPool(device, pool);
  cudaGraphExec_t executable = nullptr;
  CHECK_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);

  CHECK(holds(used, 1));
  CHECK(holds(unused, 2));
  CHECK_EQ(reclaim_all(), 4 * mib);  // only the other one
  std::vector<at::Tensor> pressure;
  for (int i = 0; i < 6; ++i) {
    pressure.push_back(empty(4 * mib));
    fill(pressure.back(), 5);
  }
  CHECK_EQ(cudaGraphLaunch(executable, handle), cudaSuccess);
  CHECK(holds(used, 3));
  CHECK(holds(inside, 4));
  CHECK(holds(unused, 2));
  CHECK_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// ------------------------------------------------------------------------------------------------ pins

CASE(operators_pin) {
  enable(64 * mib);
  const at::Tensor block = empty(4 * mib);
  fill(block, 1);
  reclaim_all();
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto pin =
      dispatcher.findSchemaOrThrow("lms::pin", "").typed<std::vector<int64_t>(at::TensorList, bool, bool)>();
  const auto unpin = dispatcher.findSchemaOrThrow("lms::unpin", "").typed<int64_t(c10::IntArrayRef, bool)>();
  const auto alias = dispatcher.findSchemaOrThrow("lms::pinned_alias", "").typed<at::Tensor(const at::Tensor&)>();
  for (const bool current_stream : {false, true}) {
    const std::vector<int64_t> tokens = pin.call({block}, true, current_stream);
    CHECK(!tokens.empty());
    CHECK_EQ(statistic("pinned_bytes.current"), 4 * mib);
    CHECK_EQ(reclaim_all(), 0);
    CHECK(sim_accessible(0, reinterpret_cast<uint64_t>(address(block)), 4 * mib, 3) != 0);
    unpin.call(tokens, current_stream);
    CHECK_EQ(statistic("pinned_bytes.current"), 0);
    CHECK_EQ(reclaim_all(), 4 * mib);
  }
  at::Tensor view = alias.call(block);
  CHECK(address(view) == address(block));
  CHECK(view.is_cuda());
  CHECK_EQ(reclaim_all(), 0);
  view.reset();
  CHECK_EQ(reclaim_all(), 4 * mib);
  CHECK(pin.call({empty(mib / 2)}, true, false).empty());
  CHECK(failure_of([] {
          c10::Dispatcher::singleton()
              .findSchemaOrThrow("lms::unpin", "")
              .typed<int64_t(c10::IntArrayRef, bool)>()
              .call({1, 2}, false);
        }).find("lms::unpin takes what lms::pin returned") != std::string::npos);
}

CASE(collectives_pin_until_they_are_done) {
  enable(64 * mib);
  const auto start_collective = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("lms_test::collective", "")
                                    .typed<c10::intrusive_ptr<c10d::Work>(const at::Tensor&, int64_t, bool)>();
  const HostBytes host(4 * mib);
  const at::Tensor block = empty(4 * mib);
  const at::Tensor other = empty(2 * mib);
  fill(block, 1);
  fill(other, 2);
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    sim_seed(seed);
    fill(block, static_cast<int64_t>(seed));
    TestWork::finished = false;
    start_collective.call(block, host.address(), false);
    fill(other, 3);
    CHECK_EQ(reclaim_all(), 2 * mib);
    TestWork::finished = true;  // as far as the host is concerned
    fill(other, 4);
    CHECK_EQ(reclaim_all(), 6 * mib);
    CHECK(host.all(static_cast<int64_t>(seed)));  // the memory was not taken before its stream had sent it
  }
  CHECK(holds(block, 30));
  CHECK(holds(other, 4));
  // One that has no work of its own starts later, with a group: its tensors stay.
  start_collective.call(block, host.address(), true);
  CHECK_EQ(reclaim_all(), 2 * mib);
}

CASE(failed_pins_are_reported) {
  enable(64 * mib);
  const at::Tensor block = empty(4 * mib);
  fill(block, 1);
  CHECK_EQ(reclaim_all(), 4 * mib);
  CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto pin = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("lms::pin", "")
                       .typed<std::vector<int64_t>(at::TensorList, bool, bool)>();
  allocator()->emptyCache();
  sim_fail("cuMemCreate", 0, 2);
  sim_fail("cuMemMap", 0, 2);
  bool thrown = false;
  try {
    pin.call({block}, true, true);
  } catch (const c10::OutOfMemoryError& error) {
    thrown = check::contains(error.what(), "LMS: the device refuses");
  }
  CHECK(thrown);
  sim_fail_clear();
  CHECK(holds(block, 1));
}

// ------------------------------------------------------------------------------------------------ ends of life

CASE(blocks_are_freed_anywhere) {
  enable(64 * mib);
  at::Tensor in_thread = empty(4 * mib);
  fill(in_thread, 1);
  std::thread([&in_thread] { in_thread.reset(); }).join();
  CHECK_EQ(statistic("allocated_bytes.current"), 0);

  at::Tensor from_thread;
  std::thread([&from_thread] { from_thread = empty(4 * mib); }).join();  // a thread that never chose a device
  CHECK(paged(from_thread));

  const at::Tensor in_child = empty(4 * mib);
  fill(in_child, 2);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    const_cast<at::Tensor&>(in_child).reset();
    from_thread.reset();
    std::exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(holds(in_child, 2));

  static at::Tensor at_exit = empty(4 * mib);
  at::Tensor after_disable = empty(4 * mib);
  fill(after_disable, 3);
  disable();
  CHECK(holds(after_disable, 3));
  const uint64_t before = sim_used_bytes(0);
  after_disable.reset();
  CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
  CHECK(sim_used_bytes(0) <= before);
}

// Operations are not observed once LMS is disabled, and still the block's memory is not given away under a kernel.
CASE(blocks_freed_after_disable_wait_for_their_work) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    enable(64 * mib);
    sim_seed(seed);
    const CUDAStream side = c10::cuda::getStreamFromPool();
    const HostBytes host(4 * mib);
    at::Tensor block = empty(4 * mib);
    disable();
    {
      const CUDAStreamGuard guard(side);
      fill(block, 5);
      download(block, host);
    }
    block.reset();
    enable(64 * mib);
    const at::Tensor next = empty(4 * mib);
    fill(next, 6);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK(host.all(5));
    disable();
  }
}

// ------------------------------------------------------------------------------------------------ several devices

CASE(several_devices) {
  enable(24 * mib, mib, false, 0);
  enable(24 * mib, mib, false, 1);
  CHECK_EQ(c10::cuda::current_device(), 0);
  std::vector<at::Tensor> blocks;
  for (int i = 0; i < 16; ++i) {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(i % 2));
    blocks.push_back(empty(4 * mib));
    CHECK(paged(blocks.back(), i % 2));
    fill(blocks.back(), i);
  }
  CHECK(statistic("out.blocks", 0) > 0);
  CHECK(statistic("out.blocks", 1) > 0);
  for (int i = 0; i < 16; ++i) {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(i % 2));
    CHECK(holds(blocks[static_cast<size_t>(i)], i));
  }
  fill(blocks[14], 14);  // resident and writable now, as the other one is readable
  const uint64_t from = reinterpret_cast<uint64_t>(address(blocks[15]));
  CHECK(sim_accessible(0, from, 4 * mib, 1) != 0);  // collectives between them ask nobody
  CHECK_EQ(allocator()->memcpyAsync(address(blocks[14]), 0, address(blocks[15]), 1, 4 * mib, stream_now(), false),
           cudaSuccess);
  CHECK(holds(blocks[14], 15));
  disable(0);
  CHECK(paged(blocks[1], 1));
  const c10::cuda::CUDAGuard guard(1);
  const at::Tensor more = empty(4 * mib);
  CHECK(paged(more, 1));
  disable(1);
}

CASE(a_device_without_lms_uses_blocks_when_it_says_so) {
  enable(24 * mib, mib, false, 1);
  const c10::cuda::CUDAGuard guard(1);
  const at::Tensor block = empty(4 * mib);
  CHECK(paged(block, 1));
  const uint64_t from = reinterpret_cast<uint64_t>(address(block));
  CHECK(sim_accessible(0, from, 4 * mib, 1) == 0);
  allocator()->enablePeerAccess(0, 1);
  CHECK(sim_accessible(0, from, 4 * mib, 1) != 0);
  disable(1);
}

CASE(collectives_reach_every_device) {
  enable(24 * mib, mib, false, 1);
  CHECK_EQ(lms_torch_cuda_share_all(), LMS_OK);
  const c10::cuda::CUDAGuard guard(1);
  const at::Tensor block = empty(4 * mib);
  CHECK(sim_accessible(0, reinterpret_cast<uint64_t>(address(block)), 4 * mib, 1) != 0);
  disable(1);
}

CASE(uses_by_other_devices_are_waited_for) {
  enable(64 * mib);
  CUDAStream foreign = [] {
    const c10::cuda::CUDAGuard guard(1);
    return c10::cuda::getStreamFromPool(false, 1);
  }();
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    sim_seed(seed);
    const HostBytes host(4 * mib);
    at::Tensor block = empty(4 * mib);
    fill(block, 5);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    {
      const c10::cuda::CUDAGuard guard(1);
      CHECK_EQ(cudaMemcpyAsync(reinterpret_cast<void*>(host.address()), address(block), 4 * mib, cudaMemcpyDefault,
                               foreign.stream()),
               cudaSuccess);
    }
    allocator()->recordStream(block.storage().data_ptr(), foreign);
    CHECK_EQ(reclaim_all(), 0);
    block.reset();
    const at::Tensor next = empty(4 * mib);
    fill(next, 6);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK(host.all(5));
  }
}

// ------------------------------------------------------------------------------------------------ several processes

CASE(blocks_are_shared_with_other_processes) {
  // LMS_TEST_HANDLE: this is the other process.
  if (const char* handle = std::getenv("LMS_TEST_HANDLE")) {
    enable(64 * mib);
    const std::shared_ptr<void> memory = allocator()->getIpcDevPtr(handle);
    CHECK(allocator()->getIpcDevPtr(handle) == memory);
    const HostBytes host(4 * mib);
    CHECK_EQ(cudaMemcpy(reinterpret_cast<void*>(host.address()), static_cast<char*>(memory.get()), 4 * mib,
                        cudaMemcpyDeviceToHost),
             cudaSuccess);
    CHECK(host.all(1));
    CHECK_EQ(cudaMemset(memory.get(), 2, 4 * mib), cudaSuccess);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return;
  }
  enable(64 * mib);
  const at::Tensor block = empty(4 * mib);
  fill(block, 1);
  reclaim_all();
  const auto shared = allocator()->shareIpcHandle(address(block) + 512);
  CHECK_EQ(shared.offset, 512);
  CHECK_EQ(reclaim_all(), 0);
  CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    setenv("LMS_TEST_HANDLE", shared.handle.c_str(), 1);
    execl("/proc/self/exe", "glue_units", "blocks_are_shared_with_other_processes", nullptr);
    std::_Exit(1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(holds(block, 2));
}

// The CUDA glue where the allocator is a single object and free functions: what it takes over, what it leaves, and that
// both are put back. On the real libc10_cuda.so; the program announces its operations itself.
#include <ATen/LmsResidentBlock.h>
#include <ATen/cuda/LmsCuda.h>
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

// The framework's logging has checks of the same names.
#undef CHECK
#undef CHECK_EQ
#include "check.h"
#include "observer.h"
#include "release.h"
#include "sim.h"

namespace {

namespace functions = c10::cuda::CUDACachingAllocator;
using c10::cuda::CUDAStream;
using c10::cuda::CUDAStreamGuard;
using check::mib;

constexpr int devices = 2;

c10::Allocator* allocator() { return functions::get(); }

const void* table() { return *reinterpret_cast<const void**>(allocator()); }

void enable(uint64_t limit, uint64_t min_size = mib, bool strict = false, int index = 0) {
  release::start(devices);
  const lms_options options = check::options(limit, "lru", nullptr, strict, 4096 * mib);
  CHECK_EQ(lms_torch_cuda_enable(index, &options, min_size), LMS_OK);
}

void disable(int index = 0) { CHECK_EQ(lms_torch_cuda_disable(index), LMS_OK); }

lms_pager* pager(int index = 0) { return lms_torch_cuda_pager(index); }

uint64_t statistic(const char* name, int index = 0) { return check::statistic(pager(index), name); }

bool paged(const void* address, int index = 0) { return lms_owns(pager(index), address) != 0; }
bool paged(const c10::DataPtr& data, int index = 0) { return paged(data.get(), index); }

cudaStream_t stream_now() { return c10::cuda::getCurrentCUDAStream().stream(); }

lms::StreamId number_now(const void* address) {
  const lms_torch::Device* owner = lms_torch::device_of(address);
  bool captured = false;
  return owner != nullptr ? owner->current_stream(*owner, &captured) : lms::host_stream;
}

void fill(const c10::DataPtr& data, uint64_t bytes, int value) {
  const lms_torch::ResidentBlock pin(data.get(), /*write=*/true, number_now(data.get()));
  CHECK_EQ(cudaMemsetAsync(data.get(), value, bytes, stream_now()), cudaSuccess);
}

// Pinned host memory.
class HostBytes {
 public:
  explicit HostBytes(uint64_t bytes) : bytes_(bytes) {
    CHECK_EQ(cudaHostAlloc(reinterpret_cast<void**>(&data_), bytes, 0), cudaSuccess);
  }
  ~HostBytes() { cudaFreeHost(data_); }
  HostBytes(const HostBytes&) = delete;
  HostBytes& operator=(const HostBytes&) = delete;
  uint8_t* data() const { return data_; }
  bool all(int value) const {
    return std::all_of(data_, data_ + bytes_, [value](uint8_t byte) { return byte == value; });
  }

 private:
  uint8_t* data_ = nullptr;
  uint64_t bytes_;
};

bool holds(const c10::DataPtr& data, uint64_t bytes, int value) {
  const HostBytes host(bytes);
  {
    const lms_torch::ResidentBlock pin(data.get(), /*write=*/false, number_now(data.get()));
    CHECK_EQ(cudaMemcpyAsync(host.data(), data.get(), bytes, cudaMemcpyDeviceToHost, stream_now()), cudaSuccess);
  }
  CHECK_EQ(cudaStreamSynchronize(stream_now()), cudaSuccess);
  return host.all(value);
}

std::string failure_of(void (*run)()) {
  try {
    run();
  } catch (const std::exception& error) {
    return error.what();
  }
  CHECK_FAIL("nothing was thrown");
}

int64_t reserved() { return functions::getDeviceStats(0).reserved_bytes[0].current; }

// Uses a block on another stream than its own, says so, and frees it; true if no other block got its memory too early.
template <typename Record>
bool survives_its_use(uint64_t seed, Record record) {
  sim_seed(seed);
  const CUDAStream side = c10::cuda::getStreamFromPool();
  const HostBytes host(4 * mib);
  {
    const c10::DataPtr block = allocator()->allocate(4 * mib);
    fill(block, 4 * mib, 5);
    cudaEvent_t filled = nullptr;
    CHECK_EQ(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming), cudaSuccess);
    CHECK_EQ(cudaEventRecord(filled, stream_now()), cudaSuccess);
    CHECK_EQ(cudaStreamWaitEvent(side.stream(), filled, 0), cudaSuccess);
    CHECK_EQ(cudaMemcpyAsync(host.data(), block.get(), 4 * mib, cudaMemcpyDeviceToHost, side.stream()), cudaSuccess);
    record(block, side);
    CHECK_EQ(cudaEventDestroy(filled), cudaSuccess);
  }
  const c10::DataPtr next = allocator()->allocate(4 * mib);
  fill(next, 4 * mib, 6);
  CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return host.all(5);
}

}  // namespace

// ------------------------------------------------------------------------------------------------ what is taken over

CASE(takes_large_requests_of_enabled_devices) {
  release::start(devices);
  c10::Allocator* object = allocator();
  const void* stock = table();
  const c10::DataPtr before = allocator()->allocate(4 * mib);
  enable(64 * mib, 2 * mib);
  CHECK(allocator() == object);
  CHECK(table() != stock);
  CHECK(!paged(before));
  CHECK(paged(allocator()->allocate(2 * mib)));
  CHECK(!paged(allocator()->allocate(2 * mib - 1)));
  CHECK(allocator()->allocate(0).get() == nullptr);
  {
    const c10::cuda::CUDAGuard other(1);
    CHECK(!paged(allocator()->allocate(4 * mib)));
  }
  CHECK_EQ(lms_torch_cuda_enabled(0), 1);
  CHECK_EQ(lms_torch_cuda_enabled(1), 0);
  const c10::DataPtr block = allocator()->allocate(4 * mib);
  fill(block, 4 * mib, 7);
  check::reclaim(pager());
  disable();
  CHECK(table() == stock);
  CHECK(paged(block));
  CHECK(holds(block, 4 * mib, 7));
  CHECK(!paged(allocator()->allocate(4 * mib)));
}

CASE(is_enabled_at_first_use) {
  release::start(devices);
  const void* stock = table();
  const lms_options options = check::options(UINT64_MAX, "lru", nullptr, false, 4096 * mib);
  CHECK_EQ(lms_torch_cuda_enable(-1, &options, 2 * mib), LMS_OK);
  const c10::DataPtr small = allocator()->allocate(mib);
  CHECK_EQ(lms_torch_cuda_enabled(0), 0);
  const uint64_t used = sim_used_bytes(0);
  CHECK(paged(allocator()->allocate(4 * mib)));
  CHECK_EQ(lms_torch_cuda_enabled(0), 1);
  CHECK_EQ(lms_torch_cuda_enabled(1), 0);
  CHECK_EQ(lms_limit(pager()), (128 * mib - used) / 100 * 95);
  disable();
  CHECK(table() != stock);
  disable(-1);
  CHECK(table() == stock);
}

CASE(refuses_an_object_that_is_not_the_stock_allocator) {
  struct Foreign : c10::Allocator {
    c10::DataPtr allocate(size_t /*bytes*/) const override { return {}; }
  };
  static const Foreign foreign;
  release::start(devices);
  const void** object = reinterpret_cast<const void**>(allocator());
  const void* stock = *object;
  *object = *reinterpret_cast<const void* const*>(&foreign);
  const lms_options options = check::options(64 * mib, "lru", nullptr, false, 4096 * mib);
  CHECK_EQ(lms_torch_cuda_enable(0, &options, mib), LMS_UNSUPPORTED);
  CHECK(check::contains(lms_last_error(), "not PyTorch's own"));
  *object = stock;
  CHECK_EQ(lms_torch_cuda_enable(0, &options, mib), LMS_OK);
  disable();
}

CASE(raw_memory_of_the_object_is_freed_by_it) {
  enable(64 * mib);
  void* block = allocator()->raw_allocate(4 * mib);
  CHECK(paged(block));
  void* other = allocator()->raw_allocate(mib / 2);
  CHECK(!paged(other));
  allocator()->raw_deallocate(block);
  allocator()->raw_deallocate(other);
  CHECK_EQ(statistic("allocated_bytes.current"), 0);
  functions::raw_delete(allocator()->raw_allocate(4 * mib));  // which the stock function would not know
  CHECK_EQ(statistic("allocated_bytes.current"), 0);
}

CASE(addresses_are_served_after_disable) {
  enable(64 * mib);
  void* block = allocator()->raw_allocate(4 * mib);
  c10::DataPtr data = allocator()->allocate(4 * mib);
  disable();
  release::record_stream(data, c10::cuda::getStreamFromPool());
  functions::raw_delete(block);
  data.clear();
  CHECK_EQ(statistic("allocated_bytes.current"), 0);
}

// ------------------------------------------------------------------------------------------------ functions

CASE(record_stream_keeps_the_block_from_others) {
  enable(64 * mib);
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    CHECK(survives_its_use(seed, release::record_stream));
  }
}

CASE(record_stream_serves_stock_memory_as_before) {
  enable(64 * mib, 8 * mib);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CHECK(survives_its_use(seed, release::record_stream));
  }
}

CASE(a_library_that_is_loaded_later_is_served) {
  enable(64 * mib);
  for (uint64_t round = 0; round < 3; ++round) {  // most likely at the same place again
    void* library = dlopen(std::getenv("LMS_TEST_LIBRARY"), RTLD_LAZY);
    CHECK(library != nullptr);
    using Record = void (*)(const c10::DataPtr&, CUDAStream);
    const auto record = reinterpret_cast<Record>(dlsym(library, "late_record_stream"));
    CHECK(record != nullptr);
    for (uint64_t seed = 1; seed <= 30; ++seed) {
      CHECK(survives_its_use(100 * round + seed, record));
    }
    CHECK_EQ(dlclose(library), 0);
  }
}

CASE(blocks_are_not_shared_with_other_processes) {
  enable(64 * mib);
  const std::string error = failure_of([] {
    const c10::DataPtr block = allocator()->allocate(4 * mib);
    size_t bytes = 0;
    functions::getBaseAllocation(block.get(), &bytes);
  });
  CHECK(check::contains(error.c_str(), "cannot share a CUDA tensor that LMS manages"));
  const c10::DataPtr small = allocator()->allocate(mib / 2);
  size_t bytes = 0;
  CHECK(functions::getBaseAllocation(small.get(), &bytes) == small.get());
  CHECK_EQ(bytes, 2 * mib);
}

CASE(statistics_count_both) {
  enable(64 * mib);
  const c10::DataPtr small = allocator()->allocate(mib / 2);
  c10::DataPtr block = allocator()->allocate(4 * mib);
  auto stats = functions::getDeviceStats(0);
  for (const size_t row : {0, 2}) {
    CHECK_EQ(stats.allocated_bytes[row].current, 4 * mib + (row == 0 ? mib / 2 : 0));
    CHECK_EQ(stats.reserved_bytes[row].current, 4 * mib + (row == 0 ? 2 * mib : 0));
    CHECK_EQ(stats.allocation[row].current, row == 0 ? 2 : 1);
  }
  const auto segments = functions::snapshot();
  const auto segment = std::find_if(segments.begin(), segments.end(), [&block](const functions::SegmentInfo& one) {
    return one.address == reinterpret_cast<int64_t>(block.get());
  });
  CHECK(segment != segments.end());
  CHECK_EQ(segment->total_size, 4 * mib);
  CHECK_EQ(segment->blocks.size(), 1);
  fill(block, 4 * mib, 1);
  CHECK_EQ(check::reclaim(pager()), 4 * mib);
  stats = functions::getDeviceStats(0);
  CHECK_EQ(stats.allocated_bytes[0].current, mib / 2);
  CHECK(stats.allocated_bytes[0].peak >= static_cast<int64_t>(4 * mib));
  functions::resetPeakStats(0);
  CHECK_EQ(functions::getDeviceStats(0).allocated_bytes[0].peak, mib / 2);
  block.clear();
  disable();
  CHECK_EQ(functions::getDeviceStats(0).allocation[0].current, 1);
}

CASE(empty_cache_gives_cached_pages_back) {
  enable(64 * mib);
  fill(allocator()->allocate(8 * mib), 8 * mib, 1);
  CHECK(statistic("device_bytes.current") >= 8 * mib);
  CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
  functions::emptyCache();
  CHECK_EQ(statistic("device_bytes.current"), 0);
  CHECK_EQ(sim_used_bytes(0), 0);
}

// ------------------------------------------------------------------------------------------------ memory for both

CASE(stock_allocator_gets_memory_back) {
  enable(112 * mib, 8 * mib);
  std::vector<c10::DataPtr> blocks;
  for (int i = 0; i < 13; ++i) {
    blocks.push_back(allocator()->allocate(8 * mib));
    fill(blocks.back(), 8 * mib, i);
  }
  CHECK(sim_used_bytes(0) > 100 * mib);
  std::vector<c10::DataPtr> others;
  for (int i = 0; i < 8; ++i) {
    others.push_back(allocator()->allocate(7 * mib));
    CHECK(!paged(others.back()));
    fill(others.back(), 7 * mib, 100 + i);
  }
  void* raw = functions::raw_alloc(30 * mib);
  CHECK(!paged(raw));
  functions::raw_delete(raw);
  for (int i = 0; i < 8; ++i) {
    CHECK(holds(others[static_cast<size_t>(i)], 7 * mib, 100 + i));
  }
  others.clear();
  functions::emptyCache();
  for (int i = 0; i < 13; ++i) {
    CHECK(holds(blocks[static_cast<size_t>(i)], 8 * mib, i));
  }
}

CASE(stock_error_stays_when_nothing_helps) {
  enable(64 * mib, 8 * mib);
  CHECK(failure_of([] { functions::raw_alloc(400 * mib); }).find("CUDA out of memory") == 0);
  disable();
  CHECK(failure_of([] { functions::raw_alloc(400 * mib); }).find("CUDA out of memory") == 0);
}

CASE(nothing_leaves_while_lms_is_off) {
  enable(112 * mib, 8 * mib);
  std::vector<c10::DataPtr> blocks;
  for (int i = 0; i < 10; ++i) {
    blocks.push_back(allocator()->allocate(8 * mib));
    fill(blocks.back(), 8 * mib, i);
  }
  disable();
  CHECK(failure_of([] { functions::raw_alloc(60 * mib); }).find("CUDA out of memory") == 0);
  CHECK_EQ(statistic("away_bytes.current"), 0);
}

CASE(pager_gets_the_cache_of_the_stock_allocator) {
  enable(112 * mib, 24 * mib);
  {
    std::vector<c10::DataPtr> others;
    for (int i = 0; i < 5; ++i) {
      others.push_back(allocator()->allocate(20 * mib));
      CHECK(!paged(others.back()));
    }
  }
  CHECK(reserved() >= static_cast<int64_t>(100 * mib));
  const c10::DataPtr block = allocator()->allocate(96 * mib);
  CHECK(paged(block));
  fill(block, 96 * mib, 7);
  CHECK(holds(block, 96 * mib, 7));
  CHECK_EQ(reserved(), 96 * mib);
}

CASE(strict_limit_is_an_out_of_memory_error) {
  enable(8 * mib, mib, /*strict=*/true);
  const c10::DataPtr first = allocator()->allocate(6 * mib);
  const lms_torch::ResidentBlock pin(first.get(), /*write=*/true, number_now(first.get()));
  try {
    allocator()->allocate(4 * mib);
    CHECK_FAIL("nothing was thrown");
  } catch (const c10::Error& error) {
    CHECK(lms_torch::is_no_memory(error));
  }
}

// ------------------------------------------------------------------------------------------------ several devices

CASE(several_devices_use_each_others_blocks) {
  enable(24 * mib, mib, false, 0);
  enable(24 * mib, mib, false, 1);
  std::vector<c10::DataPtr> blocks;
  for (int i = 0; i < 16; ++i) {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(i % 2));
    blocks.push_back(allocator()->allocate(4 * mib));
    CHECK(paged(blocks.back(), i % 2));
    fill(blocks.back(), 4 * mib, i);
  }
  CHECK(statistic("out.blocks", 0) > 0);
  CHECK(statistic("out.blocks", 1) > 0);
  for (int i = 0; i < 16; ++i) {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(i % 2));
    CHECK(holds(blocks[static_cast<size_t>(i)], 4 * mib, i));
  }
  const uint64_t from = reinterpret_cast<uint64_t>(blocks[15].get());
  CHECK(sim_accessible(0, from, 4 * mib, 1) != 0);
  disable(0);
  const c10::cuda::CUDAGuard guard(1);
  CHECK(paged(allocator()->allocate(4 * mib), 1));
  disable(1);
}

// ------------------------------------------------------------------------------------------------ newer releases

#if __has_include(<c10/cuda/CUDAGraphsC10Utils.h>)
CASE(memory_fraction_bounds_the_limit) {
  enable(100 * mib);
  const c10::DataPtr small = allocator()->allocate(mib / 2);  // a segment of 2 MiB
  functions::setMemoryFraction(0.5, 0);
  CHECK_EQ(lms_limit(pager()), 62 * mib);
  functions::setMemoryFraction(1, 0);
}

CASE(captured_blocks_stay) {
  release::start(devices);
  const CUDAStream stream = c10::cuda::getStreamFromPool();
  const CUDAStreamGuard guard(stream);
  allocator()->allocate(4 * mib);  // cached from now on: a build for CUDA 10 cannot get memory while it captures
  enable(64 * mib);
  const cudaStream_t handle = stream.stream();
  const c10::DataPtr used = allocator()->allocate(4 * mib);
  fill(used, 4 * mib, 1);
  CHECK_EQ(cudaStreamSynchronize(handle), cudaSuccess);
  CHECK_EQ(cudaStreamBeginCapture(handle, cudaStreamCaptureModeGlobal), cudaSuccess);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long graph_id = 0;
  CHECK_EQ(cudaStreamGetCaptureInfo(handle, &status, &graph_id), cudaSuccess);
  functions::notifyCaptureBegin(0, graph_id, {17, 0});
  bool captured = false;
  const lms_torch::Device* owner = lms_torch::device_of(used.get());
  CHECK_EQ(owner->current_stream(*owner, &captured), lms::host_stream);
  CHECK(captured);
  const c10::DataPtr pooled = allocator()->allocate(4 * mib);
  CHECK(!paged(pooled));
  release::record_stream(used, stream);
  functions::notifyCaptureEnd(0, graph_id);
  cudaGraph_t graph = nullptr;
  CHECK_EQ(cudaStreamEndCapture(handle, &graph), cudaSuccess);
  CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
  CHECK(paged(allocator()->allocate(4 * mib)));
  CHECK_EQ(check::reclaim(pager()), 0);  // what was recorded during the capture stays
}
#endif

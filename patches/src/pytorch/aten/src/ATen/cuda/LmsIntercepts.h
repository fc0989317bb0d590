// What LMS does instead of the stock allocator: large requests are the pager's, and whatever takes an address asks
// whose it is. The names are those of the stock allocator's methods, or functions.
#ifndef ATEN_CUDA_LMS_INTERCEPTS_H
#define ATEN_CUDA_LMS_INTERCEPTS_H

#include <ATen/LmsResidentBlock.h>
#include <ATen/cuda/LmsCudaBlocks.h>
#include <ATen/cuda/LmsCudaDevices.h>
#include <ATen/cuda/LmsStock.h>
#include <ATen/lms/pager.h>
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

namespace lms_cuda {

// Whether a private pool was ever begun while LMS was in front.
inline std::atomic<bool>& pools_used() {
  static std::atomic<bool> used{false};
  return used;
}

// Makes a request to the stock allocator. When the device has too little memory the pager gives some back: what is
// needed, and if that does not do, all that can leave.
template <typename Request>
auto with_memory(uint64_t bytes, Request request) -> decltype(request()) {
  constexpr uint64_t segment = 20 << 20;  // what the stock allocator takes for small requests
  for (const uint64_t wanted : {std::max(bytes, segment), UINT64_MAX}) {
    try {
      return request();
    } catch (const c10::Error& error) {
      if (!stock::is_out_of_memory(error)) {
        throw;
      }
      CudaDevice* device = device_at(c10::cuda::current_device());
      lms::Pager* pager = device != nullptr ? device->pager() : nullptr;
      if (pager == nullptr || bytes > pager->backend().capacity() || !pager->reclaim_for_others(wanted).ok()) {
        throw;
      }
    }
  }
  return request();
}

template <typename Stat>
void add_to(Stat* stat, uint64_t current, uint64_t peak) {
  stat->current += static_cast<int64_t>(current);
  stat->peak += static_cast<int64_t>(peak);
  stat->allocated += static_cast<int64_t>(current);
}

// Not every release counts what was asked for, before it is rounded up.
template <typename Stats>
auto add_requested(Stats* stats, size_t row, const lms::Statistics& ours, int /*preferred*/)
    -> decltype(stats->requested_bytes, void()) {
  add_to(&stats->requested_bytes[row], ours.resident_bytes, ours.resident_bytes_peak);
}
template <typename Stats>
void add_requested(Stats* /*stats*/, size_t /*row*/, const lms::Statistics& /*ours*/, long /*otherwise*/) {}

// Adds the pager's blocks to the rows for all memory and for large requests.
template <typename Stats>
void add_statistics(Stats* stats, const lms::Statistics& ours) {
  constexpr std::array<size_t, 2> rows = {0, 2};
  for (const size_t row : rows) {
    for (auto* bytes : {&stats->allocated_bytes, &stats->active_bytes}) {
      add_to(&(*bytes)[row], ours.resident_bytes, ours.resident_bytes_peak);
    }
    add_requested(stats, row, ours, 0);
    add_to(&stats->reserved_bytes[row], ours.device_bytes, ours.device_bytes_peak);
    for (auto* count : {&stats->allocation, &stats->active}) {
      const uint64_t resident = ours.allocated_blocks - ours.away_blocks;
      add_to(&(*count)[row], resident, resident);
    }
  }
}

template <typename Info>
auto set_requested_size(Info* info, size_t bytes, int /*preferred*/) -> decltype(info->requested_size, void()) {
  info->requested_size = bytes;
}
template <typename Info>
void set_requested_size(Info* /*info*/, size_t /*bytes*/, long /*otherwise*/) {}

// Appends the pager's blocks that occupy device memory to a snapshot, each as a segment that one tensor fills.
template <typename Segment>
void add_segments(std::vector<Segment>* segments, int device, lms::Pager* pager) {
  for (const lms::ResidentRange& range : pager->resident_ranges()) {
    segments->emplace_back();
    Segment& segment = segments->back();
    segment.device = static_cast<decltype(segment.device)>(device);
    segment.address = static_cast<decltype(segment.address)>(reinterpret_cast<uintptr_t>(range.address));
    segment.total_size = segment.allocated_size = segment.active_size = range.bytes;
    set_requested_size(&segment, range.bytes, 0);
    segment.is_large = true;
    segment.blocks.emplace_back();
    auto& block = segment.blocks.back();
    block.size = range.bytes;
    set_requested_size(&block, range.bytes, 0);
    block.allocated = block.active = true;
  }
}

// What a snapshot holds besides segments differs; in the oldest releases that have one it is nothing.
template <typename Snapshot>
auto segments_of(Snapshot* snapshot, int /*preferred*/) -> decltype(&snapshot->segments) {
  return &snapshot->segments;
}
template <typename Snapshot>
Snapshot* segments_of(Snapshot* snapshot, long /*otherwise*/) {
  return snapshot;
}

// The methods that the stock allocator does not merely serve itself. A template, so that what a release lacks is not
// compiled. The names are c10's. NOLINTBEGIN(readability-identifier-naming)
template <typename Stock>
class Intercepts {
 public:
  explicit Intercepts(Stock* methods) : stock_(methods) {}

  c10::DataPtr allocate(size_t bytes) const {
    const c10::DeviceIndex index = c10::cuda::current_device();
    CudaDevice* device = device_at(index);
    constexpr size_t absurd = size_t{1} << 60;  // the stock allocator has an error of its own for these
    if (bytes >= first_use_size()) {
      enable_at_first_use(index);
    }
    if (device != nullptr && device->takes(bytes) && bytes < absurd) {
      const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(index);
      if (!device->in_private_pool(stream.stream())) {
        return allocate_block(device, bytes, stream);
      }
    }
    return with_memory(bytes, [&] { return stock_->allocate(bytes); });
  }

  void* raw_alloc(size_t bytes) const {
    return with_memory(bytes, [&] { return stock_->raw_alloc(bytes); });
  }

  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) const {
    return with_memory(bytes, [&] { return stock_->raw_alloc_with_stream(bytes, stream); });
  }

  void raw_delete(void* address) const {
    if (owner_of(address) != nullptr) {
      release_block(address);
    } else {
      stock_->raw_delete(address);
    }
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const {
    CudaDevice* device = owner_of(to);
    device = device != nullptr ? device : owner_of(from);
    if (device == nullptr) {
      stock_->copy_data(to, from, bytes);
      return;
    }
    // On the stream that the memory was made for, and that is going to use the copy.
    const auto index = static_cast<c10::DeviceIndex>(index_of(*device));
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(index);
    const lms::StreamId number = device->number(stream);
    const lms_torch::ResidentBlock source(from, /*write=*/false, number);
    const lms_torch::ResidentBlock target(to, /*write=*/true, number);
    const c10::cuda::CUDAGuard guard(index);
    C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.stream()));
  }

  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) const {
    if (CudaDevice* device = owner_of(data.get())) {
      record_use(device, data.get(), stream);
    } else {
      stock_->recordStream(data, stream);
    }
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) const {
    recordStream(data, c10::cuda::CUDAStream(stream));
  }
  void recordStream(void* address, c10::cuda::CUDAStream stream) const {
    if (CudaDevice* device = owner_of(address)) {
      record_use(device, address, stream);
    } else {
      stock_->recordStream(address, stream);
    }
  }

  // The release has an IPC interface of its own if `Shares`; else the caller is going to give the address to CUDA's,
  // which knows no memory like ours.
  template <bool Shares>
  void* base_allocation(void* address, size_t* bytes) const {
    CudaDevice* device = owner_of(address);
    if (device == nullptr) {
      return stock_->getBaseAllocation(address, bytes);
    }
    if (!Shares) {
      fail(LMS_UNSUPPORTED,
           "this release of PyTorch cannot share a CUDA tensor that LMS manages with another process; share one that "
           "was created while LMS was disabled, or that is smaller than min_size");
    }
    uint64_t size = 0;
    void* begin = block_of(device, address, &size);
    if (bytes != nullptr) {
      *bytes = size;
    }
    return begin;
  }

  template <typename... Pool>
  void emptyCache(const Pool&... pool) const {
    stock_->emptyCache(pool...);
    if (is_one_pool(pool...)) {
      return;
    }
    for (CudaDevice& device : devices()) {
      if (lms::Pager* pager = device.pager()) {
        pager->backend().trim(UINT64_MAX);
        static_cast<void>(pager->reclaim_for_others(pager->statistics().cached_bytes));  // gives what it can
        pager->trim_store();
      }
    }
  }

  template <typename... Options>
  auto snapshot(const Options&... options) const {
    auto all = stock_->snapshot(options...);
    if (!is_one_pool(options...)) {
      for (const CudaDevice& device : devices()) {
        if (lms::Pager* pager = device.pager()) {
          add_segments(segments_of(&all, 0), index_of(device), pager);
        }
      }
    }
    return all;
  }

  template <typename Index>
  void setMemoryFraction(double fraction, Index device) const {
    stock_->setMemoryFraction(fraction, device);
    keep_to_fraction(device, fraction);
  }

  template <typename Index>
  auto getDeviceStats(Index index) const {
    auto stats = stock_->getDeviceStats(index);
    add_statistics(&stats, counted(index));
    return stats;
  }

  template <typename Index>
  void resetPeakStats(Index index) const {
    stock_->resetPeakStats(index);
    reset_peaks(index);
  }

  // ---- statistics before there was getDeviceStats

  uint64_t currentMemoryAllocated(int index) const {
    return stock_->currentMemoryAllocated(index) + counted(index).resident_bytes;
  }
  uint64_t maxMemoryAllocated(int index) const {
    return stock_->maxMemoryAllocated(index) + counted(index).resident_bytes_peak;
  }
  void resetMaxMemoryAllocated(int index) const {
    stock_->resetMaxMemoryAllocated(index);
    reset_peaks(index);
  }
  uint64_t currentMemoryCached(int index) const {
    return stock_->currentMemoryCached(index) + counted(index).device_bytes;
  }
  uint64_t maxMemoryCached(int index) const {
    return stock_->maxMemoryCached(index) + counted(index).device_bytes_peak;
  }
  void resetMaxMemoryCached(int index) const {
    stock_->resetMaxMemoryCached(index);
    reset_peaks(index);
  }

  // ---- graph capture, by the release: pools by filter, by stream, and by graph

  template <typename Index>
  void beginAllocateToPool(Index index, PoolId id, const StreamFilter& filter) const {
    begin_pool(index, id, filter, [&] { stock_->beginAllocateToPool(index, id, filter); });
  }
  template <typename Index>
  void endAllocateToPool(Index index, PoolId id) const {
    stock_->endAllocateToPool(index, id);
    end_pool(index, id);
  }

  template <typename Index>
  void beginAllocateStreamToPool(Index index, cudaStream_t stream, PoolId id) const {
    begin_pool(
        index, of_stream(stream), [stream](cudaStream_t other) { return other == stream; },
        [&] { stock_->beginAllocateStreamToPool(index, stream, id); });
  }
  template <typename Index>
  void endAllocateStreamToPool(Index index, cudaStream_t stream) const {
    stock_->endAllocateStreamToPool(index, stream);
    end_pool(index, of_stream(stream));
  }

  template <typename Index, typename Graph>
  void notifyCaptureBegin(Index index, Graph graph, PoolId id) const {
    begin_pool(index, PoolId(graph, UINT64_MAX), stock::is_capturing,
               [&] { stock_->notifyCaptureBegin(index, graph, id); });
  }
  template <typename Index, typename Graph>
  void notifyCaptureEnded(Index index, Graph graph) const {
    stock_->notifyCaptureEnded(index, graph);
    end_pool(index, PoolId(graph, UINT64_MAX));
  }
  template <typename Index, typename Graph>
  void notifyCaptureEnd(Index index, Graph graph) const {
    stock_->notifyCaptureEnd(index, graph);
    end_pool(index, PoolId(graph, UINT64_MAX));
  }

  // ---- several devices

  template <typename Index>
  void enablePeerAccess(Index from, Index to) const {
    stock_->enablePeerAccess(from, to);
    add_peer(from, to);
  }

  // Asked when a device has just been given access to another one's memory.
  bool needsPoolSpecificPeerAccess() const {
    const c10::DeviceIndex count = c10::cuda::device_count();
    for (int from = 0; from < count; ++from) {
      for (int to = 0; to < count; ++to) {
        int possible = 0;
        if (from != to && cudaDeviceCanAccessPeer(&possible, from, to) == cudaSuccess && possible != 0) {
          add_peer(from, to);
        }
      }
    }
    return stock_->needsPoolSpecificPeerAccess();
  }

  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream,
                          bool p2p) const {
    if (to_device != from_device && (owner_of(to) != nullptr || owner_of(from) != nullptr)) {
      return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
    }
    return stock_->memcpyAsync(to, to_device, from, from_device, bytes, stream, p2p);
  }

 protected:
  Stock* stock_methods() const { return stock_; }

 private:
  // Whether the first of the arguments, where there are any, says that only one private pool is meant.
  static bool is_one_pool() { return false; }
  template <typename... Others>
  static bool is_one_pool(const PoolId& pool, const Others&... /*others*/) {
    return pool != PoolId{};
  }

  // All is zero before the device has a pager.
  static lms::Statistics counted(int index) {
    const CudaDevice* device = device_at(index);
    lms::Pager* pager = device != nullptr ? device->pager() : nullptr;
    return pager != nullptr ? pager->statistics() : lms::Statistics{};
  }
  static void reset_peaks(int index) {
    const CudaDevice* device = device_at(index);
    if (device != nullptr && device->pager() != nullptr) {
      device->pager()->reset_peaks();
    }
  }

  static PoolId of_stream(cudaStream_t stream) { return PoolId(reinterpret_cast<uintptr_t>(stream), UINT64_MAX); }

  template <typename Begin>
  static void begin_pool(int index, PoolId id, StreamFilter filter, Begin begin) {
    pools_used().store(true);
    CudaDevice* device = device_at(index);
    if (device != nullptr) {
      device->mark_streams();
    }
    begin();
    if (device != nullptr) {
      device->begin_pool(id, std::move(filter));
    }
  }
  static void end_pool(int index, PoolId id) {
    if (CudaDevice* device = device_at(index)) {
      device->end_pool(id);
    }
  }

  Stock* stock_;
};
// NOLINTEND(readability-identifier-naming)

}  // namespace lms_cuda
#endif  // ATEN_CUDA_LMS_INTERCEPTS_H

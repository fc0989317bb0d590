// Large Model Support for CUDA tensors: an allocator in front of the stock one, which gives large requests to the pager
// of the device. LmsCuda.h has the C functions; the observer in LmsTorch.cpp keeps the tensors resident.
//
// The class of the stock allocator has other virtual methods in every release. The list at LMS_METHODS names those of
// all releases from 2.0 on, and this file takes the signatures from the release it is compiled for.
#include <ATen/LmsObserver.h>
#include <ATen/LmsOverride.h>
#include <ATen/cuda/LmsCuda.h>
#include <ATen/lms/cuda_ipc.h>
#include <ATen/lms/pager.h>
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace c10 {
struct DeviceAllocator;  // a base of the allocator's class from 2.9 on
}

namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;
using PoolId = std::pair<unsigned long long, unsigned long long>;
using StreamFilter = std::function<bool(cudaStream_t)>;

// ------------------------------------------------------------------------------------------------ devices

constexpr uint64_t no_size = UINT64_MAX;
constexpr int most_devices = 64;

class CudaDevice {
 public:
  lms::Pager* pager() const { return pager_.load(std::memory_order_acquire); }
  void set_pager(lms::Pager* pager) { pager_.store(pager, std::memory_order_release); }

  bool enabled() const { return enabled_size_.load(std::memory_order_relaxed) != no_size; }
  void enable(uint64_t min_size) {
    min_size_.store(min_size);
    enabled_size_.store(min_size);
  }
  void disable() { enabled_size_.store(no_size); }
  uint64_t min_size() const { return min_size_.load(std::memory_order_relaxed); }
  bool takes(uint64_t bytes) const { return bytes >= enabled_size_.load(std::memory_order_relaxed); }

  // The number of a stream of this device.
  lms::StreamId number(cudaStream_t stream) {
    const lms::StreamId found = pager()->backend().stream(reinterpret_cast<uintptr_t>(stream));
    const uint64_t bit = lms::stream_bit(found);
    if ((streams_.load(std::memory_order_relaxed) & bit) != bit) {
      streams_.fetch_or(bit, std::memory_order_relaxed);
    }
    return found;
  }

  // Marks every stream: during a capture nothing can be recorded.
  void mark_streams() {
    if (lms::Pager* found = pager()) {
      const uint64_t streams = streams_.load(std::memory_order_relaxed);
      for (lms::StreamId stream = 1; stream < lms::any_stream; ++stream) {
        if ((streams & lms::stream_bit(stream)) != 0) {
          found->backend().mark(stream);
        }
      }
    }
  }

  // A private pool of the stock allocator serves the streams that the filter names, from now on.
  void begin_pool(PoolId id, StreamFilter filter) {
    const std::lock_guard<std::mutex> guard(lock_);
    pools_.push_back(Pool{id, std::move(filter)});
    pool_count_.store(pools_.size(), std::memory_order_release);
    lms_torch::begin_capture();
  }
  void end_pool(PoolId id) {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto pool = std::find_if(pools_.begin(), pools_.end(), [id](const Pool& entry) { return entry.id == id; });
    if (pool != pools_.end()) {  // else it began before the decorator was there
      pools_.erase(pool);
      pool_count_.store(pools_.size(), std::memory_order_release);
      lms_torch::end_capture();
    }
  }
  bool in_private_pool(cudaStream_t stream) {
    if (pool_count_.load(std::memory_order_acquire) == 0) {
      return false;
    }
    const std::lock_guard<std::mutex> guard(lock_);
    return std::any_of(pools_.begin(), pools_.end(), [stream](const Pool& pool) { return pool.filter(stream); });
  }

 private:
  struct Pool {
    PoolId id;
    StreamFilter filter;
  };

  std::atomic<lms::Pager*> pager_{nullptr};
  std::atomic<uint64_t> enabled_size_{no_size};  // no request is that large
  std::atomic<uint64_t> min_size_{0};
  std::atomic<uint64_t> streams_{0};  // bits of the streams that were ever used
  std::atomic<size_t> pool_count_{0};
  std::mutex lock_;
  std::vector<Pool> pools_;
};

// Never destroyed: storages refer to them until the process ends.
std::array<CudaDevice, most_devices>& devices() {
  static auto& all = *new std::array<CudaDevice, most_devices>;
  return all;
}

CudaDevice* device_at(int index) {
  return index >= 0 && index < most_devices ? &devices()[static_cast<size_t>(index)] : nullptr;
}

int index_of(const CudaDevice& device) { return static_cast<int>(&device - devices().data()); }

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // the default stream cannot be asked while others are captured
    return false;
  }
  return status != cudaStreamCaptureStatusNone;
}

lms::StreamId current_stream(const lms_torch::Device& device, bool* captured) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device.index)).stream();
  if (lms_torch::capture_possible() && is_capturing(stream)) {
    *captured = true;
    return lms::host_stream;
  }
  return device_at(device.index)->number(stream);
}

// The device to one of whose blocks the address belongs, or null.
CudaDevice* owner_of(const void* address) {
  const lms_torch::Device* device = lms_torch::device_of(address);
  return device != nullptr && device->current_stream == &current_stream ? device_at(device->index) : nullptr;
}

c10::Device as_device(int index) { return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)); }

// ------------------------------------------------------------------------------------------------ stock allocator

// Set before the decorator is installed, and kept for the blocks that are freed after it was taken out.
std::atomic<CUDAAllocator*> stock_allocator{nullptr};

// Whether a private pool was ever begun through the decorator.
std::atomic<bool> pools_used{false};

CUDAAllocator* stock() { return stock_allocator.load(std::memory_order_acquire); }

int64_t stock_reserved(int device) {
  return stock()->getDeviceStats(static_cast<c10::DeviceIndex>(device)).reserved_bytes[0].current;
}

// Called by the pager when the device has no memory left.
bool empty_stock_cache(void* context) {
  const int device = index_of(*static_cast<CudaDevice*>(context));
  if (lms_torch::capture_possible() || !stock()->initialized()) {
    return false;
  }
  try {
    const int64_t before = stock_reserved(device);
    stock()->emptyCache();
    return stock_reserved(device) < before;
  } catch (const std::exception&) {
    return false;  // the pager reports that there is no memory
  }
}

// Makes a request to the stock allocator. When the device has too little memory the pager gives some back: what is
// needed, and if that does not do, all that can leave.
template <typename Request>
auto with_memory(uint64_t bytes, Request request) -> decltype(request()) {
  constexpr uint64_t segment = 20 << 20;  // what the stock allocator takes for small requests
  for (const uint64_t wanted : {std::max(bytes, segment), UINT64_MAX}) {
    try {
      return request();
    } catch (const c10::OutOfMemoryError&) {
      CudaDevice* device = device_at(c10::cuda::current_device());
      lms::Pager* pager = device != nullptr ? device->pager() : nullptr;
      if (pager == nullptr || bytes > pager->backend().capacity() || !pager->release(wanted).ok()) {
        throw;
      }
    }
  }
  return request();
}

// ------------------------------------------------------------------------------------------------ blocks

// What enables the devices that have no pager when they are first asked for much memory; LmsCuda.h.
struct FirstUse {
  lms_options options{};  // its strings are the following
  std::string store;
  std::string policy;
  uint64_t min_size = 0;
};
FirstUse& first_use() {  // guarded by switching()
  static FirstUse& all = *new FirstUse;
  return all;
}
std::atomic<uint64_t> first_use_size{no_size};

void enable_at_first_use(int index);

// What few blocks have besides their memory.
struct Attachment {
  std::vector<c10::cuda::CUDAStream> foreign_streams;  // of other devices: their work is waited for by the host
  std::vector<lms::CudaExport> exports;  // open while the block lives
};

class Attachments {
 public:
  void use_on(const void* block, c10::cuda::CUDAStream stream) {
    const std::lock_guard<std::mutex> guard(lock_);
    auto& streams = at(block).foreign_streams;
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
      streams.push_back(stream);
    }
  }

  // What export_block() appends is kept, and the same for every later call. False when it fails.
  template <typename ExportBlock>
  bool share(const void* block, std::vector<lms::CudaExport>* exports, ExportBlock export_block) {
    const std::lock_guard<std::mutex> guard(lock_);
    Attachment& attachment = at(block);
    if (attachment.exports.empty() && !export_block(&attachment.exports)) {
      return false;
    }
    *exports = attachment.exports;
    return true;
  }

  // Before the block is freed.
  void drop(const void* block) {
    if (count_.load(std::memory_order_acquire) == 0) {
      return;
    }
    Attachment attachment;
    {
      const std::lock_guard<std::mutex> guard(lock_);
      const auto found = all_.find(block);
      if (found == all_.end()) {
        return;
      }
      attachment = std::move(found->second);
      all_.erase(found);
      count_.store(all_.size(), std::memory_order_release);
    }
    for (const c10::cuda::CUDAStream& stream : attachment.foreign_streams) {
      static_cast<void>(cudaStreamSynchronize(stream.stream()));  // fails only with the device
    }
    for (const lms::CudaExport& entry : attachment.exports) {
      ::close(entry.file);
    }
  }

 private:
  // The lock is held.
  Attachment& at(const void* block) {
    Attachment& attachment = all_[block];
    count_.store(all_.size(), std::memory_order_release);
    return attachment;
  }

  std::mutex lock_;
  std::unordered_map<const void*, Attachment> all_;  // by the block's address
  std::atomic<size_t> count_{0};
};

Attachments& attachments() {
  static Attachments& all = *new Attachments;
  return all;
}

void* block_of(CudaDevice* device, const void* address, uint64_t* bytes) {
  void* begin = nullptr;
  return device->pager()->range(address, &begin, bytes) ? begin : nullptr;
}

void report_to_profiler(CudaDevice* device, void* address, int sign) {
  uint64_t bytes = 0;
  if (c10::memoryProfilingEnabled() && block_of(device, address, &bytes) != nullptr) {
    const int index = index_of(*device);
    const auto stats = c10::cuda::CUDACachingAllocator::get()->getDeviceStats(static_cast<c10::DeviceIndex>(index));
    c10::reportMemoryUsageToProfiler(address, sign * static_cast<int64_t>(bytes),
                                     static_cast<size_t>(stats.allocated_bytes[0].current),
                                     static_cast<size_t>(stats.reserved_bytes[0].current), as_device(index));
  }
}

// Serves the stock allocator's memory, too.
void release_block(void* address) {
  CudaDevice* device = owner_of(address);
  if (device == nullptr) {
    stock()->raw_deleter()(address);
    return;
  }
  report_to_profiler(device, address, -1);
  attachments().drop(address);
  if (!device->enabled()) {
    device->pager()->record_use(address, lms::any_stream);  // nobody saw who used it since LMS was disabled
  }
  device->pager()->free(address);
}

c10::DataPtr allocate_block(CudaDevice* device, uint64_t bytes, cudaStream_t stream) {
  lms_torch::throw_pending_failure();
  void* address = nullptr;
  const lms::Status status = device->pager()->allocate(bytes, &address, device->number(stream));
  if (!status.ok()) {
    lms_torch::throw_status(status);
  }
  c10::DataPtr data(address, address, &release_block, as_device(index_of(*device)));
  report_to_profiler(device, address, 1);
  return data;
}

// ------------------------------------------------------------------------------------------------ other processes

// A block's memory as text that another process understands: a prefix, the owner's process, and per piece of memory
// the number of a file descriptor there and its bytes. Not every release asks for one.
constexpr const char* handle_prefix = "LMS1";

[[maybe_unused]] std::string share_block(CudaDevice* device, const void* address, ptrdiff_t* offset) {
  uint64_t bytes = 0;
  void* begin = block_of(device, address, &bytes);
  TORCH_CHECK(begin != nullptr, "LMS: the tensor's memory was freed");
  // The other process sees the memory itself, so it has to stay.
  const lms::Status status = device->pager()->hold(begin);
  if (!status.ok()) {
    lms_torch::throw_status(status);
  }
  auto& backend = static_cast<lms::CudaBackend&>(device->pager()->backend());
  std::vector<lms::CudaExport> exports;
  const bool shared = attachments().share(begin, &exports, [&](std::vector<lms::CudaExport>* all) {
    return backend.export_range(static_cast<char*>(begin), all);
  });
  TORCH_CHECK(shared, "LMS: the device cannot share the tensor's memory with another process: ", backend.failure());
  *offset = static_cast<const char*>(address) - static_cast<char*>(begin);
  std::ostringstream text;
  text << handle_prefix << ' ' << ::getpid();
  for (const lms::CudaExport& entry : exports) {
    text << ' ' << entry.file << ' ' << entry.bytes;
  }
  return text.str();
}

bool is_block_handle(const std::string& handle) {
  return handle.compare(0, std::char_traits<char>::length(handle_prefix), handle_prefix) == 0;
}

std::shared_ptr<void> open_block(const std::string& handle) {
  static std::mutex& lock = *new std::mutex;
  static auto& opened = *new std::unordered_map<std::string, std::weak_ptr<void>>;
  const std::lock_guard<std::mutex> guard(lock);
  const c10::DeviceIndex device = c10::cuda::current_device();
  std::weak_ptr<void>& known = opened[std::to_string(device) + ' ' + handle];
  if (std::shared_ptr<void> same = known.lock()) {
    return same;
  }
  std::istringstream text(handle);
  std::string prefix;
  int64_t process = 0;
  text >> prefix >> process;
  std::vector<lms::CudaExport> exports;
  for (lms::CudaExport entry; text >> entry.file >> entry.bytes;) {
    exports.push_back(entry);
  }
  std::string error;
  std::shared_ptr<lms::CudaImport> import = lms::CudaImport::open(device, process, exports, &error);
  TORCH_CHECK(import != nullptr, "LMS: a tensor of another process cannot be opened: ", error);
  char* address = import->address();
  std::shared_ptr<void> memory(address, [import, device](void* /*address*/) {
    // Nothing may use it any more. Fails only with the device.
    int before = 0;
    static_cast<void>(cudaGetDevice(&before));
    static_cast<void>(cudaSetDevice(device));
    static_cast<void>(cudaDeviceSynchronize());
    static_cast<void>(cudaSetDevice(before));
  });
  known = memory;
  return memory;
}

// ------------------------------------------------------------------------------------------------ what LMS does itself

template <typename Stat>
void add_to(Stat* stat, uint64_t current, uint64_t peak) {
  stat->current += static_cast<int64_t>(current);
  stat->peak += static_cast<int64_t>(peak);
  stat->allocated += static_cast<int64_t>(current);
}

// Adds the pager's blocks to the rows for all memory and for large requests.
template <typename Stats>
void add_statistics(Stats* stats, const lms::Statistics& ours) {
  constexpr std::array<size_t, 2> rows = {0, 2};
  for (const size_t row : rows) {
    for (auto* bytes : {&stats->allocated_bytes, &stats->active_bytes, &stats->requested_bytes}) {
      add_to(&(*bytes)[row], ours.resident_bytes, ours.resident_bytes_peak);
    }
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
  for (const lms::Pager::ResidentRange& range : pager->resident_ranges()) {
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

// Keeps what both allocators may take together within the fraction of the device's memory.
void keep_to_fraction(int index, double fraction) {
  CudaDevice* device = device_at(index);
  if (device == nullptr || !device->enabled()) {
    return;
  }
  const auto allowed = static_cast<uint64_t>(fraction * static_cast<double>(device->pager()->backend().capacity()));
  const uint64_t most = allowed - std::min(allowed, static_cast<uint64_t>(stock_reserved(index)));
  if (device->pager()->limit() > most) {
    const lms::Status status = device->pager()->set_limit(most);
    if (!status.ok()) {
      lms_torch::throw_status(status);
    }
  }
}

// Work on the stream may use the block until it is freed.
void record_use(CudaDevice* device, const void* address, c10::cuda::CUDAStream stream) {
  lms::Pager* pager = device->pager();
  lms::Status status;
  if (stream.device_index() != index_of(*device)) {
    uint64_t bytes = 0;
    attachments().use_on(block_of(device, address, &bytes), stream);
    status = pager->hold(address);
  } else if (lms_torch::capture_possible() && is_capturing(stream.stream())) {
    status = pager->hold(address);
  } else {
    pager->record_use(address, device->number(stream.stream()));
  }
  if (!status.ok()) {
    lms_torch::throw_status(status);
  }
}

// The methods that the decorator does not merely forward. A template, so that what a release lacks is not compiled. The
// names are c10's.
// NOLINTBEGIN(readability-identifier-naming)
template <typename Stock>
class Intercepts {
 public:
  explicit Intercepts(Stock* stock_methods) : stock_(stock_methods) {}

  c10::DataPtr allocate(size_t bytes) const {
    const c10::DeviceIndex index = c10::cuda::current_device();
    CudaDevice* device = device_at(index);
    constexpr size_t absurd = size_t{1} << 60;  // the stock allocator has an error of its own for these
    if (bytes >= first_use_size.load(std::memory_order_relaxed)) {
      enable_at_first_use(index);
    }
    if (device != nullptr && device->takes(bytes) && bytes < absurd) {
      const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(index).stream();
      if (!device->in_private_pool(stream)) {
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
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(index).stream();
    const lms::StreamId number = device->number(stream);
    const lms_torch::ResidentBlock source(from, /*write=*/false, number);
    const lms_torch::ResidentBlock target(to, /*write=*/true, number);
    const c10::cuda::CUDAGuard guard(index);
    C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
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

  // The release has an IPC interface of its own if `Shares`; else whoever asks is going to give the address to CUDA's,
  // which knows no memory like ours.
  template <bool Shares>
  void* base_allocation(void* address, size_t* bytes) const {
    CudaDevice* device = owner_of(address);
    if (device == nullptr) {
      return stock_->getBaseAllocation(address, bytes);
    }
    TORCH_CHECK(Shares,
                "LMS: this release of PyTorch cannot share a CUDA tensor that LMS manages with another process; share "
                "one that was created while LMS was disabled, or that is smaller than min_size");
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
        static_cast<void>(pager->release(pager->statistics().cached_bytes));  // gives what it can
      }
    }
  }

  template <typename... Options>
  auto snapshot(const Options&... options) const {
    auto all = stock_->snapshot(options...);
    if (!is_one_pool(options...)) {
      for (const CudaDevice& device : devices()) {
        if (lms::Pager* pager = device.pager()) {
          add_segments(&all.segments, index_of(device), pager);
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
    const CudaDevice* device = device_at(index);
    if (device != nullptr && device->pager() != nullptr) {
      add_statistics(&stats, device->pager()->statistics());
    }
    return stats;
  }

  template <typename Index>
  void resetPeakStats(Index index) const {
    stock_->resetPeakStats(index);
    const CudaDevice* device = device_at(index);
    if (device != nullptr && device->pager() != nullptr) {
      device->pager()->reset_peaks();
    }
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
    begin_pool(index, PoolId(graph, UINT64_MAX), is_capturing, [&] { stock_->notifyCaptureBegin(index, graph, id); });
  }
  template <typename Index, typename Graph>
  void notifyCaptureEnded(Index index, Graph graph) const {
    stock_->notifyCaptureEnded(index, graph);
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

  // ---- several processes

  auto shareIpcHandle(void* address) const {
    CudaDevice* device = owner_of(address);
    if (device == nullptr) {
      return stock_->shareIpcHandle(address);
    }
    decltype(stock_->shareIpcHandle(address)) shared{};
    shared.handle = share_block(device, address, &shared.offset);
    return shared;
  }

  std::shared_ptr<void> getIpcDevPtr(std::string handle) const {
    return is_block_handle(handle) ? open_block(handle) : stock_->getIpcDevPtr(std::move(handle));
  }

 private:
  // Whether the first of the arguments, where there are any, says that only one private pool is meant.
  static bool is_one_pool() { return false; }
  template <typename... Others>
  static bool is_one_pool(const PoolId& pool, const Others&... /*others*/) {
    return pool != PoolId{};
  }

  static PoolId of_stream(cudaStream_t stream) { return PoolId(reinterpret_cast<uintptr_t>(stream), UINT64_MAX); }

  template <typename Begin>
  static void begin_pool(int index, PoolId id, StreamFilter filter, Begin begin) {
    pools_used.store(true);
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

  static void add_peer(int from, int to) {
    const CudaDevice* device = device_at(to);
    lms::Pager* pager = device != nullptr ? device->pager() : nullptr;
    if (pager != nullptr) {
      TORCH_CHECK(pager->backend().add_peer(from), "LMS: device ", from, " cannot access the memory of device ", to,
                  ": ", pager->backend().failure());
    }
  }

  Stock* stock_;
};
// NOLINTEND(readability-identifier-naming)

// ------------------------------------------------------------------------------------------------ the decorator

class Decorator : public CUDAAllocator {
 protected:
  static CUDAAllocator* stock_methods() { return stock(); }
  static Intercepts<CUDAAllocator> intercepts() { return Intercepts<CUDAAllocator>(stock()); }
};

// Every virtual method of CUDAAllocator and its bases in any release from 2.0 on, except raw_deleter() and what is
// overloaded in some release: those are in LmsAllocator.
#define LMS_METHODS(LMS_FORWARD, LMS_INTERCEPT) \
  LMS_INTERCEPT(allocate)                       \
  LMS_INTERCEPT(copy_data)                      \
  LMS_FORWARD(is_simple_data_ptr)               \
  LMS_INTERCEPT(raw_alloc)                      \
  LMS_INTERCEPT(raw_alloc_with_stream)          \
  LMS_INTERCEPT(raw_delete)                     \
  LMS_FORWARD(allocateWithAddress)              \
  LMS_FORWARD(init)                             \
  LMS_FORWARD(initialized)                      \
  LMS_FORWARD(enable)                           \
  LMS_FORWARD(isEnabled)                        \
  LMS_FORWARD(name)                             \
  LMS_FORWARD(getMemoryInfo)                    \
  LMS_FORWARD(getMemoryFraction)                \
  LMS_INTERCEPT(setMemoryFraction)              \
  LMS_FORWARD(getExpandableSegmentSizes)        \
  LMS_INTERCEPT(emptyCache)                     \
  LMS_FORWARD(cacheInfo)                        \
  LMS_INTERCEPT(getDeviceStats)                 \
  LMS_FORWARD(resetAccumulatedStats)            \
  LMS_INTERCEPT(resetPeakStats)                 \
  LMS_INTERCEPT(snapshot)                       \
  LMS_FORWARD(isHistoryEnabled)                 \
  LMS_FORWARD(getContextForPointer)             \
  LMS_FORWARD(recordHistory)                    \
  LMS_FORWARD(recordAnnotation)                 \
  LMS_FORWARD(pushCompileContext)               \
  LMS_FORWARD(popCompileContext)                \
  LMS_FORWARD(supportsUserMetadata)             \
  LMS_FORWARD(setUserMetadata)                  \
  LMS_FORWARD(getUserMetadata)                  \
  LMS_FORWARD(annotateMemory)                   \
  LMS_FORWARD(attachOutOfMemoryObserver)        \
  LMS_FORWARD(attachOomRejectionObserver)       \
  LMS_FORWARD(attachAllocatorTraceTracker)      \
  LMS_INTERCEPT(beginAllocateToPool)            \
  LMS_INTERCEPT(endAllocateToPool)              \
  LMS_INTERCEPT(beginAllocateStreamToPool)      \
  LMS_INTERCEPT(endAllocateStreamToPool)        \
  LMS_INTERCEPT(notifyCaptureBegin)             \
  LMS_FORWARD(notifyCaptureAboutToEnd)          \
  LMS_INTERCEPT(notifyCaptureEnded)             \
  LMS_FORWARD(notifyCaptureDestroy)             \
  LMS_FORWARD(markCaptureBegin)                 \
  LMS_FORWARD(markCaptureEnd)                   \
  LMS_FORWARD(releasePool)                      \
  LMS_FORWARD(getPoolUseCount)                  \
  LMS_FORWARD(ensureExistsAndIncrefPool)        \
  LMS_FORWARD(createOrIncrefPool)               \
  LMS_FORWARD(setUseOnOOM)                      \
  LMS_FORWARD(setNoSplit)                       \
  LMS_FORWARD(checkPoolLiveAllocations)         \
  LMS_FORWARD(getCheckpointState)               \
  LMS_FORWARD(setCheckpointPoolState)           \
  LMS_INTERCEPT(enablePeerAccess)               \
  LMS_INTERCEPT(needsPoolSpecificPeerAccess)    \
  LMS_INTERCEPT(memcpyAsync)                    \
  LMS_INTERCEPT(shareIpcHandle)                 \
  LMS_INTERCEPT(getIpcDevPtr)

#define LMS_DEFINE_FORWARD(method) LMS_DEFINE_OVERRIDE(method, this->stock_methods()->)
#define LMS_DEFINE_INTERCEPT(method) LMS_DEFINE_OVERRIDE(method, this->intercepts().)
LMS_METHODS(LMS_DEFINE_FORWARD, LMS_DEFINE_INTERCEPT)
LMS_DEFINE_INTERCEPT(recordStream)

#define LMS_LINK(method) , lms_override_##method<CUDAAllocator>::Link
using DecoratorLinks = lms_torch::Chain<Decorator LMS_METHODS(LMS_LINK, LMS_LINK),
                                        lms_override_recordStream<c10::DeviceAllocator>::Link>::type;

class LmsAllocator final : public DecoratorLinks {
 public:
  using CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    intercepts().recordStream(data, stream);
  }

  void* getBaseAllocation(void* address, size_t* bytes) override {
    constexpr bool shares = !std::is_void<lms_signature_shareIpcHandle<CUDAAllocator>::type>::value;
    return intercepts().base_allocation<shares>(address, bytes);
  }

  // Of graphs that are captured into private pools PyTorch checks that their memory, which is never ours, has the very
  // deleter that this returns. Without such pools it is one that serves both kinds of memory.
  c10::DeleterFnPtr raw_deleter() const override {
    return pools_used.load(std::memory_order_relaxed) ? stock()->raw_deleter() : &release_block;
  }
};

LmsAllocator& decorator() {
  static LmsAllocator& allocator = *new LmsAllocator;
  return allocator;
}

// ------------------------------------------------------------------------------------------------ switching

std::mutex& switching() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

// Guarded by switching(). Somebody who put an allocator of his own on top of the decorator still calls it.
bool installed = false;

// Above the priority of every allocator that is registered statically; equal priorities replace each other.
constexpr uint8_t allocator_priority = 255;

// Newer releases also find the allocator by the type of device. Null where none is registered.
c10::Allocator* registered_allocator() {
  try {
    return c10::GetAllocator(c10::DeviceType::CUDA);
  } catch (const c10::Error&) {
    return nullptr;
  }
}

void replace_registered(c10::Allocator* from, c10::Allocator* to) {
  if (registered_allocator() == from) {
    c10::SetAllocator(c10::DeviceType::CUDA, to, allocator_priority);
  }
}

void install() {
  if (installed) {
    return;
  }
  CUDAAllocator* current = c10::cuda::CUDACachingAllocator::allocator.load();
  stock_allocator.store(current, std::memory_order_release);
  c10::cuda::CUDACachingAllocator::allocator.store(&decorator());
  replace_registered(current, &decorator());
  installed = true;
}

void uninstall() {
  CUDAAllocator* ours = &decorator();
  if (c10::cuda::CUDACachingAllocator::allocator.compare_exchange_strong(ours, stock())) {
    replace_registered(&decorator(), stock());
    installed = false;
  }
}

template <typename Stock>
auto memory_fraction(Stock* allocator, int device, int /*preferred*/)
    -> decltype(allocator->getMemoryFraction(static_cast<c10::DeviceIndex>(device))) {
  return allocator->getMemoryFraction(static_cast<c10::DeviceIndex>(device));
}
template <typename Stock>
double memory_fraction(Stock* /*allocator*/, int /*device*/, long /*otherwise*/) {
  return 1;
}

lms_status add_device(CudaDevice* device, int index, const lms_options* options) {
  lms_pager* handle = nullptr;
  const lms_status status = lms_create_cuda(options, index, &handle);
  if (status != LMS_OK) {
    return status;
  }
  lms_torch::Device known;
  known.pager = reinterpret_cast<lms::Pager*>(handle);
  known.index = index;
  known.current_stream = &current_stream;
  device->set_pager(known.pager);
  known.pager->set_relief(&empty_stock_cache, device);
  return lms_torch::add_device(known) ? LMS_OK : lms_fail(LMS_UNSUPPORTED, "too many devices use LMS");
}

// Calls a function that returns an lms_status; what it throws becomes one.
template <typename Call>
lms_status guarded(Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return lms_fail(LMS_UNSUPPORTED, error.what());
  }
}

lms_status check_current_allocator() {
  CUDAAllocator* current = c10::cuda::CUDACachingAllocator::allocator.load();
  if (!installed && current->name().find("luggable") != std::string::npos) {
    return lms_fail(LMS_UNSUPPORTED,
                    "a CUDAPluggableAllocator is in use, and LMS works with PyTorch's own CUDA allocators only; do not "
                    "call torch.cuda.memory.change_current_allocator");
  }
  return LMS_OK;
}

// What follows needs switching().

lms_status enable_device(int index, lms_options options, uint64_t min_size) {
  CudaDevice* device = device_at(index);
  if (device == nullptr) {
    return lms_fail(LMS_INVALID_ARGUMENT, "there is no CUDA device with that number");
  }
  lms_status status = check_current_allocator();
  if (status != LMS_OK) {
    return status;
  }
  lms_pager* pager = lms_torch_cuda_pager(index);
  if (options.limit == UINT64_MAX) {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
    size_t free = 0;
    size_t total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    const uint64_t held = pager != nullptr ? device->pager()->statistics().device_bytes : 0;
    options.limit = (free + held) / 100 * 95;
  }
  // Operations are seen before the first block may leave.
  const bool observed = device->enabled();
  if (!observed) {
    lms_torch::start_observing();
  }
  status = pager == nullptr ? add_device(device, index, &options) : lms_configure(pager, &options);
  if (status != LMS_OK) {
    if (!observed) {
      lms_torch::stop_observing();
    }
    return status;
  }
  install();
  lms_torch::options_changed();
  device->enable(min_size);
  if (stock()->initialized()) {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));  // asking for it makes the device current
    keep_to_fraction(index, memory_fraction(stock(), index, 0));
  }
  return LMS_OK;
}

lms_status enable_later(const lms_options& options, uint64_t min_size) {
  const lms_status status = check_current_allocator();
  if (status != LMS_OK) {
    return status;
  }
  FirstUse& all = first_use();
  all.options = options;
  all.store = options.store != nullptr ? options.store : "";
  all.policy = options.policy != nullptr ? options.policy : "";
  all.options.store = options.store != nullptr ? all.store.c_str() : nullptr;
  all.options.policy = options.policy != nullptr ? all.policy.c_str() : nullptr;
  all.min_size = min_size;
  install();
  first_use_size.store(min_size);
  return LMS_OK;
}

void uninstall_unless_needed() {
  if (first_use_size.load() == no_size &&
      std::none_of(devices().begin(), devices().end(), [](const CudaDevice& device) { return device.enabled(); })) {
    uninstall();
  }
}

void enable_at_first_use(int index) {
  const CudaDevice* device = device_at(index);
  if (device == nullptr || device->pager() != nullptr || lms_torch::capture_possible()) {
    return;
  }
  const std::lock_guard<std::mutex> guard(switching());
  if (first_use_size.load() != no_size && device->pager() == nullptr) {
    const FirstUse& all = first_use();
    TORCH_CHECK(enable_device(index, all.options, all.min_size) == LMS_OK, "LMS: ", lms_last_error());
  }
}

}  // namespace

lms_status lms_torch_cuda_enable(int index, const lms_options* options, uint64_t min_size) {
  return guarded([&] {
    const std::lock_guard<std::mutex> guard(switching());
    return index == -1 ? enable_later(*options, min_size) : enable_device(index, *options, min_size);
  });
}

lms_status lms_torch_cuda_disable(int index) {
  return guarded([&] {
    const std::lock_guard<std::mutex> guard(switching());
    CudaDevice* device = device_at(index);
    if (index == -1) {
      first_use_size.store(no_size);
    } else if (device != nullptr && device->enabled()) {
      const lms_status status = lms_restore_all(lms_torch_cuda_pager(index));
      if (status == LMS_OUT_OF_MEMORY) {
        const std::string reason = lms_last_error();
        return lms_fail(status,
                        ("LMS stays enabled, since what is paged out does not fit on the device as well; free tensors "
                         "first. " +
                         reason)
                            .c_str());
      }
      if (status != LMS_OK) {
        return status;
      }
      device->disable();
      lms_torch::stop_observing();
      lms_shutdown(lms_torch_cuda_pager(index));
    }
    if (installed) {
      uninstall_unless_needed();
    }
    return LMS_OK;
  });
}

int lms_torch_cuda_enabled(int index) {
  const CudaDevice* device = device_at(index);
  return device != nullptr && device->enabled() ? 1 : 0;
}

uint64_t lms_torch_cuda_min_size(int index) {
  const CudaDevice* device = device_at(index);
  return device != nullptr ? device->min_size() : 0;
}

lms_pager* lms_torch_cuda_pager(int index) {
  const CudaDevice* device = device_at(index);
  return device != nullptr ? reinterpret_cast<lms_pager*>(device->pager()) : nullptr;
}

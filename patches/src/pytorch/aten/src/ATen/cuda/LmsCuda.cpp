// Large Model Support for CUDA tensors: the devices, their blocks, and how LMS is switched on and off. LmsCuda.h has
// the C functions. LmsStock.h says how LMS comes in front of the stock allocator, which differs by release; the
// observer in LmsTorch.cpp keeps the tensors resident.
#include <ATen/LmsObserver.h>
#include <ATen/cuda/LmsCuda.h>
#include <ATen/cuda/LmsCudaDevices.h>
#include <ATen/cuda/LmsStock.h>
#include <ATen/lms/backend/cuda/cuda_ipc.h>
#include <ATen/lms/pager.h>
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

// ------------------------------------------------------------------------------------------------ devices

namespace lms_cuda {

lms::StreamId CudaDevice::number(cudaStream_t stream) {
  const lms::StreamId found = pager()->backend().stream(reinterpret_cast<uintptr_t>(stream));
  const uint64_t bit = lms::stream_bit(found);
  if ((streams_.load(std::memory_order_relaxed) & bit) != bit) {
    streams_.fetch_or(bit, std::memory_order_relaxed);
  }
  return found;
}

void CudaDevice::mark_streams() {
  if (lms::Pager* found = pager()) {
    const uint64_t streams = streams_.load(std::memory_order_relaxed);
    for (lms::StreamId stream = 1; stream < lms::any_stream; ++stream) {
      if ((streams & lms::stream_bit(stream)) != 0) {
        found->backend().mark(stream);
      }
    }
  }
}

void CudaDevice::begin_pool(PoolId id, StreamFilter filter) {
  const std::lock_guard<std::mutex> guard(lock_);
  pools_.push_back(Pool{id, std::move(filter)});
  pool_count_.store(pools_.size(), std::memory_order_release);
  lms_torch::begin_capture();
}

void CudaDevice::end_pool(PoolId id) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto pool = std::find_if(pools_.begin(), pools_.end(), [id](const Pool& entry) { return entry.id == id; });
  if (pool != pools_.end()) {  // else it began before LMS was in front
    pools_.erase(pool);
    pool_count_.store(pools_.size(), std::memory_order_release);
    lms_torch::end_capture();
  }
}

bool CudaDevice::in_private_pool(cudaStream_t stream) {
  if (pool_count_.load(std::memory_order_acquire) == 0) {
    return false;
  }
  const std::lock_guard<std::mutex> guard(lock_);
  return std::any_of(pools_.begin(), pools_.end(), [stream](const Pool& pool) { return pool.filter(stream); });
}

std::array<CudaDevice, most_devices>& devices() {
  static auto& all = *new std::array<CudaDevice, most_devices>;
  return all;
}

CudaDevice* device_at(int index) {
  return index >= 0 && index < most_devices ? &devices()[static_cast<size_t>(index)] : nullptr;
}

int index_of(const CudaDevice& device) { return static_cast<int>(&device - devices().data()); }

c10::Device as_device(int index) { return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)); }

void fail(lms_status code, const std::string& message) { lms_torch::throw_status(lms::Status(code, message)); }

}  // namespace lms_cuda

namespace {

using namespace lms_cuda;  // NOLINT(google-build-using-namespace): the rest of what is declared there

lms::StreamId current_stream(const lms_torch::Device& device, bool* captured) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device.index)).stream();
  if (lms_torch::capture_possible() && stock::is_capturing(stream)) {
    *captured = true;
    return lms::host_stream;
  }
  return device_at(device.index)->number(stream);
}

// ------------------------------------------------------------------------------------------------ blocks

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

void report_to_profiler(CudaDevice* device, void* address, int sign) {
  uint64_t bytes = 0;
  if (stock::profiling() && block_of(device, address, &bytes) != nullptr) {
    stock::report_to_profiler(address, sign * static_cast<int64_t>(bytes), index_of(*device));
  }
}

}  // namespace

namespace lms_cuda {

CudaDevice* owner_of(const void* address) {
  const lms_torch::Device* device = lms_torch::device_of(address);
  return device != nullptr && device->current_stream == &current_stream ? device_at(device->index) : nullptr;
}

void* block_of(CudaDevice* device, const void* address, uint64_t* bytes) {
  void* begin = nullptr;
  return device->pager()->range(address, &begin, bytes) ? begin : nullptr;
}

void release_block(void* address) {
  CudaDevice* device = owner_of(address);
  if (device == nullptr) {
    stock::release(address);
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

void record_use(CudaDevice* device, const void* address, c10::cuda::CUDAStream stream) {
  lms::Pager* pager = device->pager();
  lms::Status status;
  if (stream.device_index() != index_of(*device)) {
    uint64_t bytes = 0;
    attachments().use_on(block_of(device, address, &bytes), stream);
    status = pager->hold(address);
  } else if (lms_torch::capture_possible() && stock::is_capturing(stream.stream())) {
    status = pager->hold(address);
  } else {
    pager->record_use(address, device->number(stream.stream()));
  }
  if (!status.ok()) {
    lms_torch::throw_status(status);
  }
}

std::vector<lms::CudaExport> exports_of(CudaDevice* device, void* block) {
  // The other process sees the memory itself, so it has to stay.
  const lms::Status status = device->pager()->hold(block);
  if (!status.ok()) {
    lms_torch::throw_status(status);
  }
  auto& backend = static_cast<lms::CudaBackend&>(device->pager()->backend());
  std::vector<lms::CudaExport> exports;
  const bool shared = attachments().share(block, &exports, [&](std::vector<lms::CudaExport>* all) {
    return backend.export_range(static_cast<char*>(block), all);
  });
  if (!shared) {
    fail(LMS_UNSUPPORTED, "the device cannot share the tensor's memory with another process: " + backend.failure());
  }
  return exports;
}

void add_peer(int from, int to) {
  const CudaDevice* device = device_at(to);
  lms::Pager* pager = device != nullptr ? device->pager() : nullptr;
  if (pager != nullptr && !pager->backend().add_peer(from)) {
    fail(LMS_DEVICE_FAILED, "device " + std::to_string(from) + " cannot access the memory of device " +
                                std::to_string(to) + ": " + pager->backend().failure());
  }
}

void keep_to_fraction(int index, double fraction) {
  CudaDevice* device = device_at(index);
  if (device == nullptr || !device->enabled()) {
    return;
  }
  const auto allowed = static_cast<uint64_t>(fraction * static_cast<double>(device->pager()->backend().capacity()));
  const uint64_t most = allowed - std::min(allowed, static_cast<uint64_t>(stock::reserved_bytes(index)));
  if (device->pager()->limit() > most) {
    const lms::Status status = device->pager()->set_limit(most);
    if (!status.ok()) {
      lms_torch::throw_status(status);
    }
  }
}

}  // namespace lms_cuda

namespace {

// ------------------------------------------------------------------------------------------------ switching

std::mutex& switching() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

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
std::atomic<uint64_t> bytes_of_first_use{no_size};

// Called by the pager when the device has no memory left.
bool empty_stock_cache(void* context) {
  const int device = index_of(*static_cast<CudaDevice*>(context));
  if (lms_torch::capture_possible() || !stock::initialized()) {
    return false;
  }
  try {
    const int64_t before = stock::reserved_bytes(device);
    stock::empty_cache();
    return stock::reserved_bytes(device) < before;
  } catch (const std::exception&) {
    return false;  // the pager reports that there is no memory
  }
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
  known.pager->set_trim_others(&empty_stock_cache, device);
  if (!lms_torch::add_device(known)) {
    return lms_fail(LMS_UNSUPPORTED, "too many devices use LMS");
  }
  return guarded([index] {
    stock::begin_device(index);
    return LMS_OK;
  });
}

// What follows needs switching().

lms_status enable_device(int index, lms_options options, uint64_t min_size) {
  CudaDevice* device = device_at(index);
  if (device == nullptr) {
    return lms_fail(LMS_INVALID_ARGUMENT, "there is no CUDA device with that number");
  }
  lms_status status = stock::check();
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
    status = lms_torch::start_observing();
    if (status != LMS_OK) {
      return status;
    }
  }
  status = pager == nullptr ? add_device(device, index, &options) : lms_configure(pager, &options);
  if (status == LMS_OK) {
    status = stock::install();
  }
  if (status != LMS_OK) {
    if (!observed) {
      lms_torch::stop_observing();
    }
    return status;
  }
  lms_torch::options_changed();
  device->enable(min_size);
  if (stock::initialized()) {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));  // asking for it makes the device current
    keep_to_fraction(index, stock::memory_fraction(index));
  }
  return LMS_OK;
}

lms_status enable_later(const lms_options& options, uint64_t min_size) {
  lms_status status = stock::check();
  if (status == LMS_OK) {
    status = stock::install();
  }
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
  bytes_of_first_use.store(min_size);
  return LMS_OK;
}

void uninstall_unless_needed() {
  if (bytes_of_first_use.load() == no_size &&
      std::none_of(devices().begin(), devices().end(), [](const CudaDevice& device) { return device.enabled(); })) {
    stock::uninstall();
  }
}

}  // namespace

namespace lms_cuda {

uint64_t first_use_size() { return bytes_of_first_use.load(std::memory_order_relaxed); }

void enable_at_first_use(int index) {
  const CudaDevice* device = device_at(index);
  if (device == nullptr || device->pager() != nullptr || lms_torch::capture_possible()) {
    return;
  }
  const std::lock_guard<std::mutex> guard(switching());
  if (bytes_of_first_use.load() != no_size && device->pager() == nullptr) {
    const FirstUse& all = first_use();
    if (enable_device(index, all.options, all.min_size) != LMS_OK) {
      fail(LMS_UNSUPPORTED, lms_last_error());
    }
  }
}

}  // namespace lms_cuda

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
      bytes_of_first_use.store(no_size);
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
    if (stock::installed()) {
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

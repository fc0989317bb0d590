#include <ATen/LmsDevices.h>
#include <ATen/LmsFailures.h>
#include <ATen/cuda/LmsCudaBlocks.h>
#include <ATen/cuda/LmsStock.h>
#include <ATen/lms/pager.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace lms_cuda {
namespace {

// Fails only with the device, which reports it otherwise.
void wait_for(c10::cuda::CUDAStream stream) {
  int current = 0;
  static_cast<void>(cudaGetDevice(&current));
  static_cast<void>(cudaSetDevice(stream.device_index()));  // a default stream is the current device's
  // The handle of a stream that may have been destroyed is not to be touched.
  static_cast<void>(is_lasting(stream) ? cudaStreamSynchronize(stream.stream()) : cudaDeviceSynchronize());
  static_cast<void>(cudaSetDevice(current));
}

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
      wait_for(stream);
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
    device->pager()->record_use(address, lms::any_stream);  // uses since LMS was disabled were not seen
  }
  device->pager()->free(address);
}

c10::DataPtr allocate_block(CudaDevice* device, uint64_t bytes, c10::cuda::CUDAStream stream) {
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
    pager->record_use(address, device->number(stream));
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

}  // namespace lms_cuda

// The CUDA devices that LMS knows: their pagers, streams and private pools. All functions are thread-safe.
#ifndef ATEN_CUDA_LMS_CUDA_DEVICES_H
#define ATEN_CUDA_LMS_CUDA_DEVICES_H

#include <ATen/LmsDevices.h>
#include <ATen/lms/pager.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace lms_cuda {

constexpr uint64_t no_size = UINT64_MAX;
constexpr int most_devices = 64;

// A private pool of the stock allocator, and which streams it serves.
using PoolId = std::pair<unsigned long long, unsigned long long>;
using StreamFilter = std::function<bool(cudaStream_t)>;

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

  // The number of a stream of this device, which exists.
  lms::StreamId number(c10::cuda::CUDAStream stream);

  // Marks every lasting stream: during a capture nothing can be recorded.
  void mark_streams();

  // A private pool of the stock allocator serves the streams that the filter names, from now on.
  void begin_pool(PoolId id, StreamFilter filter);
  void end_pool(PoolId id);
  bool in_private_pool(cudaStream_t stream);

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
std::array<CudaDevice, most_devices>& devices();

CudaDevice* device_at(int index);  // null when there is no such number
int index_of(const CudaDevice& device);
c10::Device as_device(int index);

// Whether PyTorch made the stream: it destroys none.
bool is_lasting(c10::cuda::CUDAStream stream);

// As a lms_torch::Device has it: every CUDA device has this function, and no device of another kind.
lms::StreamId current_stream(const lms_torch::Device& device, bool* captured);

// Device `from` may use the blocks of device `to`, from now on.
void add_peer(int from, int to);

// Keeps what both allocators may take together within the fraction of the device's memory.
void keep_to_fraction(int index, double fraction);

// Requests of that many bytes enable the device (LmsCuda.h). Defined in LmsCuda.cpp.
uint64_t first_use_size();
void enable_at_first_use(int index);

[[noreturn]] void fail(lms_status code, const std::string& message);

}  // namespace lms_cuda
#endif  // ATEN_CUDA_LMS_CUDA_DEVICES_H

#include <ATen/LmsFailures.h>
#include <ATen/cuda/LmsCudaDevices.h>
#include <ATen/cuda/LmsStock.h>
#include <ATen/lms/pager.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <utility>

namespace lms_cuda {

lms::StreamId CudaDevice::number(c10::cuda::CUDAStream stream) {
  const lms::StreamId found =
      pager()->backend().stream(reinterpret_cast<uintptr_t>(stream.stream()), is_lasting(stream));
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
      if ((streams & lms::stream_bit(stream)) != 0 && found->backend().lasting(stream)) {
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

lms::StreamId current_stream(const lms_torch::Device& device, bool* captured) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device.index));
  if (lms_torch::capture_possible() && stock::is_capturing(stream.stream())) {
    *captured = true;
    return lms::host_stream;
  }
  return device_at(device.index)->number(stream);
}

// One that the program made (getStreamFromExternal) has its handle for a number.
bool is_lasting(c10::cuda::CUDAStream stream) {
  return reinterpret_cast<intptr_t>(stream.stream()) != static_cast<intptr_t>(stream.id()) || stream.id() == 0;
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

void fail(lms_status code, const std::string& message) { lms_torch::throw_status(lms::Status(code, message)); }

}  // namespace lms_cuda

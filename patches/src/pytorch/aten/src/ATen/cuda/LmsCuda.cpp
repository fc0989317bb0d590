// How LMS is switched on and off for CUDA devices.
#include <ATen/LmsDevices.h>
#include <ATen/LmsFailures.h>
#include <ATen/LmsObserver.h>
#include <ATen/cuda/LmsCuda.h>
#include <ATen/cuda/LmsCudaDevices.h>
#include <ATen/cuda/LmsLaunches.h>
#include <ATen/cuda/LmsStock.h>
#include <ATen/lms/kept_options.h>
#include <ATen/lms/pager.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <string>

namespace {

using namespace lms_cuda;  // NOLINT(google-build-using-namespace): this file defines a part of it

std::mutex& switching() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

// What enables the devices that have no pager when they are first asked for much memory; LmsCuda.h.
struct FirstUse {
  lms::KeptOptions options;
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

// Called by the pager when a request may need pages. The stock allocator counts blocks in its cache, too.
uint64_t count_stock(void* context) {
  try {
    return stock::initialized()
               ? static_cast<uint64_t>(stock::reserved_bytes(index_of(*static_cast<CudaDevice*>(context))))
               : 0;
  } catch (const std::exception&) {
    return 0;  // it does not know the device yet
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

// Whether every device may use every other's blocks. Collectives of a process with several devices reach straight into
// each other's memory, and ask nobody.
std::atomic<bool> all_are_peers{false};

// Lets the others use the device's blocks, as far as they can.
void share(int device) {
  for (int from = 0; from < c10::cuda::device_count(); ++from) {
    int possible = 0;
    if (from != device && cudaDeviceCanAccessPeer(&possible, from, device) == cudaSuccess && possible != 0) {
      add_peer(from, device);
    }
  }
}

lms_status share_all() {
  if (!all_are_peers.exchange(true)) {
    for (const CudaDevice& device : devices()) {
      if (device.pager() != nullptr) {
        share(index_of(device));
      }
    }
  }
  return LMS_OK;
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
  known.refuse_work = &refuse_launches;
  device->set_pager(known.pager);
  known.pager->set_trim_others(&empty_stock_cache, device);
  known.pager->set_count_others(&count_stock, device);
  if (!lms_torch::add_device(known)) {
    return lms_fail(LMS_UNSUPPORTED, "too many devices use LMS");
  }
  return guarded([index] {
    if (all_are_peers.load() || !stock::tells_peers()) {
      share(index);
      return LMS_OK;
    }
    const auto has_pager = [](const CudaDevice& other) { return other.pager() != nullptr; };
    return std::count_if(devices().begin(), devices().end(), has_pager) > 1 ? share_all() : LMS_OK;
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
  if (options.limit == UINT64_MAX && options.share == nullptr) {
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
  all.options.set(options);
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
    if (enable_device(index, all.options.get(), all.min_size) != LMS_OK) {
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

lms_status lms_torch_cuda_share_all(void) {
  return guarded([] {
    const std::lock_guard<std::mutex> guard(switching());
    return share_all();
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

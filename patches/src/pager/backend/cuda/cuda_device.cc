#include "cuda_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "../../thread_text.h"

namespace lms {

namespace {

std::atomic<bool> cuda_is_forked{false};

using CudaFailure = ThreadText<CudaDevice>;
thread_local CudaResult cuda_result = cuda::success;

const char* cuda_advice(CudaResult result) {
  switch (result) {
    case cuda::no_device:
      return "no CUDA device is visible to this process; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use device "
             "\"cpu\"";
    case cuda::stub_library:
      return "the driver library that was found is the toolkit's stub; remove its folder from LD_LIBRARY_PATH";
    default:
      return "the NVIDIA driver does not start; check that nvidia-smi works";
  }
}

// Calls until the device is ready, or has not been for too long. The first pauses are as short as the calls, all of
// them together are 1.3 s. After a call that waited in vain, the function's next ones wait for a millisecond only,
// until one is answered: an operation may need many.
template <typename Call>
CudaResult cuda_until_ready(std::atomic<bool>* in_vain, Call call) {
  constexpr std::chrono::microseconds first{20};
  constexpr std::chrono::microseconds longest{700000};
  constexpr std::chrono::microseconds longest_in_vain{500};
  const auto end = in_vain->load(std::memory_order_relaxed) ? longest_in_vain : longest;
  CudaResult result = call();
  for (auto pause = first; result == cuda::not_ready && pause <= end; pause *= 2) {
    std::this_thread::sleep_for(pause);
    result = call();
  }
  in_vain->store(result == cuda::not_ready, std::memory_order_relaxed);
  return result;
}

}  // namespace

std::string cuda_failure() { return CudaFailure::get(); }

CudaResult cuda_last_result() { return cuda_result; }

bool cuda_fail(std::string sentence, CudaResult result) {
  CudaFailure::set(std::move(sentence));
  cuda_result = result;
  return false;
}

void cuda_set_forked() { cuda_is_forked.store(true, std::memory_order_relaxed); }

bool cuda_forked() { return cuda_is_forked.load(std::memory_order_relaxed); }

std::shared_ptr<CudaDevice> CudaDevice::open(int ordinal, Status* status) {
  const auto refuse = [&](const std::string& sentence) {
    *status = Status(LMS_UNSUPPORTED, "CUDA device " + std::to_string(ordinal) + " cannot be used: " + sentence);
    return nullptr;
  };
  if (cuda_forked()) {
    return refuse("this process was forked; start it with the \"spawn\" method instead");
  }
  std::string error;
  const CudaDriver* driver = CudaDriver::load(&error);
  if (driver == nullptr) {
    return refuse(error);
  }
  CudaResult result = driver->init(0);
  if (result != cuda::success) {
    return refuse(cuda_advice(result) + (" (cuInit: " + driver->name(result)) + ")");
  }
  int count = 0;
  CudaDeviceId id = 0;
  if (driver->device_get_count(&count) != cuda::success || ordinal < 0 || ordinal >= count ||
      driver->device_get(&id, ordinal) != cuda::success) {
    return refuse(count == 0 ? cuda_advice(cuda::no_device)
                             : "there is no such device; the first is 0, and there are " + std::to_string(count));
  }
  int managed = 0;
  result = driver->device_get_attribute(&managed, cuda::has_virtual_memory_management, id);
  if (result != cuda::success || managed == 0) {
    return refuse(
        "it does not support virtual memory management (an old GPU, a virtual one, or a driver in a mode without it); "
        "use another device");
  }
  CudaContext context = nullptr;
  result = driver->device_primary_ctx_retain(&context, id);
  if (result != cuda::success) {
    return refuse("its primary context cannot be opened (cuDevicePrimaryCtxRetain: " + driver->name(result) +
                  "); check that nvidia-smi shows the device free for compute work");
  }
  return std::make_shared<CudaDevice>(*driver, ordinal, id, context);
}

CudaDevice::~CudaDevice() {
  if (!cuda_forked()) {
    driver.device_primary_ctx_release(id);
  }
}

bool CudaDevice::map(CudaAddress address, std::size_t bytes, CudaMemory memory) const {
  return check(cuda_until_ready(&map_in_vain_, [&] { return driver.mem_map(address, bytes, 0, memory, 0); }),
               "cuMemMap");
}

bool CudaDevice::set_access(CudaAddress address, std::size_t bytes, const cuda::AccessDescription* access,
                            std::size_t count) const {
  return check(
      cuda_until_ready(&set_access_in_vain_, [&] { return driver.mem_set_access(address, bytes, access, count); }),
      "cuMemSetAccess");
}

bool CudaDevice::unmap(CudaAddress address, std::size_t bytes) const {
  return check(cuda_until_ready(&unmap_in_vain_, [&] { return driver.mem_unmap(address, bytes); }), "cuMemUnmap");
}

bool CudaDevice::check(CudaResult result, const char* function) const {
  if (result == cuda::success) {
    return true;
  }
  return cuda_fail(
      std::string(function) + " failed on CUDA device " + std::to_string(ordinal) + " with " + driver.name(result),
      result);
}

int CudaDevice::attribute(int which) const {
  int value = 0;
  return driver.device_get_attribute(&value, which, id) == cuda::success ? value : 0;
}

std::uint64_t CudaDevice::total_bytes() const {
  std::size_t bytes = 0;
  return driver.device_total_mem(&bytes, id) == cuda::success ? bytes : 0;
}

std::uint64_t CudaDevice::free_bytes() const {
  const CudaScope scope(*this);
  std::size_t free = 0;
  std::size_t total = 0;
  return scope.ok() && driver.mem_get_info(&free, &total) == cuda::success ? free : 0;
}

std::string CudaDevice::uuid() const {
  std::array<unsigned char, 16> bytes{};
  std::string text;
  if (driver.device_get_uuid(bytes.data(), id) == cuda::success) {
    for (const unsigned char byte : bytes) {
      constexpr const char* digits = "0123456789abcdef";
      text += {digits[byte >> 4], digits[byte & 15]};
    }
  }
  return text;
}

int CudaDevice::numa_node() const {
  char bus[32] = {};
  if (driver.device_get_pci_bus_id(bus, sizeof bus, id) != cuda::success) {
    return -1;
  }
  std::string name(bus);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char letter) { return std::tolower(letter); });
  int node = -1;
  if (std::FILE* file = std::fopen(("/sys/bus/pci/devices/" + name + "/numa_node").c_str(), "re")) {
    char text[32] = {};
    if (std::fgets(text, sizeof text, file) != nullptr) {
      char* end = nullptr;
      const long value = std::strtol(text, &end, 10);
      node = end != text ? static_cast<int>(value) : -1;
    }
    std::fclose(file);
  }
  return node;
}

CudaScope::CudaScope(const CudaDevice& device) : device_(device), mode_(cuda::capture_relaxed) {
  if (cuda_forked()) {
    cuda_fail("CUDA cannot be used in a forked child; start the process with the \"spawn\" method");
    return;
  }
  const CudaDriver& driver = device.driver;
  CudaContext current = nullptr;
  if (driver.ctx_get_current(&current) != cuda::success || current != device.context) {
    if (!device.check(driver.ctx_push_current(device.context), "cuCtxPushCurrent")) {
      return;
    }
    pushed_ = true;
  }
  ok_ = device.check(driver.thread_exchange_capture_mode(&mode_), "cuThreadExchangeStreamCaptureMode");
}

CudaScope::~CudaScope() {
  if (ok_) {
    device_.driver.thread_exchange_capture_mode(&mode_);
  }
  if (pushed_) {
    CudaContext popped = nullptr;
    device_.driver.ctx_pop_current(&popped);
  }
}

}  // namespace lms

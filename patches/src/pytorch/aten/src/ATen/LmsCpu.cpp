#include <ATen/LmsCpu.h>
#include <ATen/LmsCpuAllocator.h>
#include <ATen/LmsDevices.h>
#include <ATen/LmsFailures.h>
#include <ATen/LmsObserver.h>
#include <ATen/lms/pager.h>

#include <mutex>

namespace {

using lms_torch::cpu_paging;

std::mutex& switching() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

}  // namespace

lms_status lms_torch_cpu_enable(const lms_options* options, uint64_t min_size) {
  const std::lock_guard<std::mutex> guard(switching());
  lms_pager* handle = lms_torch_cpu_pager();
  const lms_status status = handle == nullptr ? lms_create(options, &handle) : lms_configure(handle, options);
  if (status != LMS_OK) {
    return status;
  }
  auto* pager = reinterpret_cast<lms::Pager*>(handle);
  if (cpu_paging.pager.load() == nullptr) {
    lms_torch::Device device;
    device.pager = pager;
    if (!lms_torch::add_device(device)) {
      return lms_fail(LMS_UNSUPPORTED, "too many devices use LMS");
    }
    cpu_paging.pager.store(pager, std::memory_order_release);
  }
  lms_torch::options_changed();
  cpu_paging.min_size.store(min_size, std::memory_order_relaxed);
  if (!cpu_paging.enabled.load()) {
    const lms_status observed = lms_torch::start_observing();
    if (observed != LMS_OK) {
      return observed;
    }
    lms_torch::put_cpu_allocator_in_place();
    cpu_paging.enabled.store(true);
  }
  return LMS_OK;
}

lms_status lms_torch_cpu_disable(void) {
  const std::lock_guard<std::mutex> guard(switching());
  if (!cpu_paging.enabled.load(std::memory_order_relaxed)) {
    return LMS_OK;
  }
  const lms_status status = lms_restore_all(lms_torch_cpu_pager());
  if (status != LMS_OK) {
    return status;
  }
  cpu_paging.enabled.store(false);
  lms_torch::stop_observing();
  lms_shutdown(lms_torch_cpu_pager());
  return LMS_OK;
}

int lms_torch_cpu_enabled(void) { return cpu_paging.enabled.load() ? 1 : 0; }

uint64_t lms_torch_cpu_min_size(void) { return cpu_paging.min_size.load(std::memory_order_relaxed); }

lms_pager* lms_torch_cpu_pager(void) {
  return reinterpret_cast<lms_pager*>(cpu_paging.pager.load(std::memory_order_acquire));
}

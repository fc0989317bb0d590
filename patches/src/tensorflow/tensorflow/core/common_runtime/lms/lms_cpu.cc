#include "tensorflow/core/common_runtime/lms/lms_cpu.h"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/lms/lms_pagers.h"
#include "tensorflow/core/common_runtime/lms/lms_request.h"
#include "tensorflow/core/common_runtime/lms/lms_tensorflow.h"
#include "tensorflow/core/common_runtime/lms/pager/pager.h"
#include "tensorflow/core/util/env_var.h"

namespace lms_tensorflow {
namespace {

constexpr std::uint64_t what_there_is = UINT64_MAX;  // a requested limit
constexpr std::uint64_t least_by_default = std::uint64_t{64} << 10;  // bytes of a tensor that is paged

std::mutex& switching() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

Memory& memory() {
  static Memory& all = *new Memory;
  return all;
}

// What follows needs switching().

bool follows_request = false;  // was enabled as the program requested, and follows that
bool lacks_limit = false;  // what the program requested had no effect
std::atomic<bool> without_effect{false};  // the same, and nobody was told yet

// Newer releases have another type of 64 bits.
template <typename Result, typename Name, typename Integer>
Integer integer_of(Result (*)(Name, Integer, Integer*));

// The bytes that BFC may take on the CPU; 0 where the CPU's allocator is another, or has no limit of its own.
std::uint64_t bfc_limit() {
  bool uses_bfc = false;
  decltype(integer_of(&tensorflow::ReadInt64FromEnvVar)) megabytes = 0;
  if (!tensorflow::ReadBoolFromEnvVar("TF_CPU_ALLOCATOR_USE_BFC", false, &uses_bfc).ok() || !uses_bfc ||
      !tensorflow::ReadInt64FromEnvVar("TF_CPU_BFC_MEM_LIMIT_IN_MB", 0, &megabytes).ok() || megabytes <= 0) {
    return 0;
  }
  return static_cast<std::uint64_t>(megabytes) << 20;
}

bool has_gpu() {
  tensorflow::DeviceFactory* factory = tensorflow::DeviceFactory::GetFactory("GPU");
  std::vector<std::string> found;
  return factory != nullptr && factory->ListPhysicalDevices(&found).ok() && !found.empty();
}

lms::Status last_failure(lms_status status) {
  return status == LMS_OK ? lms::Status() : lms::Status(status, lms_last_error());
}

constexpr const char* no_limit =
    "there is no GPU, and the CPU has no limit: set TF_CPU_ALLOCATOR_USE_BFC=1 and TF_CPU_BFC_MEM_LIMIT_IN_MB before "
    "TensorFlow is imported, or call tf.config.experimental.set_lms_limit or tf.lms.enable('cpu', limit=...)";

lms_status enable(const lms_options* options, std::uint64_t min_size) {
  lms_pager* handle = lms_tensorflow_cpu_pager();
  const lms_status status = handle == nullptr ? lms_create(options, &handle) : lms_configure(handle, options);
  if (status != LMS_OK) {
    return status;
  }
  auto* pager = reinterpret_cast<lms::Pager*>(handle);
  if (memory().pager.load() == nullptr) {
    if (!add_pager(pager)) {
      lms_shutdown(handle);
      return lms_fail(LMS_UNSUPPORTED, "too many devices use LMS");
    }
    memory().pager.store(pager, std::memory_order_release);
  }
  memory().min_size.store(min_size, std::memory_order_relaxed);
  memory().enabled.store(true, std::memory_order_release);
  follows_request = lacks_limit = false;
  return LMS_OK;
}

lms_status disable() {
  lacks_limit = false;
  if (!memory().enabled.load()) {
    return LMS_OK;
  }
  const lms_status status = lms_restore_all(lms_tensorflow_cpu_pager());
  if (status != LMS_OK) {
    return status;
  }
  memory().enabled.store(false);
  follows_request = false;
  lms_shutdown(lms_tensorflow_cpu_pager());
  return LMS_OK;
}

lms::Status enable_within(std::uint64_t bytes) {
  lms_options options = {};
  options.struct_size = sizeof(options);
  limit_as_requested(bytes, &options);
  options.limit_kind = bytes == what_there_is ? LMS_LIMIT_AUTO : LMS_LIMIT_MANAGED;
  const lms_status status = enable(&options, least_by_default);
  follows_request = status == LMS_OK || follows_request;
  return last_failure(status);
}

lms::Status enable_as_requested() {
  if (memory().enabled.load()) {
    return {};
  }
  const std::uint64_t stock = bfc_limit();
  const bool gpu = has_gpu();
  // On a machine with a GPU the requested limit is the GPU's.
  const std::uint64_t bytes = !gpu && requested_limit() != 0 ? requested_limit() : stock;
  if (bytes == 0) {
    lacks_limit = !gpu;
    without_effect.store(without_effect.load() || lacks_limit);
    return {};
  }
  return enable_within(bytes);
}

}  // namespace

const Memory& cpu_memory() { return memory(); }

lms::Status enable_cpu_as_requested() {
  const std::lock_guard<std::mutex> guard(switching());
  return enable_as_requested();
}

lms::Status disable_cpu_as_requested() {
  const std::lock_guard<std::mutex> guard(switching());
  return follows_request || lacks_limit ? last_failure(disable()) : lms::Status();
}

lms::Status limit_cpu_as_requested() {
  const std::lock_guard<std::mutex> guard(switching());
  if (!follows_request || has_gpu()) {
    return lacks_limit ? enable_as_requested() : lms::Status();
  }
  const std::uint64_t bytes = requested_limit() != 0 ? requested_limit() : bfc_limit();
  if (bytes == 0) {
    return lms::Status(LMS_UNSUPPORTED,
                       "0 is the limit of TensorFlow's own allocator, and that has none here: give another limit, or "
                       "disable LMS with tf.config.experimental.set_lms_enabled(False)");
  }
  if (bytes == what_there_is) {
    return enable_within(bytes);
  }
  lms::Pager* pager = memory().pager.load();
  const std::uint64_t earlier = pager->limit();
  lms::Status status = pager->set_limit(bytes);
  if (!status.ok()) {
    static_cast<void>(pager->set_limit(earlier));  // what is resident is no more than before
  }
  return status;
}

}  // namespace lms_tensorflow

lms_status lms_tensorflow_cpu_enable(const lms_options* options, uint64_t min_size) {
  using namespace lms_tensorflow;  // NOLINT(google-build-using-namespace): this file's own
  if (min_size == 0) {
    return lms_fail(LMS_INVALID_ARGUMENT, "the least size of a tensor that is paged must be at least 1 byte");
  }
  const std::lock_guard<std::mutex> guard(switching());
  return enable(options, min_size);
}

lms_status lms_tensorflow_cpu_disable(void) {
  const std::lock_guard<std::mutex> guard(lms_tensorflow::switching());
  return lms_tensorflow::disable();
}

const char* lms_tensorflow_without_effect(void) {
  return lms_tensorflow::without_effect.exchange(false) ? lms_tensorflow::no_limit : nullptr;
}

int lms_tensorflow_cpu_enabled(void) { return lms_tensorflow::memory().enabled.load() ? 1 : 0; }

uint64_t lms_tensorflow_cpu_min_size(void) { return lms_tensorflow::memory().min_size.load(std::memory_order_relaxed); }

lms_pager* lms_tensorflow_cpu_pager(void) {
  return reinterpret_cast<lms_pager*>(lms_tensorflow::memory().pager.load(std::memory_order_acquire));
}

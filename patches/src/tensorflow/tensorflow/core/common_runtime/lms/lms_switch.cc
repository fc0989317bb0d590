// How the program switches LMS on and off, and limits it, for all devices at once.
#include <cstdint>
#include <mutex>

#include "tensorflow/core/common_runtime/lms/lms_cpu.h"
#include "tensorflow/core/common_runtime/lms/lms_gpu.h"
#include "tensorflow/core/common_runtime/lms/lms_request.h"
#include "tensorflow/core/common_runtime/lms/lms_tensorflow.h"
#include "tensorflow/core/common_runtime/lms/pager/status.h"

namespace lms_tensorflow {
namespace {

lms_status reported(const lms::Status& status) {
  return status.ok() ? LMS_OK : lms_fail(status.code, status.message.c_str());
}

// All of them, or none.
lms::Status enable_as_requested() {
  lms::Status status = take_over_gpus != nullptr ? take_over_gpus() : lms::Status();  // the one that refuses most often
  const bool was_enabled = lms_tensorflow_cpu_enabled() != 0;
  if (status.ok()) {
    status = enable_cpu_as_requested();
  }
  if (status.ok() && enable_gpus_as_requested != nullptr) {
    status = enable_gpus_as_requested();
    if (!status.ok() && !was_enabled) {
      static_cast<void>(lms_tensorflow_cpu_disable());
    }
  }
  return status;
}

lms::Status disable_as_requested() {
  lms::Status status = disable_cpu_as_requested();
  if (status.ok() && disable_gpus != nullptr) {
    status = disable_gpus();
  }
  return status;
}

}  // namespace
}  // namespace lms_tensorflow

lms_status lms_tensorflow_set_enabled(int enabled) {
  using namespace lms_tensorflow;  // NOLINT(google-build-using-namespace): this file's own
  const lms::Status status = enabled != 0 ? enable_as_requested() : disable_as_requested();
  if (status.ok()) {
    decide(enabled != 0);
  }
  return reported(status);
}

int lms_tensorflow_enabled(void) { return lms_tensorflow::decision(); }

lms_status lms_tensorflow_set_limit(uint64_t bytes) {
  using namespace lms_tensorflow;  // NOLINT(google-build-using-namespace): this file's own
  static std::mutex& lock = *new std::mutex;
  const std::lock_guard<std::mutex> guard(lock);
  const std::uint64_t earlier = request_limit(bytes);
  lms::Status status = limit_cpu_as_requested();
  if (status.ok() && limit_gpus_as_requested != nullptr) {
    status = limit_gpus_as_requested();
  }
  if (!status.ok()) {
    request_limit(earlier);
  }
  return reported(status);
}

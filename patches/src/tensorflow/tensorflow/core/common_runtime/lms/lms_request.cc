#include "tensorflow/core/common_runtime/lms/lms_request.h"

#include <atomic>
#include <limits>
#include <mutex>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/lms/lms_gpu.h"
#include "tensorflow/core/common_runtime/lms/lms_tensorflow.h"
#include "tensorflow/core/common_runtime/lms/pager/pager.h"
#include "tensorflow/core/util/env_var.h"

namespace lms_tensorflow {
namespace {

constexpr int undecided = -1;

std::atomic<int> decision{undecided};
std::atomic<std::uint64_t> limit{0};
constexpr std::uint64_t cpu_min_size = std::uint64_t{64} << 10;
std::atomic<bool> cpu_is_ours{false};  // was enabled here, and follows the limit and the decision

std::mutex& switching() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

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

lms::Status no_limit() {
  return lms::Status(LMS_UNSUPPORTED,
                     "there is no GPU, and the CPU has no limit: set TF_CPU_ALLOCATOR_USE_BFC=1 and "
                     "TF_CPU_BFC_MEM_LIMIT_IN_MB before TensorFlow is imported, or call "
                     "tf.config.experimental.set_lms_limit or tf.lms.enable('cpu', limit=...)");
}

lms::Status enable_cpu(std::uint64_t bytes) {
  lms_options options = {};
  options.struct_size = sizeof(options);
  options.limit = bytes;
  const lms_status status = lms_tensorflow_cpu_enable(&options, cpu_min_size);
  cpu_is_ours.store(status == LMS_OK);
  return last_failure(status);
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

}  // namespace

bool asks_for_lms(const tensorflow::ConfigProto& config) {
  const google::protobuf::Message& experimental = config.gpu_options().experimental();
  const google::protobuf::Reflection* reflection = experimental.GetReflection();
  // A full build knows the field.
  const google::protobuf::FieldDescriptor* field = experimental.GetDescriptor()->FindFieldByNumber(lms_enabled_field);
  if (field != nullptr) {
    return reflection->GetBool(experimental, field);
  }
  const google::protobuf::UnknownFieldSet& unknown = reflection->GetUnknownFields(experimental);
  bool asked = false;  // the last one counts
  for (int index = 0; index < unknown.field_count(); ++index) {
    const google::protobuf::UnknownField& found = unknown.field(index);
    if (found.number() == lms_enabled_field && found.type() == google::protobuf::UnknownField::TYPE_VARINT) {
      asked = found.varint() != 0;
    }
  }
  return asked;
}

lms::Status wanted(const tensorflow::ConfigProto& config, bool* out) {
  const bool asked = asks_for_lms(config);
  const int decided = decision.load();
  if (asked && decided == 0) {
    return lms::Status(LMS_INVALID_ARGUMENT,
                       "the session's gpu_options.experimental.lms_enabled is true, but "
                       "tf.config.experimental.set_lms_enabled(False) was called: leave one of them out");
  }
  *out = asked || decided == 1;
  return {};
}

std::uint64_t requested_limit() { return limit.load(); }

lms::Status enable_cpu_as_requested() {
  const std::lock_guard<std::mutex> guard(switching());
  if (lms_tensorflow_cpu_enabled() != 0) {
    return {};
  }
  const std::uint64_t stock = bfc_limit();
  const bool gpu = has_gpu();
  // On a machine with a GPU the requested limit is the GPU's.
  const std::uint64_t bytes = !gpu && requested_limit() != 0 ? requested_limit() : stock;
  if (bytes != 0) {
    return enable_cpu(bytes);
  }
  if (gpu) {
    return {};
  }
  return no_limit();
}

void cpu_was_switched() { cpu_is_ours.store(false); }

}  // namespace lms_tensorflow

lms_status lms_tensorflow_set_enabled(int enabled) {
  using namespace lms_tensorflow;
  lms::Status status;
  if (enabled != 0) {
    status = enable_as_requested();
  } else {
    if (cpu_is_ours.load()) {
      status = last_failure(lms_tensorflow_cpu_disable());
    }
    if (status.ok() && disable_gpus != nullptr) {
      status = disable_gpus();
    }
  }
  if (!status.ok()) {
    return lms_fail(status.code, status.message.c_str());
  }
  decision.store(enabled != 0 ? 1 : 0);
  return LMS_OK;
}

int lms_tensorflow_enabled(void) { return lms_tensorflow::decision.load(); }

lms_status lms_tensorflow_set_limit(uint64_t bytes) {
  using namespace lms_tensorflow;
  const std::lock_guard<std::mutex> guard(switching());
  if (cpu_is_ours.load() && lms_tensorflow_cpu_enabled() != 0 && !has_gpu()) {
    const std::uint64_t most = bytes != 0 ? bytes : bfc_limit();
    if (most == 0) {
      const lms::Status status = no_limit();
      return lms_fail(status.code, status.message.c_str());
    }
    auto* pager = reinterpret_cast<lms::Pager*>(lms_tensorflow_cpu_pager());
    const std::uint64_t earlier = pager->limit();
    const lms::Status status = pager->set_limit(most);
    if (!status.ok()) {
      static_cast<void>(pager->set_limit(earlier));  // what is resident is no more than before
      return lms_fail(status.code, status.message.c_str());
    }
  }
  const std::uint64_t earlier_limit = limit.exchange(bytes);
  const lms::Status status = limit_gpus_as_requested != nullptr ? limit_gpus_as_requested() : lms::Status();
  if (!status.ok()) {
    limit.store(earlier_limit);
    return lms_fail(status.code, status.message.c_str());
  }
  return LMS_OK;
}

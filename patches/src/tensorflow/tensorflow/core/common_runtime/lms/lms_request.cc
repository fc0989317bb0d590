#include "tensorflow/core/common_runtime/lms/lms_request.h"

#include <atomic>
#include <cstring>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"
#include "tensorflow/core/common_runtime/lms/lms_tensorflow.h"

namespace lms_tensorflow {
namespace {

std::atomic<int> decided_by_program{-1};
std::atomic<std::uint64_t> limit{0};
std::atomic<const char*> share{nullptr};

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
  const int decided = decision();
  if (asked && decided == 0) {
    return lms::Status(LMS_INVALID_ARGUMENT,
                       "the session's gpu_options.experimental.lms_enabled is true, but "
                       "tf.config.experimental.set_lms_enabled(False) was called: leave one of them out");
  }
  *out = asked || decided == 1;
  return {};
}

int decision() { return decided_by_program.load(); }
void decide(bool enabled) { decided_by_program.store(enabled ? 1 : 0); }

std::uint64_t requested_limit() { return limit.load(); }
std::uint64_t request_limit(std::uint64_t bytes) { return limit.exchange(bytes); }

void limit_as_requested(std::uint64_t bytes, lms_options* options) {
  options->limit = bytes;
  options->share = share.load();
}

}  // namespace lms_tensorflow

void lms_tensorflow_set_share(const char* terms) {
  // Never freed: another thread may be about to use the one before.
  lms_tensorflow::share.store(terms != nullptr ? strdup(terms) : nullptr);
}

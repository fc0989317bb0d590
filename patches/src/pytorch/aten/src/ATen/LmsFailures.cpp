#include <ATen/LmsFailures.h>
#include <ATen/LmsIsDefined.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <string>
#include <type_traits>
#include <utility>

namespace c10 {
class OutOfMemoryError;  // from some release on; where the headers do not define it it is never used
}  // namespace c10

namespace lms_torch {
namespace {

// What went wrong in the observer is reported by the thread's next allocation, unless LMS was configured otherwise
// since. Until then a fault handler keeps the data right; a device without one is given no work.
struct PendingFailure {
  lms::Status status;
  const KnownDevice* device = nullptr;
  uint64_t configuration = 0;
  uint64_t limit = 0;
};
thread_local PendingFailure pending;
std::atomic<uint64_t> configuration{0};  // counts the calls that enabled LMS or changed its options

// An operation that lacks data.
struct Lacking {
  bool is = false;
  size_t place = 0;
  lms::Status status;
};
thread_local Lacking lacking;
std::atomic<uint64_t> lacking_threads{0};  // spares all others a look at their own

template <typename Error>
[[noreturn]] void throw_error(const std::string& sentence, std::true_type /*is defined*/) {
  throw Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, "LMS: " + sentence);
}
template <typename Error>
[[noreturn]] void throw_error(const std::string& sentence, std::false_type /*is defined*/) {
  throw_error<c10::Error>(sentence, std::true_type());
}

}  // namespace

void throw_status(const lms::Status& status) {
  if (status.code == LMS_OUT_OF_MEMORY) {
    throw_error<c10::OutOfMemoryError>(status.message, IsDefined<c10::OutOfMemoryError>());
  }
  throw_sentence(status.message);
}

void throw_sentence(const std::string& sentence) { throw_error<c10::Error>(sentence, std::true_type()); }

void keep_failure(const KnownDevice* device, lms::Status status) {
  pending = PendingFailure{std::move(status), device, configuration.load(), device->pager()->limit()};
}

void begin_lacking(size_t place) {
  if (!lacking.is) {
    lacking = Lacking{true, place, pending.status};
    lacking_threads.fetch_add(1);
  }
}

void end_lacking(size_t place) {
  if (is_lacking() && lacking.place == place) {
    lacking = Lacking();
    lacking_threads.fetch_sub(1);
  }
}

bool is_lacking() { return lacking_threads.load(std::memory_order_relaxed) > 0 && lacking.is; }

void throw_lacking() {
  if (is_lacking()) {
    pending = PendingFailure();
    throw_status(lacking.status);
  }
}

const lms::Status& pending_failure() { return pending.status; }

void drop_store_failure() {
  const lms_status code = pending.status.code;
  if ((code == LMS_STORE_FAILED || code == LMS_READ_FAILED) && pending.device->notices_writes) {
    pending = PendingFailure();
  }
}

void throw_pending_failure() {
  if (pending.status.ok()) {
    return;
  }
  PendingFailure failure;
  std::swap(failure, pending);
  if (failure.configuration == configuration.load() && failure.limit == failure.device->pager()->limit()) {
    throw_status(failure.status);
  }
}

void options_changed() { configuration.fetch_add(1); }

}  // namespace lms_torch

// Failures of the pager as PyTorch's exceptions, those of the observer included: it cannot make its operation fail, so
// what went wrong there is kept until the thread allocates, or, where the operation lacks data, until it is about to
// give a device work. All functions are thread-safe.
#ifndef ATEN_LMS_FAILURES_H
#define ATEN_LMS_FAILURES_H

#include <ATen/LmsDevices.h>
#include <ATen/lms/pager.h>

#include <cstddef>
#include <string>

namespace lms_torch {

[[noreturn]] LMS_API void throw_status(const lms::Status& status);

// For what is no failure of the pager: throws a c10::Error with the sentence.
[[noreturn]] void throw_sentence(const std::string& sentence);

// Keeps a failure for the calling thread, in place of an earlier one.
void keep_failure(const KnownDevice* device, lms::Status status);

// From now until end_lacking() with the same place the calling thread's operation lacks the data that it was to use,
// and what was kept last says why. The outermost such operation counts.
void begin_lacking(size_t place);
void end_lacking(size_t place);

// Whether the calling thread is in such an operation.
bool is_lacking();

// Throws the reason if it is.
LMS_API void throw_lacking();

// The one that was kept for the calling thread; ok when there is none.
const lms::Status& pending_failure();

// Drops the calling thread's failure if it is the store's, on a device that serves faults: once an operation has had
// its data in spite of that, the next request for room says so.
void drop_store_failure();

// Throws what was kept for the calling thread, unless LMS was reconfigured since.
LMS_API void throw_pending_failure();

// LMS was enabled, or its options changed.
LMS_API void options_changed();

}  // namespace lms_torch
#endif  // ATEN_LMS_FAILURES_H

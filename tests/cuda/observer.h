// Stands for LmsObserver.cpp, which needs all of libtorch, and for LmsFailures.cpp: programs that include this announce
// their operations themselves. Included once in a program.
#ifndef LMS_TESTS_OBSERVER_H
#define LMS_TESTS_OBSERVER_H

#include <ATen/LmsFailures.h>
#include <ATen/LmsObserver.h>
#include <ATen/cuda/LmsStock.h>
#include <ATen/lms/pager.h>
#include <c10/util/Exception.h>

namespace lms_torch {

namespace {
// Not every release has a class for want of memory.
struct NoMemory : c10::Error {
  using c10::Error::Error;
};

// Whether there was too little memory, for the pager or for the stock allocator.
inline bool is_no_memory(const c10::Error& error) {
  return dynamic_cast<const NoMemory*>(&error) != nullptr || lms_cuda::stock::is_out_of_memory(error);
}
}  // namespace

lms_status start_observing() { return LMS_OK; }
void stop_observing() {}
void throw_pending_failure() {}
void throw_lacking() {}
void options_changed() {}
void throw_status(const lms::Status& status) {
  const c10::SourceLocation here = {__func__, __FILE__, __LINE__};
  if (status.code == LMS_OUT_OF_MEMORY) {
    throw NoMemory(here, "LMS: " + status.message);
  }
  throw c10::Error(here, "LMS: " + status.message);
}

}  // namespace lms_torch
#endif  // LMS_TESTS_OBSERVER_H

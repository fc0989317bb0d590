// The allocator of CPU tensors: a decorator that gives large requests to the pager, and all else to the stock one.
#ifndef ATEN_LMS_CPU_ALLOCATOR_H
#define ATEN_LMS_CPU_ALLOCATOR_H

#include <ATen/lms/pager.h>

#include <atomic>
#include <cstdint>

namespace lms_torch {

// Which requests the pager gets.
struct CpuPaging {
  std::atomic<lms::Pager*> pager{nullptr};  // set once, before LMS is first enabled
  std::atomic<bool> enabled{false};
  std::atomic<uint64_t> min_size{0};  // bytes
};
extern CpuPaging cpu_paging;

// Puts the allocator in front of the stock one, when it is first called. Calls must not overlap. It stays there:
// libraries give the memory that they took back to whichever allocator is in place then.
void put_cpu_allocator_in_place();

}  // namespace lms_torch
#endif  // ATEN_LMS_CPU_ALLOCATOR_H

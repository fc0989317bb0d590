#include <ATen/LmsCpuAllocator.h>
#include <ATen/LmsFailures.h>
#include <ATen/LmsIsDefined.h>
#include <ATen/lms/override.h>
#include <ATen/lms/pager.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

// From some release on; where the headers do not define it it is never used.
namespace c10 {
class ProfiledCPUMemoryReporter;
ProfiledCPUMemoryReporter& profiledCPUMemoryReporter();
}  // namespace c10

namespace lms_torch {

CpuPaging cpu_paging;

namespace {

void release_block(void* address);

// What the framework's profiler is told of.
template <typename Reporter>
void report_new(Reporter& (*reporter)(), void* address, size_t bytes, std::true_type /*is defined*/) {
  reporter().New(address, bytes);
}
template <typename Reporter>
void report_new(Reporter& (* /*reporter*/)(), void* /*address*/, size_t /*bytes*/, std::false_type /*is defined*/) {}

template <typename Reporter>
void report_deleted(Reporter& (*reporter)(), void* address, std::true_type /*is defined*/) {
  reporter().Delete(address);
}
template <typename Reporter>
void report_deleted(Reporter& (* /*reporter*/)(), void* /*address*/, std::false_type /*is defined*/) {}

using HasReporter = IsDefined<c10::ProfiledCPUMemoryReporter>;

// Large requests go to the pager, all else to the allocator that was there before.
class CpuMemory {
 public:
  c10::DataPtr allocate(size_t bytes) const {
    if (bytes < cpu_paging.min_size.load(std::memory_order_relaxed) || bytes == 0 ||
        !cpu_paging.enabled.load(std::memory_order_relaxed)) {
      return stock_->allocate(bytes);
    }
    throw_pending_failure();
    void* address = nullptr;
    const lms::Status status = cpu_paging.pager.load(std::memory_order_acquire)->allocate(bytes, &address);
    if (!status.ok()) {
      throw_status(status);
    }
    report_new(&c10::profiledCPUMemoryReporter, address, bytes, HasReporter());
    return {address, address, &release_block, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }

  void set_stock(c10::Allocator* stock) { stock_ = stock; }
  c10::Allocator* stock() const { return stock_; }

 private:
  c10::Allocator* stock_ = nullptr;
};

// Never destroyed: storages refer to it until the process ends.
CpuMemory& cpu_memory() {
  static CpuMemory& memory = *new CpuMemory;
  return memory;
}

class CpuAllocatorBase : public c10::Allocator {
 public:
  // Serves both kinds of memory.
  c10::DeleterFnPtr raw_deleter() const override { return &release_block; }
};

LMS_DEFINE_OVERRIDE(allocate, cpu_memory().)
LMS_DEFINE_OVERRIDE(copy_data, cpu_memory().)

using CpuAllocator = lms::Chain<CpuAllocatorBase, lms_override_allocate<c10::Allocator>::Link,
                                lms_override_copy_data<c10::Allocator>::Link>::type;

c10::Allocator& cpu_allocator() {
  static CpuAllocator& allocator = *new CpuAllocator;
  return allocator;
}

void release_block(void* address) {
  lms::Pager* pager = cpu_paging.pager.load(std::memory_order_acquire);
  if (pager->owns(address)) {
    report_deleted(&c10::profiledCPUMemoryReporter, address, HasReporter());
    pager->free(address);
  } else {
    cpu_memory().stock()->raw_deleter()(address);
  }
}

// Above the priority of every allocator that is registered statically; equal priorities replace each other.
constexpr uint8_t allocator_priority = 255;

// Before 1.6 there are no priorities.
template <typename... Priority>
void set_allocator(void (*set)(c10::DeviceType, c10::Allocator*, Priority...), c10::Allocator* allocator) {
  set(c10::DeviceType::CPU, allocator, Priority{allocator_priority}...);
}

}  // namespace

void put_cpu_allocator_in_place() {
  if (cpu_memory().stock() == nullptr) {
    cpu_memory().set_stock(c10::GetCPUAllocator());
    set_allocator(&c10::SetAllocator, &cpu_allocator());
  }
}

}  // namespace lms_torch

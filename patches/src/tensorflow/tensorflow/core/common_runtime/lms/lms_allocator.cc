#include "tensorflow/core/common_runtime/lms/lms_allocator.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "tensorflow/core/common_runtime/lms/lms_pagers.h"
#include "tensorflow/core/common_runtime/lms/pager/override.h"
#include "tensorflow/core/platform/logging.h"

namespace lms_tensorflow {
namespace {

using tensorflow::AllocationAttributes;
using tensorflow::Allocator;

// Has an allocator fail at once instead of waiting. The member had the opposite meaning and name before 2.3.
template <typename Attributes>
auto do_not_wait(Attributes* attributes, int /*preferred*/) -> decltype(attributes->retry_on_failure, void()) {
  attributes->retry_on_failure = false;
}
template <typename Attributes>
auto do_not_wait(Attributes* attributes, long /*otherwise*/) -> decltype(attributes->no_retry_on_failure, void()) {
  attributes->no_retry_on_failure = true;
}

// Why the thread's last request failed. TensorFlow's own sentence has no room for it but the allocator's name, for
// which it asks the same thread at once.
thread_local std::string refusal;

class AllocatorBase : public Allocator {
 public:
  std::string Name() override {
    std::string name = "lms_" + stock_->Name();
    if (!refusal.empty()) {
      name += " (LMS: " + refusal + ")";
      refusal.clear();
    }
    return name;
  }

  void* AllocateRaw(size_t alignment, size_t bytes) override {
    return AllocateRaw(alignment, bytes, AllocationAttributes());
  }

  void* AllocateRaw(size_t alignment, size_t bytes, const AllocationAttributes& attributes) override {
    if (!memory_->enabled.load(std::memory_order_acquire)) {
      return stock_->AllocateRaw(alignment, bytes, attributes);
    }
    lms::Pager* pager = memory_->pager.load(std::memory_order_relaxed);
    refusal.clear();
    if (bytes >= memory_->min_size.load(std::memory_order_relaxed) && alignment <= largest_alignment) {
      void* address = nullptr;
      const lms::Status status = pager->allocate(bytes, &address, memory_->stream);
      if (!status.ok()) {
        refusal = status.message;
        return nullptr;
      }
      return address;
    }
    if (!pager->backend().asynchronous()) {
      // What a BFC of the CPU may have is a number of its own, which paging out does not change.
      return stock_->AllocateRaw(alignment, bytes, attributes);
    }
    void* address = allocate_now(alignment, bytes, attributes);
    // An allocator that grows asks the device for more than a request takes.
    for (const std::uint64_t wanted : {std::max<std::uint64_t>(bytes, least_reclaim), UINT64_MAX}) {
      if (address != nullptr || bytes == 0) {
        return address;
      }
      const lms::Status status = pager->reclaim_for_others(wanted);
      if (!status.ok()) {
        LOG(ERROR) << "LMS: " << status.message;
      }
      address = allocate_now(alignment, bytes, attributes);
    }
    return address != nullptr ? address : stock_->AllocateRaw(alignment, bytes, attributes);
  }

  void DeallocateRaw(void* address) override {
    lms::Pager* pager = pager_of(address);
    if (pager != nullptr) {
      pager->free(address);
    } else {
      stock_->DeallocateRaw(address);
    }
  }

  bool TracksAllocationSizes() const override { return stock_->TracksAllocationSizes(); }

  // Of a block its whole pages are known, not how much of them was asked for.
  size_t RequestedSize(const void* address) const override {
    return in_block(address) ? block_bytes(address) : stock_->RequestedSize(address);
  }
  size_t AllocatedSize(const void* address) const override {
    return in_block(address) ? block_bytes(address) : stock_->AllocatedSize(address);
  }
  size_t AllocatedSizeSlow(const void* address) const override {
    return in_block(address) ? block_bytes(address) : stock_->AllocatedSizeSlow(address);
  }
  // 0: a block has no number.
  decltype(std::declval<const Allocator&>().AllocationId(nullptr)) AllocationId(const void* address) const override {
    return in_block(address) ? 0 : stock_->AllocationId(address);
  }

  void set(Allocator* stock, const Memory* memory) {
    stock_ = stock;
    memory_ = memory;
  }
  Allocator* stock() const { return stock_; }

 private:
  static constexpr size_t largest_alignment = 4096;  // of a page, at least
  static constexpr std::uint64_t least_reclaim = std::uint64_t{20} << 20;

  void* allocate_now(size_t alignment, size_t bytes, const AllocationAttributes& attributes) {
    AllocationAttributes once;
    once.allocation_will_be_logged = attributes.allocation_will_be_logged;
    once.freed_by_func = attributes.freed_by_func;
    do_not_wait(&once, 0);
    return stock_->AllocateRaw(alignment, bytes, once);
  }

  static bool in_block(const void* address) { return pager_of(address) != nullptr; }
  static size_t block_bytes(const void* address) {
    void* begin = nullptr;
    std::uint64_t bytes = 0;
    pager_of(address)->range(address, &begin, &bytes);
    return bytes;
  }

  Allocator* stock_ = nullptr;
  const Memory* memory_ = nullptr;
};

// Not all of them are in every release.
#define LMS_FORWARDED(apply)                                                            \
  apply(AllocatesOpaqueHandle) apply(GetStats) apply(ClearStats) apply(SetSafeFrontier) \
      apply(SetStreamAndPreallocateMemory) apply(GetMemoryType)
#define LMS_DEFINE_FORWARD(method) LMS_DEFINE_OVERRIDE(method, this->stock()->)
#define LMS_LINK(method) , lms_override_##method<Allocator>::Link

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"  // that a result must be used does not make another type
LMS_FORWARDED(LMS_DEFINE_FORWARD)
#pragma GCC diagnostic pop

class LmsAllocator final : public lms::Chain<AllocatorBase LMS_FORWARDED(LMS_LINK)>::type {};

}  // namespace

Allocator* decorated(Allocator* stock, const Memory* memory) {
  using Decorators = std::map<std::pair<Allocator*, const Memory*>, LmsAllocator*>;
  static std::mutex& lock = *new std::mutex;
  static Decorators& decorators = *new Decorators;
  const std::lock_guard<std::mutex> guard(lock);
  LmsAllocator*& found = decorators[{stock, memory}];
  if (found == nullptr) {
    found = new LmsAllocator;
    found->set(stock, memory);
  }
  return found;
}

}  // namespace lms_tensorflow

// Pinned host memory: the store that a CUDA device copies to and from without a detour, in a few large slabs, since
// pinning costs milliseconds a call. A slab lies on the NUMA node of the device. Where the system refuses to pin one it
// works all the same, more slowly, and a line on stderr says so once per process.
//
// A forked child gets no copy of the slabs: the device is its parent's, so it has no use for them, and a write in
// either process would give one of them another page than the one that the device copies to.
//
// On request it is memory that the driver can map at device addresses as well (CudaAway), page by page.
//
// Thread-safe as store.h says.
#ifndef LMS_PINNED_STORE_H
#define LMS_PINNED_STORE_H

#include <cstddef>
#include <memory>
#include <vector>

#include "../../store.h"
#include "cuda_device.h"

namespace lms {

// Memory near the device, zeroed, pinned if the system allows it.
class PinnedMemory {
 public:
  // Null with errno set when there is no memory.
  static std::unique_ptr<PinnedMemory> make(std::shared_ptr<CudaDevice> device, std::size_t bytes);

  // Memory that pages() names; null when the driver refuses.
  static std::unique_ptr<PinnedMemory> make_mappable(const std::shared_ptr<CudaDevice>& device, std::size_t bytes);

  PinnedMemory(std::shared_ptr<CudaDevice> device, char* base, std::size_t bytes, bool pinned);
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();

  char* base() const { return base_; }
  bool pinned() const { return pinned_; }
  const std::vector<CudaMemory>& pages() const { return pages_; }  // each of cuda_page_bytes; empty if not mappable

 private:
  const std::shared_ptr<CudaDevice> device_;
  char* const base_;
  const std::size_t bytes_;
  const bool pinned_;
  bool mappable_ = false;  // made of pages_, at an address range of the driver's
  std::vector<CudaMemory> pages_;
};

std::unique_ptr<Store> make_pinned_store(std::shared_ptr<CudaDevice> device, bool mappable);

// The pages that the slot begins with, or null when its memory cannot be mapped elsewhere.
const CudaMemory* pinned_pages(const Slot& slot);

}  // namespace lms
#endif  // LMS_PINNED_STORE_H

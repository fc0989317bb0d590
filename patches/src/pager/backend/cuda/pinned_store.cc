#include "pinned_store.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "cuda_chunks.h"

namespace lms {

namespace {

// The kernel's, from linux/mempolicy.h, which not every system has: rather this node than another, but no failure.
constexpr int pinned_prefer_node = 1;

// To pin memory takes 0.2 s per GiB and more (measured beside an H200), for which a page-out may have to wait.
constexpr std::uint64_t pinned_largest_segment = std::uint64_t{1} << 30;

void pinned_place(char* base, std::size_t bytes, int node) {
  constexpr std::size_t word_bits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, 1024 / word_bits> nodes = {};
  if (node < 0 || static_cast<std::size_t>(node) >= nodes.size() * word_bits) {
    return;  // unknown, or there is only one
  }
  nodes[static_cast<std::size_t>(node) / word_bits] = 1UL << (static_cast<std::size_t>(node) % word_bits);
  syscall(SYS_mbind, base, bytes, pinned_prefer_node, nodes.data(), nodes.size() * word_bits, 0);  // advice
}

void pinned_warn(CudaResult result) {
  static std::atomic<bool> warned{false};
  const bool is_lost = result >= cuda::first_of_lost && result <= cuda::last_of_lost;  // which others say
  if (!is_lost && !warned.exchange(true)) {
    const bool never = result == cuda::not_supported || result == cuda::not_permitted;
    std::fprintf(stderr, "LMS: host memory cannot be pinned, so copies to and from the device are slower: %s; %s\n",
                 cuda_failure().c_str(),
                 never ? "this machine's driver does not do that"
                       : "raise the limit on locked memory (ulimit -l) or the container's memory");
  }
}

class PinnedSegment final : public Segment {
 public:
  PinnedSegment(std::unique_ptr<PinnedMemory> memory, std::uint64_t bytes)
      : Segment(bytes), memory_(std::move(memory)) {}

  bool write(std::uint64_t offset, const char* from, std::size_t bytes) override {
    std::memcpy(memory_->base() + offset, from, bytes);
    return true;
  }

  bool read(std::uint64_t offset, char* to, std::size_t bytes) override {
    std::memcpy(to, memory_->base() + offset, bytes);
    return true;
  }

  char* at(std::uint64_t offset) override { return memory_->pinned() ? memory_->base() + offset : nullptr; }

  bool is_kept() const override { return memory_->pinned(); }

  const CudaMemory* pages(std::uint64_t offset) const {
    return memory_->pages().empty() ? nullptr : &memory_->pages()[offset / cuda_page_bytes];
  }

 private:
  const std::unique_ptr<PinnedMemory> memory_;
};

class PinnedStore final : public Store {
 public:
  PinnedStore(std::shared_ptr<CudaDevice> device, bool mappable)
      : Store(1), device_(std::move(device)), mappable_(mappable) {}

 protected:
  std::unique_ptr<Segment> grow(std::size_t /*place*/, std::uint64_t bytes) override {
    std::unique_ptr<PinnedMemory> memory = mappable_ ? PinnedMemory::make_mappable(device_, bytes) : nullptr;
    if (memory == nullptr) {
      memory = PinnedMemory::make(device_, bytes);
    }
    return memory != nullptr ? std::make_unique<PinnedSegment>(std::move(memory), bytes) : nullptr;
  }

  std::uint64_t largest_segment() const override { return pinned_largest_segment; }

  bool shared_by_fork() const override { return false; }

 private:
  const std::shared_ptr<CudaDevice> device_;
  const bool mappable_;
};

}  // namespace

std::unique_ptr<PinnedMemory> PinnedMemory::make(std::shared_ptr<CudaDevice> device, std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  char* base = static_cast<char*>(memory);
  // Both before the pages exist, which is when they are pinned.
  pinned_place(base, bytes, device->numa_node());
  madvise(base, bytes, MADV_HUGEPAGE);
  bool pinned = false;
  {
    const CudaScope scope(*device);
    pinned = scope.ok() && device->check(device->driver.mem_host_register(base, bytes, cuda::host_register_portable),
                                         "cuMemHostRegister");
  }
  auto made = std::make_unique<PinnedMemory>(std::move(device), base, bytes, pinned);
  if (!pinned) {
    pinned_warn(cuda_last_result());
  } else if (madvise(base, bytes, MADV_DONTFORK) != 0) {
    return nullptr;
  }
  return made;
}

std::unique_ptr<PinnedMemory> PinnedMemory::make_mappable(const std::shared_ptr<CudaDevice>& device,
                                                          std::size_t bytes) {
  const CudaScope scope(*device);
  const CudaDriver& driver = device->driver;
  const std::size_t whole = (bytes + cuda_page_bytes - 1) / cuda_page_bytes * cuda_page_bytes;
  CudaAddress base = 0;
  if (!scope.ok() ||
      !device->check(driver.mem_address_reserve(&base, whole, cuda_page_bytes, 0, 0), "cuMemAddressReserve")) {
    return nullptr;
  }
  auto made = std::make_unique<PinnedMemory>(device, reinterpret_cast<char*>(static_cast<std::uintptr_t>(base)), whole,
                                             /*pinned=*/true);
  cuda::AllocationProperties properties = {};
  properties.type = cuda::allocation_pinned;
  properties.location = cuda::Location{cuda::location_host_node, std::max(device->numa_node(), 0)};
  made->mappable_ = true;
  for (std::size_t offset = 0; offset < whole; offset += cuda_page_bytes) {
    CudaMemory page = 0;
    if (!device->check(driver.mem_create(&page, cuda_page_bytes, &properties, 0), "cuMemCreate")) {
      return nullptr;
    }
    if (!device->map(base + offset, cuda_page_bytes, page)) {
      driver.mem_release(page);
      return nullptr;
    }
    made->pages_.push_back(page);
  }
  // Of the host only the kind of place counts.
  const std::array<cuda::AccessDescription, 2> access = {
      {{{cuda::location_host_node, 0}, cuda::access_read_write},
       {{cuda::location_device, device->id}, cuda::access_read_write}}};
  return device->set_access(base, whole, access.data(), access.size()) ? std::move(made) : nullptr;
}

PinnedMemory::PinnedMemory(std::shared_ptr<CudaDevice> device, char* base, std::size_t bytes, bool pinned)
    : device_(std::move(device)), base_(base), bytes_(bytes), pinned_(pinned) {}

PinnedMemory::~PinnedMemory() {
  if (pinned_ && cuda_forked()) {
    return;  // a forked child does not have it, and something else may lie there by now
  }
  if (mappable_) {
    const CudaScope scope(*device_);
    if (scope.ok()) {
      const CudaAddress base = reinterpret_cast<std::uintptr_t>(base_);
      if (!pages_.empty()) {
        device_->unmap(base, pages_.size() * cuda_page_bytes);
      }
      for (const CudaMemory page : pages_) {
        device_->driver.mem_release(page);
      }
      device_->driver.mem_address_free(base, bytes_);
    }
    return;
  }
  if (pinned_) {
    const CudaScope scope(*device_);
    if (scope.ok()) {
      device_->driver.mem_host_unregister(base_);
    }
  }
  munmap(base_, bytes_);
}

std::unique_ptr<Store> make_pinned_store(std::shared_ptr<CudaDevice> device, bool mappable) {
  return std::make_unique<PinnedStore>(std::move(device), mappable);
}

const CudaMemory* pinned_pages(const Slot& slot) {
  const auto* segment = dynamic_cast<const PinnedSegment*>(slot.segment);
  return segment != nullptr ? segment->pages(slot.offset) : nullptr;
}

}  // namespace lms

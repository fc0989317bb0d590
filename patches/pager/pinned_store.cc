#include "pinned_store.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

namespace lms {

namespace {

// The kernel's, from linux/mempolicy.h, which not every system has: rather this node than another, but no failure.
constexpr int pinned_prefer_node = 1;

void pinned_place(char* base, std::size_t bytes, int node) {
  constexpr std::size_t word_bits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, 1024 / word_bits> nodes = {};
  if (node < 0 || static_cast<std::size_t>(node) >= nodes.size() * word_bits) {
    return;  // unknown, or there is only one
  }
  nodes[static_cast<std::size_t>(node) / word_bits] = 1UL << (static_cast<std::size_t>(node) % word_bits);
  syscall(SYS_mbind, base, bytes, pinned_prefer_node, nodes.data(), nodes.size() * word_bits, 0);  // advice
}

void pinned_warn(const std::string& reason) {
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true)) {
    std::fprintf(stderr,
                 "LMS: host memory cannot be pinned, so copies to and from the device are slower: %s; raise the limit "
                 "on locked memory (ulimit -l) or the container's memory\n",
                 reason.c_str());
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

 private:
  const std::unique_ptr<PinnedMemory> memory_;
};

class PinnedStore final : public Store {
 public:
  explicit PinnedStore(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  std::string failure(const char* action, int error_number) const override {
    return std::string("the host store in memory cannot be ") + action + ": " + std::strerror(error_number);
  }

 protected:
  std::unique_ptr<Segment> grow(std::uint64_t bytes) override {
    std::unique_ptr<PinnedMemory> memory = PinnedMemory::make(device_, bytes);
    return memory != nullptr ? std::make_unique<PinnedSegment>(std::move(memory), bytes) : nullptr;
  }

  bool shared_by_fork() const override { return false; }

 private:
  const std::shared_ptr<CudaDevice> device_;
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
    pinned_warn(cuda_failure());
  } else if (madvise(base, bytes, MADV_DONTFORK) != 0) {
    return nullptr;
  }
  return made;
}

PinnedMemory::PinnedMemory(std::shared_ptr<CudaDevice> device, char* base, std::size_t bytes, bool pinned)
    : device_(std::move(device)), base_(base), bytes_(bytes), pinned_(pinned) {}

PinnedMemory::~PinnedMemory() {
  if (pinned_ && cuda_forked()) {
    return;  // a forked child does not have it, and something else may lie there by now
  }
  if (pinned_) {
    const CudaScope scope(*device_);
    if (scope.ok()) {
      device_->driver.mem_host_unregister(base_);
    }
  }
  munmap(base_, bytes_);
}

std::unique_ptr<Store> make_pinned_store(std::shared_ptr<CudaDevice> device) {
  return std::make_unique<PinnedStore>(std::move(device));
}

}  // namespace lms

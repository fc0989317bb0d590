#include "host_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace lms {

namespace {

constexpr std::uint64_t host_most_address_space = 1ULL << 40;
constexpr std::uint64_t host_least_address_space = 1ULL << 30;

int host_protection(Access access) { return access == Access::read_only ? PROT_READ : PROT_READ | PROT_WRITE; }

class HostBackend final : public Backend {
 public:
  HostBackend(char* base, std::size_t span) : base_(base), span_(span) {}
  ~HostBackend() override { munmap(base_, span_); }

  std::size_t page_bytes() const override { return page_bytes_; }
  char* base() const override { return base_; }
  std::size_t span() const override { return span_; }
  bool serves_faults() const override { return true; }

  bool map(char* address, std::size_t bytes) override {
    return mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0;
  }

  bool unmap(char* address, std::size_t bytes) override {
    // A fresh mapping rather than mprotect + madvise: one call, and the kernel joins it with its neighbours again, which
    // keeps the number of mappings (vm.max_map_count) low.
    return mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
           MAP_FAILED;
  }

  bool protect(char* address, std::size_t bytes, Access access) override {
    return mprotect(address, bytes, host_protection(access)) == 0;
  }

  bool copy_out(const char* address, std::size_t bytes, const Slot& slot) override {
    return slot.segment->write(slot.offset, address, bytes);
  }

  bool copy_in(char* address, std::size_t bytes, const Slot& slot, Access access) override {
    // Filled aside and moved into place, so that another thread which reaches the block through a raw pointer either
    // faults or finds all of it.
    void* aside =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (aside == MAP_FAILED) {
      return false;
    }
    const bool filled = slot.segment->read(slot.offset, static_cast<char*>(aside), bytes);
    if (!filled || (access == Access::read_only && mprotect(aside, bytes, PROT_READ) != 0) ||
        mremap(aside, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address) == MAP_FAILED) {
      const int error_number = errno;
      munmap(aside, bytes);
      errno = error_number;
      return false;
    }
    return true;
  }

 private:
  std::size_t page_bytes_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  char* base_;
  std::size_t span_;
};

}  // namespace

std::unique_ptr<Backend> make_host_backend(std::uint64_t address_space) {
  std::uint64_t bytes = address_space != 0 ? address_space : host_most_address_space;
  const std::uint64_t least = address_space != 0 ? address_space : host_least_address_space;
  for (; bytes >= least; bytes /= 2) {
    void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base != MAP_FAILED) {
      return std::make_unique<HostBackend>(static_cast<char*>(base), bytes);
    }
  }
  return nullptr;
}

}  // namespace lms

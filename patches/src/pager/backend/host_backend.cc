#include "host_backend.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../arena.h"
#include "host_pages.h"

namespace lms {

namespace {

constexpr std::uint64_t host_most_address_space = 1ULL << 40;
constexpr std::uint64_t host_least_address_space = 1ULL << 30;

// Of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
constexpr std::uint64_t host_page_present = 1ULL << 63;
constexpr std::uint64_t host_page_exclusive = 1ULL << 56;  // mapped by one process alone, from Linux 4.2 on

int host_protection(Access access) { return access == Access::read_only ? PROT_READ : PROT_READ | PROT_WRITE; }

bool host_is_large(std::size_t bytes) { return bytes >= Arena::large_block; }

// How much of its footprint a block's mapping covers. A small block's covers all, so that neighbours of any size touch
// and the kernel can join their mappings; only pages that are touched cost memory. A large block's ends with the block:
// in a huge page beyond its end it would take more memory than its bytes.
std::size_t host_length(std::size_t bytes) { return host_is_large(bytes) ? bytes : Arena::footprint(bytes); }

// The kernel allows a process so many mappings (vm.max_map_count), and a range that came back, or whose neighbours are
// away, needs one of its own. Past the limit hardly any call works, so nine tenths of it is the end. Thread-safe.
class HostMappings {
 public:
  // So many were made beside those that a call of has_room() stands for.
  void note(std::size_t count) {
    calls_until_count_.fetch_sub(static_cast<std::int64_t>(count), std::memory_order_relaxed);
  }

  // True while there is room for more. Counts what there is only when enough ranges have come back to use the room up.
  bool has_room() {
    if (calls_until_count_.fetch_sub(1, std::memory_order_relaxed) > 0) {
      return has_room_.load(std::memory_order_relaxed);
    }
    const std::int64_t room = limit_ - count();
    has_room_.store(room > 0, std::memory_order_relaxed);
    // A range that leaves splits its neighbours off on both sides, and so does one that comes back elsewhere.
    calls_until_count_.store(room > 0 ? room / 4 : calls_when_full, std::memory_order_relaxed);
    return room > 0;
  }

 private:
  static constexpr std::int64_t default_limit = 65530;
  static constexpr std::int64_t calls_when_full = 64;

  static std::int64_t allowed() {
    std::int64_t value = 0;
    if (std::FILE* file = std::fopen("/proc/sys/vm/max_map_count", "re")) {
      char text[32] = {};
      if (std::fgets(text, sizeof text, file) != nullptr) {
        value = std::strtoll(text, nullptr, 10);
      }
      std::fclose(file);
    }
    return value > 0 ? value : default_limit;
  }

  static std::int64_t count() {
    std::int64_t lines = 0;
    const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
      char text[4096];
      ssize_t bytes = 0;
      while ((bytes = read(file, text, sizeof text)) > 0) {
        lines += std::count(text, text + bytes, '\n');
      }
      close(file);
    }
    return lines;
  }

  const std::int64_t limit_ = allowed() / 10 * 9;
  std::atomic<std::int64_t> calls_until_count_{limit_ / 8};
  std::atomic<bool> has_room_{true};
};

class HostBackend final : public Backend {
 public:
  HostBackend(char* base, std::size_t span) : base_(base), span_(span) {}
  ~HostBackend() override { munmap(base_, span_); }

  std::size_t page_bytes() const override { return page_bytes_; }
  char* base() const override { return base_; }
  std::size_t span() const override { return span_; }
  bool serves_faults() const override { return true; }
  bool crowded() override {
    const bool crowded = !mappings_.has_room();
    if (crowded) {
      pages_.trim(UINT64_MAX);  // each has a mapping of its own
    }
    return crowded;
  }
  std::string failure() const override {
    const std::string text = std::strerror(errno);
    rlimit space = {};
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
      return text + "; the process may use " + std::to_string(space.rlim_cur) + " bytes of addresses, and LMS keeps " +
             std::to_string(span_) + " of them for its blocks: raise 'ulimit -v', or lower it before LMS is enabled";
    }
    return text +
           "; the machine is out of memory, or the process has too many mappings: raise vm.max_map_count, or min_size "
           "so that fewer blocks are paged";
  }

  std::size_t count_in_common(const std::vector<const char*>& pages) override {
    const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    std::size_t count = 0;
    for (const char* page : pages) {
      std::uint64_t entry = host_page_present;
      const off_t offset = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(page) / page_bytes_ * sizeof entry);
      static_cast<void>(file >= 0 && pread(file, &entry, sizeof entry, offset) == sizeof entry);
      count += (entry & host_page_present) != 0 && (entry & host_page_exclusive) == 0 ? 1 : 0;
    }
    if (file >= 0) {
      close(file);
    }
    return count;
  }

  std::uint64_t trim(std::uint64_t bytes) override { return pages_.trim(bytes); }
  std::uint64_t kept_bytes() override { return pages_.bytes(); }
  bool set_aside(const char* address, std::size_t bytes) override {
    return !crowded() && pages_.reserve(address, bytes);
  }
  // The parent has use for them, and to write to pages that both have costs a copy.
  void after_fork_in_child() override { pages_.trim(UINT64_MAX); }

  bool map(char* address, std::size_t bytes, StreamId /*user*/) override {
    const std::vector<HostRun> kept = pages_.take(address);
    if (!fill(kept, address, bytes)) {
      return discard(address, host_length(bytes));
    }
    if (!kept.empty()) {  // else the kernel may join its mapping to its neighbours'
      note_mappings(kept, address, host_length(bytes));
    }
    return true;
  }

  bool unmap(char* address, std::size_t bytes, const Uses& /*uses*/) override {
    return unmap_pages(address, host_length(bytes));
  }

  bool unmap_for_reuse(char* address, std::size_t bytes, const Uses& uses) override {
    const bool kept = mappings_.has_room() && pages_.keep(address, bytes);
    return unmap(address, bytes, uses) || kept;  // without pages its mapping is only one more than need be
  }

  bool part(char* address, std::size_t /*whole*/, std::size_t kept, std::size_t rest) override {
    // The mapping of a small block goes on to the end of its footprint.
    const std::size_t mapped = std::min(host_length(kept), rest);
    if (mapped < rest && !unmap_pages(address + mapped, rest - mapped)) {
      return false;
    }
    if (kept < mapped) {
      madvise(address + kept, mapped - kept, MADV_DONTNEED);
    }
    return true;
  }

  bool protect(char* address, std::size_t bytes, Access access) override {
    return mprotect(address, host_length(bytes), host_protection(access)) == 0;
  }

  bool copy_out(const iovec* ranges, std::size_t count, const Slot& first) override {
    return first.segment->write_together(first.offset, ranges, count);
  }

  bool copy_in(char* address, std::size_t bytes, const Slot& slot, Access access, const Uses& /*saved*/, Uses* /*copy*/,
               bool* refused) override {
    // Filled aside and moved into place, so that another thread which reaches the block through a raw pointer either
    // faults or finds all of it.
    const std::vector<HostRun> kept = pages_.take(address);
    const std::size_t length = host_length(bytes);
    const bool one_run = kept.size() == 1 && kept.front().bytes == bytes;
    const bool populated = kept.empty() && !host_is_large(bytes);
    const std::size_t filled = one_run || populated ? bytes : length;  // the rest of the mapping comes when it moves
    char* aside = one_run ? open_run(kept) : populated ? populate(bytes) : put_together(kept, bytes);
    if (aside == nullptr) {
      *refused = true;
      return false;
    }
    if (!slot.segment->read(slot.offset, aside, bytes)) {
      return give_up(aside, filled, nullptr);
    }
    if (access == Access::read_only && mprotect(aside, filled, PROT_READ) != 0) {
      return give_up(aside, filled, refused);
    }
    // All of it is there, so whoever reaches a part that is in its place already finds what it should.
    std::size_t done = 0;
    const auto move = [&](std::size_t end) {
      if (done < end && mremap(aside + done, std::min(end, filled) - done, end - done, MREMAP_MAYMOVE | MREMAP_FIXED,
                               address + done) == MAP_FAILED) {
        return false;
      }
      done = std::max(done, end);
      return true;
    };
    bool moved = true;
    for (std::size_t index = 0; !one_run && moved && index < kept.size(); ++index) {
      moved = move(kept[index].offset) && move(kept[index].offset + kept[index].bytes);
    }
    if (!moved || !move(length)) {
      give_up(aside + done, filled - done, refused);  // others may have got the addresses before that
      return discard(address, length);
    }
    note_mappings(kept, address, length);
    return true;
  }

 private:
  // Where a block's contents can be filled in: the runs at their offsets, with fresh pages between them. Null, with
  // errno as it was, when the system refuses; the runs are gone then.
  static char* put_together(const std::vector<HostRun>& kept, std::size_t bytes) {
    char* aside = host_place(host_length(bytes));
    if (aside == nullptr) {
      release(kept, 0);
    } else if (!fill(kept, aside, bytes)) {
      give_up(aside, host_length(bytes), nullptr);
      aside = nullptr;
    }
    return aside;
  }

  // The same for one run that is as large.
  static char* open_run(const std::vector<HostRun>& kept) {
    const HostRun& run = kept.front();
    return mprotect(run.address, run.bytes, PROT_READ | PROT_WRITE) == 0 || release(kept, 0) ? run.address : nullptr;
  }

  // The same for a small block without runs: its pages come at once, rather than with a fault each.
  static char* populate(std::size_t bytes) {
    void* place =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_POPULATE, -1, 0);
    return place == MAP_FAILED ? nullptr : static_cast<char*>(place);
  }

  // Moves the runs to their offsets from an address without pages, and makes the mapping of a block of that size there
  // accessible. False, with errno as it was, when the system refuses; the runs that have not been moved are gone then.
  static bool fill(const std::vector<HostRun>& kept, char* address, std::size_t bytes) {
    if (host_is_large(bytes)) {
      madvise(address, bytes, MADV_HUGEPAGE);  // advice: many times cheaper to fill and to give back
    }
    for (std::size_t index = 0; index < kept.size(); ++index) {
      const HostRun& run = kept[index];
      if (mremap(run.address, run.bytes, run.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address + run.offset) ==
          MAP_FAILED) {
        return release(kept, index);
      }
    }
    return mprotect(address, host_length(bytes), PROT_READ | PROT_WRITE) == 0;
  }

  // False, with errno as it was, as the next one.
  static bool release(const std::vector<HostRun>& kept, std::size_t first) {
    const int error_number = errno;
    for (std::size_t index = first; index < kept.size(); ++index) {
      munmap(kept[index].address, kept[index].bytes);
    }
    errno = error_number;
    return false;
  }

  bool discard(char* address, std::size_t length) {
    const int error_number = errno;
    unmap_pages(address, length);
    errno = error_number;
    return false;
  }

  // The range is one mapping, or the runs and what is between them are. The kernel joins none of them to another.
  void note_mappings(const std::vector<HostRun>& kept, char* address, std::size_t length) {
    mappings_.note(2 * kept.size());  // each run, and what is between it and the next
    pages_.note_mapping(address);
    pages_.note_mapping(address + length);
    for (const HostRun& run : kept) {
      pages_.note_mapping(address + run.offset);
      pages_.note_mapping(address + run.offset + run.bytes);
    }
  }

  // False, with errno as it was. `refused` is set if there is one.
  static bool give_up(char* aside, std::size_t bytes, bool* refused) {
    const int error_number = errno;
    if (aside != nullptr) {
      munmap(aside, bytes);
    }
    if (refused != nullptr) {
      *refused = true;
    }
    errno = error_number;
    return false;
  }

  // A fresh mapping rather than mprotect + madvise: one call, and the kernel joins it with its neighbours.
  bool unmap_pages(char* address, std::size_t bytes) {
    pages_.forget_mappings(address, address + bytes);
    return mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
           MAP_FAILED;
  }

  std::size_t page_bytes_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  char* base_;
  std::size_t span_;
  HostMappings mappings_;
  HostPages pages_;
};

// Bytes of addresses that the process may take besides those that it has.
std::uint64_t host_addresses_left() {
  rlimit space = {};
  if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) {
    return UINT64_MAX;
  }
  std::uint64_t taken = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "re")) {
    char text[32] = {};
    if (std::fgets(text, sizeof text, file) != nullptr) {
      taken = std::strtoull(text, nullptr, 10) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    }
    std::fclose(file);
  }
  return space.rlim_cur - std::min<std::uint64_t>(taken, space.rlim_cur);
}

}  // namespace

std::unique_ptr<Backend> make_host_backend(std::uint64_t address_space) {
  const std::uint64_t unit = 2 * Arena::large_block;  // an arena's two halves
  const std::uint64_t wanted = (std::min(address_space, host_most_address_space) + unit - 1) / unit * unit;
  const std::uint64_t least = wanted != 0 ? wanted : host_least_address_space;
  std::uint64_t bytes = wanted != 0 ? wanted : host_most_address_space;
  const std::uint64_t left = host_addresses_left();
  while (wanted == 0 && bytes > least && bytes > left / 2) {
    bytes /= 2;  // the program needs addresses, too
  }
  for (; bytes >= least; bytes /= 2) {
    const std::uint64_t reserved = bytes + Arena::large_block;
    void* memory = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) {
      char* begin = static_cast<char*>(memory);
      char* base = host_align(begin);
      host_unmap_between(begin, base);
      host_unmap_between(base + bytes, begin + reserved);
      return std::make_unique<HostBackend>(base, bytes);
    }
  }
  return nullptr;
}

}  // namespace lms

#include "host_pages.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <iterator>
#include <new>

#include "../arena.h"

namespace lms {

namespace {

#ifdef MREMAP_DONTUNMAP
constexpr int host_pages_stay_reserved = MREMAP_DONTUNMAP;
#else
constexpr int host_pages_stay_reserved = 4;  // of Linux 5.7's linux/mman.h
#endif
constexpr int host_pages_keep_on_fork = 19;  // MADV_KEEPONFORK, of Linux 4.14's linux/mman.h

}  // namespace

char* host_align(char* address) {
  const std::size_t over = reinterpret_cast<std::uintptr_t>(address) % Arena::large_block;
  return over == 0 ? address : address + (Arena::large_block - over);
}

void host_unmap_between(char* begin, char* end) {
  if (begin < end) {
    munmap(begin, static_cast<std::size_t>(end - begin));
  }
}

char* host_place(std::size_t bytes) {
  const std::size_t reserved = bytes + Arena::large_block;
  void* memory = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  char* begin = static_cast<char*>(memory);
  char* place = host_align(begin);
  host_unmap_between(begin, place);
  host_unmap_between(place + bytes, begin + reserved);
  return place;
}

HostPages::~HostPages() {
  trim(UINT64_MAX);
  for (const auto& each : reserved_) {
    for (const HostRun& run : each.second) {
      munmap(run.address, run.bytes);
    }
  }
}

bool HostPages::is_huge(const HostRun& run) {
  return run.bytes >= Arena::large_block && run.address == host_align(run.address);
}

// Gives the pages back to the system where there is no memory to remember them.
void HostPages::insert(const HostRun& run, std::uint64_t number) {
  try {
    by_size(run).emplace(run.bytes, number);
    by_age_.emplace(number, run);
    bytes_ += run.bytes;
  } catch (const std::bad_alloc&) {
    by_size(run).erase({run.bytes, number});
    munmap(run.address, run.bytes);
  }
}

HostRun HostPages::erase(std::uint64_t number) {
  const auto kept = by_age_.find(number);
  const HostRun run = kept->second;
  bytes_ -= run.bytes;
  by_size(run).erase({run.bytes, number});
  by_age_.erase(kept);
  return run;
}

// Of the runs of that size, which there are: its contents may be in the processor's caches.
std::uint64_t HostPages::newest_of(const BySize& sizes, std::size_t bytes) const {
  return std::prev(sizes.upper_bound({bytes, UINT64_MAX}))->second;
}

// Moves what one mapping has there. The addresses stay taken: the arena may not have a hole for a moment.
bool HostPages::move_aside(char* address, std::size_t bytes) {
  const bool huge = is_huge(HostRun{address, bytes, 0});
  void* place =
      huge ? host_place(bytes) : mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == nullptr || place == MAP_FAILED) {
    return false;
  }
  // Only a proposal: with MREMAP_FIXED a failure could leave a hole there, which another thread's mmap may have filled
  // before we can say that we do not need it.
  munmap(place, bytes);
  void* moved = mremap(address, bytes, bytes, MREMAP_MAYMOVE | host_pages_stay_reserved, place);
  if (moved == MAP_FAILED) {
    return false;
  }
  const HostRun run = {static_cast<char*>(moved), bytes, 0};
  const std::lock_guard<std::mutex> guard(lock_);
  if (huge && !is_huge(run)) {
    munmap(moved, bytes);  // huge pages have been split
  } else {
    insert(run, next_++);
  }
  return true;
}

bool HostPages::keep(char* address, std::size_t bytes) {
  // They take addresses as well, which the program may need itself where it may not have all that it wants.
  rlimit space = {};
  if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur != RLIM_INFINITY) {
    return false;
  }
  // First, so that an access meanwhile waits for the range's pages rather than finds others.
  if (mprotect(address, bytes, PROT_NONE) != 0) {
    return false;
  }
  // What the program has asked for is not for other blocks' pages: a child would miss them, or find zeroes.
  madvise(address, bytes, MADV_DOFORK);
  madvise(address, bytes, host_pages_keep_on_fork);
  bool some = false;
  for (char *end, *begin = address; begin < address + bytes; begin = end) {
    {
      const std::lock_guard<std::mutex> guard(lock_);
      const auto next = mappings_.upper_bound(begin);
      end = next != mappings_.end() && *next < address + bytes ? *next : address + bytes;
    }
    if (!move_aside(begin, static_cast<std::size_t>(end - begin))) {
      return some;
    }
    some = true;
  }
  return true;
}

bool HostPages::reserve(const char* address, std::size_t bytes) {
  const std::lock_guard<std::mutex> guard(lock_);
  try {
    std::vector<HostRun> runs;
    runs.reserve(bytes / Arena::granule + 1);
    std::vector<HostRun>& reserved = reserved_[address];
    BySize& huge = by_size_[1];
    const auto same = huge.lower_bound({bytes, 0});
    if (same != huge.end() && same->first == bytes) {
      runs.push_back(erase(newest_of(huge, bytes)));
      bytes = 0;
    }
    const std::size_t head = bytes / Arena::large_block * Arena::large_block;
    std::size_t done = 0;
    while (done < head && !huge.empty()) {
      runs.push_back(take_at_most(&huge, head - done, Arena::large_block));
      runs.back().offset = done;
      done += runs.back().bytes;
    }
    // The head's huge pages cost one fault each. A run of fewer bytes than a granule saves less than it costs, unless
    // it is all that is missing.
    for (done = head; done < bytes && !by_age_.empty(); done += runs.back().bytes) {
      BySize& sizes = by_size_[0].empty() ? huge : by_size_[0];
      const std::size_t largest = sizes.rbegin()->first;
      if (largest < Arena::granule && largest < bytes - done) {
        break;
      }
      runs.push_back(take_at_most(&sizes, bytes - done, 1));
      runs.back().offset = done;
    }
    reserved = std::move(runs);
    if (reserved.empty()) {
      reserved_.erase(address);
      return false;
    }
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// A run of that size, or of less where there is none that is as large; a multiple of `unit`, as every run there is at
// least. There is one at all.
HostRun HostPages::take_at_most(BySize* sizes, std::size_t bytes, std::size_t unit) {
  const auto enough = sizes->lower_bound({bytes, 0});
  const std::uint64_t number =
      newest_of(*sizes, enough != sizes->end() ? enough->first : std::prev(sizes->end())->first);
  HostRun run = erase(number);
  const std::size_t taken = std::min(run.bytes, bytes) / unit * unit;
  if (run.bytes > taken) {
    insert(HostRun{run.address + taken, run.bytes - taken, 0}, number);
    run.bytes = taken;
  }
  return run;
}

std::vector<HostRun> HostPages::take(const char* address) {
  const std::lock_guard<std::mutex> guard(lock_);
  std::vector<HostRun> runs;
  const auto found = reserved_.find(address);
  if (found != reserved_.end()) {
    runs = std::move(found->second);
    reserved_.erase(found);
  }
  return runs;
}

void HostPages::note_mapping(char* address) {
  const std::lock_guard<std::mutex> guard(lock_);
  try {
    mappings_.insert(address);
  } catch (const std::bad_alloc&) {
    mappings_.clear();  // what has several is not kept, then
  }
}

void HostPages::forget_mappings(char* begin, char* end) {
  const std::lock_guard<std::mutex> guard(lock_);
  mappings_.erase(mappings_.upper_bound(begin), mappings_.lower_bound(end));
}

std::uint64_t HostPages::trim(std::uint64_t bytes) {
  const std::lock_guard<std::mutex> guard(lock_);
  std::uint64_t trimmed = 0;
  while (trimmed < bytes && !by_age_.empty()) {
    const HostRun oldest = erase(by_age_.begin()->first);
    munmap(oldest.address, oldest.bytes);
    trimmed += oldest.bytes;
  }
  return trimmed;
}

std::uint64_t HostPages::bytes() {
  const std::lock_guard<std::mutex> guard(lock_);
  return bytes_;
}

}  // namespace lms

#include "host_pages.h"

#include <sys/mman.h>
#include <sys/resource.h>

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
    munmap(each.second.address, each.second.bytes);
  }
}

bool HostPages::keep(char* address, std::size_t bytes) {
  // They take addresses as well, which the program may need itself where it may not have all that it wants.
  rlimit space = {};
  if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur != RLIM_INFINITY) {
    return false;
  }
  char* free_place = host_place(bytes);
  if (free_place == nullptr) {
    return false;
  }
  // Only a proposal: with MREMAP_FIXED a failure could leave a hole there, which another thread's mmap may have filled
  // before we can say that we do not need it.
  munmap(free_place, bytes);
  // First, so that an access meanwhile waits for the range's pages rather than finds others. And the addresses stay
  // taken: the arena may not have a hole for a moment either.
  if (mprotect(address, bytes, PROT_NONE) != 0) {
    return false;
  }
  void* moved = mremap(address, bytes, bytes, MREMAP_MAYMOVE | host_pages_stay_reserved, free_place);
  if (moved == MAP_FAILED) {
    return false;
  }
  char* place = static_cast<char*>(moved);
  // What the program has asked for is not for other blocks' pages: a child would miss them, or find zeroes.
  madvise(place, bytes, MADV_DOFORK);
  madvise(place, bytes, host_pages_keep_on_fork);
  if (place != host_align(place)) {
    munmap(place, bytes);  // huge pages have been split
    return true;
  }
  const std::lock_guard<std::mutex> guard(lock_);
  try {
    by_size_.emplace(bytes, next_);
    by_age_.emplace(next_, Pages{place, bytes});
    bytes_ += bytes;
  } catch (const std::bad_alloc&) {
    by_size_.erase({bytes, next_});
    munmap(place, bytes);
  }
  ++next_;
  return true;
}

bool HostPages::reserve(const char* address, std::size_t bytes) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto above = by_size_.upper_bound({bytes, UINT64_MAX});
  if (above == by_size_.begin() || std::prev(above)->first != bytes) {
    return false;
  }
  const auto newest = by_age_.find(std::prev(above)->second);  // whose contents the processor's caches may have
  try {
    reserved_.emplace(address, newest->second);
  } catch (const std::bad_alloc&) {
    return false;
  }
  erase(newest);
  return true;
}

void HostPages::erase(std::map<std::uint64_t, Pages>::iterator kept) {
  bytes_ -= kept->second.bytes;
  by_size_.erase({kept->second.bytes, kept->first});
  by_age_.erase(kept);
}

char* HostPages::take(const char* address) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found = reserved_.find(address);
  if (found == reserved_.end()) {
    return nullptr;
  }
  char* pages = found->second.address;
  reserved_.erase(found);
  return pages;
}

std::uint64_t HostPages::trim(std::uint64_t bytes) {
  const std::lock_guard<std::mutex> guard(lock_);
  std::uint64_t trimmed = 0;
  while (trimmed < bytes && !by_age_.empty()) {
    const Pages oldest = by_age_.begin()->second;
    munmap(oldest.address, oldest.bytes);
    trimmed += oldest.bytes;
    erase(by_age_.begin());
  }
  return trimmed;
}

std::uint64_t HostPages::bytes() {
  const std::lock_guard<std::mutex> guard(lock_);
  return bytes_;
}

}  // namespace lms

// Pages of ranges that have left, kept for ranges of the same size that come: they need not be zeroed, nor, in a
// virtual machine that gives free memory back to its host, be fetched from there. Thread-safe. Sizes are in bytes.
#ifndef LMS_HOST_PAGES_H
#define LMS_HOST_PAGES_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace lms {

// The next address that is a multiple of a huge page's size.
char* host_align(char* address);

void host_unmap_between(char* begin, char* end);

// Addresses without pages, aligned so. Null when the system refuses.
char* host_place(std::size_t bytes);

class HostPages {
 public:
  HostPages() = default;
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;
  ~HostPages();

  // Takes the pages of a range in the arena, which can then not be accessed. False when the range has them still, or
  // there is no way to keep them (before Linux 5.7).
  bool keep(char* address, std::size_t bytes);

  // Whether there are pages that take() will give for the range.
  bool reserve(const char* address, std::size_t bytes);

  // Those pages, which cannot be accessed, or null. They are the caller's, and lie elsewhere, aligned as above.
  char* take(const char* address);

  // Gives pages back to the system, those first that have been kept longest: `bytes` or more, if there are as many.
  // Returns how many bytes that were.
  std::uint64_t trim(std::uint64_t bytes);

  // Without those that are reserved.
  std::uint64_t bytes();

 private:
  struct Pages {
    char* address;
    std::size_t bytes;
  };

  void erase(std::map<std::uint64_t, Pages>::iterator kept);

  std::mutex lock_;
  std::map<std::uint64_t, Pages> by_age_;  // by a number that grows
  std::set<std::pair<std::size_t, std::uint64_t>> by_size_;  // and that number
  std::map<const char*, Pages> reserved_;  // by the range that they are for
  std::uint64_t bytes_ = 0;
  std::uint64_t next_ = 0;
};

}  // namespace lms
#endif  // LMS_HOST_PAGES_H

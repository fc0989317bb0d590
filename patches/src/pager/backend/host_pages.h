// Pages of ranges that have left, kept for ranges that come: they need not be zeroed, nor, in a virtual machine that
// gives free memory back to its host, be fetched from there. A range gets those of one of its own size, or what is
// there, put together of several runs: huge pages where it has room for them.
//
// The kernel moves the pages of one mapping at a time (mremap), and such a range has several, so it is remembered where
// in the arena they begin. Where that is wrong, pages are not kept, and nothing else goes wrong.
//
// Thread-safe. Sizes are in bytes.
#ifndef LMS_HOST_PAGES_H
#define LMS_HOST_PAGES_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace lms {

// The next address that is a multiple of a huge page's size.
char* host_align(char* address);

void host_unmap_between(char* begin, char* end);

// Addresses without pages, aligned so. Null when the system refuses.
char* host_place(std::size_t bytes);

// Pages that lie aside in one mapping, and cannot be accessed.
struct HostRun {
  char* address;
  std::size_t bytes;
  std::size_t offset;  // in the range that they are for
};

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

  // Those pages, in the order of their offsets, perhaps not for all of the range. They are the caller's.
  std::vector<HostRun> take(const char* address);

  // A mapping begins there; and none does any more between the two addresses, but perhaps at the first.
  void note_mapping(char* address);
  void forget_mappings(char* begin, char* end);

  // Gives pages back to the system, those first that have been kept longest: `bytes` or more, if there are as many.
  // Returns how many bytes that were.
  std::uint64_t trim(std::uint64_t bytes);

  // Without those that are reserved.
  std::uint64_t bytes();

 private:
  using BySize = std::set<std::pair<std::size_t, std::uint64_t>>;  // a run's size and its number

  // The lock is held.
  BySize& by_size(const HostRun& run) { return by_size_[is_huge(run) ? 1 : 0]; }
  static bool is_huge(const HostRun& run);
  void insert(const HostRun& run, std::uint64_t number);
  HostRun erase(std::uint64_t number);
  std::uint64_t newest_of(const BySize& sizes, std::size_t bytes) const;
  HostRun take_at_most(BySize* sizes, std::size_t bytes, std::size_t unit);
  bool move_aside(char* address, std::size_t bytes);

  std::mutex lock_;
  std::map<std::uint64_t, HostRun> by_age_;  // by a number that grows
  BySize by_size_[2];  // the others; those that begin where a huge page may, and are as large
  std::map<const char*, std::vector<HostRun>> reserved_;  // by the range that they are for
  std::set<char*> mappings_;  // where one begins inside a range
  std::uint64_t bytes_ = 0;
  std::uint64_t next_ = 0;
};

}  // namespace lms
#endif  // LMS_HOST_PAGES_H

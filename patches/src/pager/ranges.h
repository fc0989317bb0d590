// Free ranges of an address space or a file: best fit, neighbours joined. O(log n) per call. Not thread-safe.
#ifndef LMS_RANGES_H
#define LMS_RANGES_H

#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace lms {

class Ranges {
 public:
  static constexpr std::uint64_t none = UINT64_MAX;

  // Starts with one free range of `bytes` at offset 0.
  explicit Ranges(std::uint64_t bytes) : total_(bytes), free_(0) { give(0, bytes); }

  // Offset of a range of `bytes` that is now taken; none when no free range is large enough.
  std::uint64_t take(std::uint64_t bytes) {
    auto fit = by_size_.lower_bound({bytes, 0});
    if (fit == by_size_.end()) {
      return none;
    }
    const std::uint64_t size = fit->first;
    const std::uint64_t offset = fit->second;
    by_size_.erase(fit);
    by_offset_.erase(offset);
    free_ -= size;
    if (size > bytes) {
      insert(offset + bytes, size - bytes);
    }
    return offset;
  }

  // Whether there is a free range of `bytes`.
  bool has(std::uint64_t bytes) const { return by_size_.lower_bound({bytes, 0}) != by_size_.end(); }

  // Returns a range that take() gave.
  void give(std::uint64_t offset, std::uint64_t bytes) {
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.end() && next->first == offset + bytes) {
      bytes += next->second;
      next = erase(next);
    }
    if (next != by_offset_.begin()) {
      auto previous = std::prev(next);
      if (previous->first + previous->second == offset) {
        offset = previous->first;
        bytes += previous->second;
        erase(previous);
      }
    }
    insert(offset, bytes);
  }

  bool all_free() const { return free_ == total_; }
  std::uint64_t total() const { return total_; }

 private:
  using ByOffset = std::map<std::uint64_t, std::uint64_t>;

  void insert(std::uint64_t offset, std::uint64_t bytes) {
    by_offset_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
    free_ += bytes;
  }

  ByOffset::iterator erase(ByOffset::iterator range) {
    by_size_.erase({range->second, range->first});
    free_ -= range->second;
    return by_offset_.erase(range);
  }

  std::uint64_t total_;
  std::uint64_t free_;
  ByOffset by_offset_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;
};

}  // namespace lms
#endif  // LMS_RANGES_H

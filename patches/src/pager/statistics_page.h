// The memory in which a pager counts, which other processes of the same user can read while it does: `top` (_top.py).
//
// It is a file that only this process's descriptor names (memfd_create), so it needs no clean-up however the process
// ends, and who reads it through /proc/PID/fd costs the process nothing. The file is mapped once and the descriptor is
// not used again, so that a program may close it; then the pager is only not found any more. Without such files the
// memory is the process's own. The first page is text that says where in the file each number is.
#ifndef LMS_STATISTICS_PAGE_H
#define LMS_STATISTICS_PAGE_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "statistics.h"

namespace lms {

class StatisticsPage {
 public:
  struct Values {
    Statistics counts;
    // What threads change without a lock, apart from what the lock guards.
    alignas(64) std::atomic<std::uint64_t> allocated_bytes{0};
    std::atomic<std::uint64_t> allocated_bytes_peak{0};
    std::atomic<std::uint64_t> resident_bytes{0};
    std::atomic<std::uint64_t> resident_bytes_peak{0};
  };

  // `device` is what readers are told whose statistics these are. Throws bad_alloc when there is no memory.
  explicit StatisticsPage(const std::string& device);
  StatisticsPage(const StatisticsPage&) = delete;
  StatisticsPage& operator=(const StatisticsPage&) = delete;
  ~StatisticsPage();

  Values& values() { return *values_; }

  // The inode of the file; 0 when there is none.
  std::uint64_t id() const { return file_id_; }

  // Around a fork: afterwards the child has values of its own, as they were before.
  void before_fork() { at_fork_ = snapshot(); }
  void after_fork_in_child();

 private:
  struct Snapshot {
    Statistics counts;
    std::uint64_t allocated_bytes;
    std::uint64_t allocated_bytes_peak;
    std::uint64_t resident_bytes;
    std::uint64_t resident_bytes_peak;
  };

  void map(void* at);
  void describe();
  void close_file();
  Snapshot snapshot() const;

  const std::string device_;
  const std::size_t half_;  // bytes of text; those of values are as many
  char* begin_ = nullptr;
  Values* values_ = nullptr;
  int file_ = -1;
  std::uint64_t file_id_ = 0;  // its inode: the descriptor may have become another file's
  Snapshot at_fork_{};
};

}  // namespace lms
#endif  // LMS_STATISTICS_PAGE_H

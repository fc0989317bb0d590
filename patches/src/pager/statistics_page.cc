#include "statistics_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>

namespace lms {

namespace {

// What the system's headers need not know yet.
constexpr unsigned page_close_on_exec = 1;    // MFD_CLOEXEC
constexpr unsigned page_allow_sealing = 2;    // MFD_ALLOW_SEALING
constexpr int page_add_seals = 1024 + 9;      // F_ADD_SEALS
constexpr int page_seals = 1 | 2 | 4;         // of its size, and of the seals
constexpr int page_seal_future_write = 0x10;  // nobody else writes, from Linux 5.1 on

// The numbers that are as they should be at any time. The others are found out when the program asks for them.
struct PageRow {
  const char* name;
  std::size_t offset;
};

#define LMS_COUNT(member, name) \
  PageRow { name, offsetof(StatisticsPage::Values, counts) + offsetof(Statistics, member) }
#define LMS_VALUE(member, name) \
  PageRow { name, offsetof(StatisticsPage::Values, member) }
constexpr PageRow page_rows[] = {
    LMS_COUNT(limit, "limit_bytes"),
    LMS_VALUE(allocated_bytes, "allocated_bytes.current"),
    LMS_VALUE(allocated_bytes_peak, "allocated_bytes.peak"),
    LMS_VALUE(resident_bytes, "resident_bytes.current"),
    LMS_VALUE(resident_bytes_peak, "resident_bytes.peak"),
    LMS_COUNT(device_bytes, "device_bytes.current"),
    LMS_COUNT(away_bytes, "away_bytes.current"),
    LMS_COUNT(over_limit_bytes_peak, "over_limit_bytes.peak"),
    LMS_COUNT(out_bytes, "out.bytes"),
    LMS_COUNT(in_bytes, "in.bytes"),
    LMS_COUNT(clean_drop_bytes, "clean_drop.bytes"),
    LMS_COUNT(prefetch_bytes, "prefetch.bytes"),
    LMS_COUNT(faults, "faults"),
    LMS_COUNT(stall_ns, "stall_ns"),
    LMS_COUNT(share_budget, "share.budget_bytes"),
    LMS_COUNT(share_bytes, "share.bytes"),
    LMS_COUNT(share_wait_ns, "share.wait_ns"),
};
#undef LMS_COUNT
#undef LMS_VALUE

int page_file(std::size_t bytes) {
#ifdef SYS_memfd_create
  const int file =
      static_cast<int>(syscall(SYS_memfd_create, "lms-statistics", page_close_on_exec | page_allow_sealing));
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    return file;
  }
  if (file >= 0) {
    close(file);
  }
#endif
  return -1;
}

}  // namespace

StatisticsPage::StatisticsPage(const std::string& device)
    : device_(device), half_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
  map(nullptr);
  values_ = new (begin_ + half_) Values;
  describe();
}

StatisticsPage::~StatisticsPage() {
  munmap(begin_, 2 * half_);
  close_file();
}

// Maps a new file, or the process's own memory; at an address that has a mapping, in place of that.
void StatisticsPage::map(void* at) {
  static_assert(sizeof(Values) <= 4096, "the values have a page");
  file_ = page_file(2 * half_);
  file_id_ = 0;
  const int where = (file_ >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) | (at != nullptr ? MAP_FIXED : 0);
  void* const memory = mmap(at, 2 * half_, PROT_READ | PROT_WRITE, where, file_, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  begin_ = static_cast<char*>(memory);
  struct stat found{};
  if (file_ >= 0 && fstat(file_, &found) == 0) {
    file_id_ = found.st_ino;
    if (fcntl(file_, page_add_seals, page_seals | page_seal_future_write) != 0) {
      fcntl(file_, page_add_seals, page_seals);
    }
  }
}

void StatisticsPage::describe() {
  std::string text = "lms-statistics 1\npid " + std::to_string(getpid()) + "\ndevice " + device_ + "\n";
  for (const PageRow& row : page_rows) {
    text += std::string(row.name) + " " + std::to_string(half_ + row.offset) + "\n";
  }
  std::memcpy(begin_, text.c_str(), text.size() < half_ ? text.size() + 1 : half_);
}

void StatisticsPage::close_file() {
  struct stat found{};
  if (file_ >= 0 && fstat(file_, &found) == 0 && found.st_ino == file_id_) {
    close(file_);
  }
  file_ = -1;
}

StatisticsPage::Snapshot StatisticsPage::snapshot() const {
  return Snapshot{values_->counts, values_->allocated_bytes.load(), values_->allocated_bytes_peak.load(),
                  values_->resident_bytes.load(), values_->resident_bytes_peak.load()};
}

void StatisticsPage::after_fork_in_child() {
  close_file();
  map(begin_);
  new (values_) Values;
  values_->counts = at_fork_.counts;
  values_->allocated_bytes.store(at_fork_.allocated_bytes);
  values_->allocated_bytes_peak.store(at_fork_.allocated_bytes_peak);
  values_->resident_bytes.store(at_fork_.resident_bytes);
  values_->resident_bytes_peak.store(at_fork_.resident_bytes_peak);
  describe();
}

}  // namespace lms

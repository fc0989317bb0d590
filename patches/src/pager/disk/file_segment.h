// A segment of the store that is a file without a name, past the page cache where the file system allows it (O_DIRECT):
// so the limit bounds what the process takes of RAM, and every byte is moved once.
//
// Contents are moved in units of disk_unit bytes, several in flight at a time, and each has a checksum of its own. A
// slot may be written and read in parts that begin at a multiple of that.
#ifndef LMS_FILE_SEGMENT_H
#define LMS_FILE_SEGMENT_H

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "../store.h"

namespace lms {

constexpr std::size_t disk_unit = 512 << 10;  // bytes

// What the segments of a directory do at the moment, and how fast they have been. Thread-safe.
class DiskLoad {
 public:
  void begin(bool write, std::uint64_t bytes);
  void end(bool write, std::uint64_t bytes, std::uint64_t ns);

  bool is_read() const { return reads_.load(std::memory_order_relaxed) > 0; }
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }  // in flight
  // Seconds for a byte, as measured lately; a guess before that.
  double read_cost() const { return read_cost_.load(std::memory_order_relaxed); }
  double write_cost() const { return write_cost_.load(std::memory_order_relaxed); }

 private:
  static constexpr double guess = 1e-9;

  std::atomic<std::uint32_t> reads_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<double> read_cost_{guess};
  std::atomic<double> write_cost_{guess};
};

struct DiskRequest;

class FileSegment final : public Segment {
 public:
  // An open file in the directory, without a name: nothing stays behind. -1 with errno set.
  static int create(const std::string& directory);

  // A segment in such a file, whose space is claimed. Null with errno set. `load` outlives it.
  static std::unique_ptr<FileSegment> make(const std::string& directory, std::uint64_t bytes, bool checks,
                                           DiskLoad* load);
  ~FileSegment() override;

  bool write(std::uint64_t offset, const char* from, std::size_t bytes) override;
  // In one request. Parts are no larger than disk_unit.
  bool write_together(std::uint64_t offset, const iovec* parts, std::size_t count) override;
  // EBADMSG: other contents than were written.
  bool read(std::uint64_t offset, char* to, std::size_t bytes) override;

 private:
  FileSegment(int file, std::uint64_t bytes, DiskLoad* load);

  bool is_open() const;
  bool move(bool write, std::uint64_t offset, char* memory, std::size_t bytes);
  int move_units(bool write, std::uint64_t offset, char* memory, std::size_t bytes);
  bool gather(std::uint64_t offset, const iovec* parts, std::size_t count, std::size_t bytes);
  int move_mapped(bool write, std::uint64_t offset, char* memory, std::size_t bytes);
  int complete(DiskRequest* request, bool direct);
  bool is_right(std::uint64_t offset, const void* contents, std::size_t bytes) const;
  void note(std::uint64_t offset, const void* contents, std::size_t bytes);
  int leave_page_cache(bool write, std::uint64_t offset, std::size_t bytes);

  int file_;
  std::atomic<bool> direct_{false};
  dev_t device_ = 0;
  ino_t inode_ = 0;
  char* mapping_ = nullptr;  // null where the system refuses one
  DiskLoad* const load_;
  std::uint64_t* checksums_ = nullptr;  // by offset in pages, where a unit begins; null if there are none
};

}  // namespace lms
#endif  // LMS_FILE_SEGMENT_H

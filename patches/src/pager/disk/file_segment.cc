#include "file_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "../descriptor.h"
#include "../share/monotonic.h"
#include "checksum.h"
#include "disk_queues.h"

namespace lms {

namespace {

constexpr std::uint64_t segment_page = 4096;  // slots are whole pages, which are no smaller anywhere
// Units of a write that are in flight while something is read: it can wait, what is read is waited for.
constexpr unsigned segment_depth_beside_reads = 4;
constexpr double segment_cost_change = 1.0 / 16;  // how much a move counts in what is known of the disk's speed
constexpr std::uint64_t segment_least_measured = 256 << 10;  // bytes; fewer tell of latency

std::size_t segment_checksum_bytes(std::uint64_t bytes) {
  return static_cast<std::size_t>(bytes / segment_page * sizeof(std::uint64_t));
}

}  // namespace

void DiskLoad::begin(bool write, std::uint64_t bytes) {
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (!write) {
    reads_.fetch_add(1, std::memory_order_relaxed);
  }
}

void DiskLoad::end(bool write, std::uint64_t bytes, std::uint64_t ns) {
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  if (!write) {
    reads_.fetch_sub(1, std::memory_order_relaxed);
  }
  if (bytes >= segment_least_measured) {
    std::atomic<double>& cost = write ? write_cost_ : read_cost_;
    const double seen = static_cast<double>(ns) * 1e-9 / static_cast<double>(bytes);
    const double known = cost.load(std::memory_order_relaxed);
    cost.store(known + (seen - known) * segment_cost_change, std::memory_order_relaxed);
  }
}

int FileSegment::create(const std::string& directory) {
  std::string name = directory + "/lms-store-XXXXXX";  // mkostemp(3) replaces the letters
  const int file = mkostemp(&name[0], O_CLOEXEC);
  if (file >= 0) {
    unlink(name.c_str());
  }
  return file;
}

std::unique_ptr<FileSegment> FileSegment::make(const std::string& directory, std::uint64_t bytes, bool checks,
                                               DiskLoad* load) {
  const int file = create(directory);
  if (file < 0) {
    return nullptr;
  }
  // Claims the disk space now: a full disk is an error here, where it can be reported, not in the middle of a copy.
  int error_number = EINTR;
  while (error_number == EINTR) {
    error_number = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  }
  if (error_number != 0) {
    close(file);
    errno = error_number;
    return nullptr;
  }
  std::unique_ptr<FileSegment> segment(new FileSegment(out_of_the_way(file), bytes, load));
  if (checks) {
    void* memory = mmap(nullptr, segment_checksum_bytes(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      segment.reset();
      errno = ENOMEM;
      return nullptr;
    }
    segment->checksums_ = static_cast<std::uint64_t*>(memory);
  }
  return segment;
}

FileSegment::FileSegment(int file, std::uint64_t bytes, DiskLoad* load) : Segment(bytes), file_(file), load_(load) {
  struct stat status = {};
  fstat(file, &status);
  device_ = status.st_dev;
  inode_ = status.st_ino;
  const int flags = fcntl(file, F_GETFL);
  direct_ = fcntl(file, F_SETFL, flags | O_DIRECT) == 0;
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  mapping_ = mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
}

FileSegment::~FileSegment() {
  if (is_open()) {
    close(file_);
  }
  if (mapping_ != nullptr) {
    munmap(mapping_, ranges.total());
  }
  if (checksums_ != nullptr) {
    munmap(checksums_, segment_checksum_bytes(ranges.total()));
  }
}

// False when the program has closed the descriptor, whatever its number means now. It may: one that becomes a daemon
// closes all that are not its own, and their numbers get other files. Then the file is reached through a mapping, which
// takes address space and no memory until then.
bool FileSegment::is_open() const {
  struct stat status = {};
  return fstat(file_, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

bool FileSegment::write(std::uint64_t offset, const char* from, std::size_t bytes) {
  const bool written = move(true, offset, const_cast<char*>(from), bytes);
  if (!written) {
    failed_write.store(errno, std::memory_order_relaxed);
  }
  return written;
}

bool FileSegment::write_together(std::uint64_t offset, const iovec* parts, std::size_t count) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    bytes += parts[i].iov_len;
  }
  // Whatever is in the way of that, from a failure to a write in part: one by one it is found again, and handled.
  return (count > 1 && is_open() && gather(offset, parts, count, bytes)) ||
         Segment::write_together(offset, parts, count);
}

bool FileSegment::gather(std::uint64_t offset, const iovec* parts, std::size_t count, std::size_t bytes) {
  load_->begin(true, bytes);
  const std::uint64_t begin = monotonic_ns();
  std::uint64_t at = offset;
  for (std::size_t i = 0; i < count; ++i) {
    note(at, parts[i].iov_base, parts[i].iov_len);
    at += parts[i].iov_len;
  }
  const std::int64_t written = disk_write(file_, parts, count, offset);
  load_->end(true, bytes, monotonic_ns() - begin);
  return written == static_cast<std::int64_t>(bytes) &&
         (direct_.load(std::memory_order_relaxed) || leave_page_cache(true, offset, bytes) == 0);
}

bool FileSegment::read(std::uint64_t offset, char* to, std::size_t bytes) { return move(false, offset, to, bytes); }

bool FileSegment::move(bool write, std::uint64_t offset, char* memory, std::size_t bytes) {
  load_->begin(write, bytes);
  const std::uint64_t begin = monotonic_ns();
  const int error_number =
      is_open() ? move_units(write, offset, memory, bytes) : move_mapped(write, offset, memory, bytes);
  load_->end(write, bytes, monotonic_ns() - begin);
  errno = error_number;
  return error_number == 0;
}

// 0 or an errno, as below.
int FileSegment::move_units(bool write, std::uint64_t offset, char* memory, std::size_t bytes) {
  DiskQueues& queues = DiskQueues::of_process();
  std::unique_ptr<DiskQueue> queue = queues.take();
  std::array<DiskRequest, DiskQueue::depth> requests;
  std::array<DiskRequest*, DiskQueue::depth> unused;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    unused[i] = &requests[i];
  }
  std::size_t unused_count = requests.size();
  const bool direct = direct_.load(std::memory_order_relaxed);
  std::size_t begun = 0;  // bytes
  int error_number = 0;
  while (true) {
    const std::size_t in_flight = requests.size() - unused_count;
    const unsigned depth = write && load_->is_read() ? segment_depth_beside_reads : DiskQueue::depth;
    if (error_number == 0 && begun < bytes && in_flight < depth) {
      DiskRequest* request = unused[--unused_count];
      const std::size_t part = std::min(disk_unit, bytes - begun);
      *request = DiskRequest{file_, write, iovec{memory + begun, part}, offset + begun, 0};
      if (write) {
        note(offset + begun, memory + begun, part);
      }
      begun += part;
      queue->submit(request);
    } else if (in_flight > 0) {
      DiskRequest* request = queue->wait();
      unused[unused_count++] = request;
      const std::uint64_t begin = request->offset;
      const iovec asked = request->memory;
      int failed = complete(request, direct);
      if (failed == 0 && !write && !is_right(begin, asked.iov_base, asked.iov_len)) {
        failed = EBADMSG;
      }
      error_number = error_number != 0 ? error_number : failed;
    } else {
      break;
    }
  }
  queues.give(std::move(queue));
  if (error_number == 0 && !direct_.load(std::memory_order_relaxed)) {
    error_number = leave_page_cache(write, offset, bytes);
  }
  return error_number;
}

int FileSegment::move_mapped(bool write, std::uint64_t offset, char* memory, std::size_t bytes) {
  if (mapping_ == nullptr) {
    return EBADF;
  }
  if (write) {
    std::memcpy(mapping_ + offset, memory, bytes);
  } else {
    std::memcpy(memory, mapping_ + offset, bytes);
  }
  for (std::size_t done = 0; done < bytes; done += disk_unit) {
    const std::size_t part = std::min(disk_unit, bytes - done);
    if (write) {
      note(offset + done, memory + done, part);
    } else if (!is_right(offset + done, memory + done, part)) {
      return EBADMSG;
    }
  }
  return 0;
}

// Carries on what was moved in part only, or was refused for a reason that goes by.
int FileSegment::complete(DiskRequest* request, bool direct) {
  while (true) {
    if (request->result == 0) {
      return request->write ? EIO : ENODATA;  // the file is shorter than what was written to it
    }
    if (request->result > 0) {
      const std::size_t moved = static_cast<std::size_t>(request->result);
      request->memory.iov_base = static_cast<char*>(request->memory.iov_base) + moved;
      request->memory.iov_len -= moved;
      request->offset += moved;
      if (request->memory.iov_len == 0) {
        return 0;
      }
    } else if (request->result == -EINVAL && direct) {
      // The file system wants larger or other pieces than it let us know.
      direct = false;
      direct_ = false;
      fcntl(file_, F_SETFL, fcntl(file_, F_GETFL) & ~O_DIRECT);
    } else if (request->result != -EAGAIN && request->result != -EINTR) {
      return static_cast<int>(-request->result);
    }
    disk_move(request);
  }
}

void FileSegment::note(std::uint64_t offset, const void* contents, std::size_t bytes) {
  if (checksums_ != nullptr) {
    checksums_[offset / segment_page] = checksum(contents, bytes);
  }
}

bool FileSegment::is_right(std::uint64_t offset, const void* contents, std::size_t bytes) const {
  return checksums_ == nullptr || checksums_[offset / segment_page] == checksum(contents, bytes);
}

// What the page cache keeps counts as the process's memory, as in a memory cgroup. (On tmpfs it is all there is.) 0, or
// an errno when it could not be written to the disk.
int FileSegment::leave_page_cache(bool write, std::uint64_t offset, std::size_t bytes) {
  if (write &&
      sync_file_range(file_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                      SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER) != 0 &&
      (errno == EIO || errno == ENOSPC)) {
    return errno;
  }
  posix_fadvise(file_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
  return 0;
}

}  // namespace lms

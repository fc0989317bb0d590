#include "store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

namespace lms {

namespace {

// Segments start at this size and grow with the store, so that even a store of a terabyte is a few dozen of them.
constexpr std::uint64_t store_first_segment = 64ULL << 20;
constexpr std::uint64_t store_growth = 4;  // a new segment is at least a quarter of what there is

class MemorySegment final : public Segment {
 public:
  MemorySegment(char* base, std::uint64_t bytes) : Segment(bytes), base_(base) {}
  ~MemorySegment() override { munmap(base_, ranges.total()); }

  bool write(std::uint64_t offset, const char* from, std::size_t bytes) override {
    std::memcpy(base_ + offset, from, bytes);
    return true;
  }

  bool read(std::uint64_t offset, char* to, std::size_t bytes) override {
    std::memcpy(to, base_ + offset, bytes);
    return true;
  }

  char* at(std::uint64_t offset) override { return base_ + offset; }

 private:
  char* base_;
};

class MemoryStore final : public Store {
 public:
  std::string failure(const char* action, int error_number) const override {
    return std::string("the host store in memory cannot be ") + action + ": " + std::strerror(error_number);
  }

 protected:
  std::unique_ptr<Segment> grow(std::uint64_t bytes) override {
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      return nullptr;
    }
    madvise(base, bytes, MADV_HUGEPAGE);  // advice: fewer faults while it fills
    return std::make_unique<MemorySegment>(static_cast<char*>(base), bytes);
  }

  bool shared_by_fork() const override { return false; }  // private memory: each process has its own after a write
};

// System calls past those that system_calls.h puts in front of libc's: these move blocks that are on their way.
ssize_t store_pwrite(int file, const void* from, std::size_t bytes, std::uint64_t offset) {
  return static_cast<ssize_t>(syscall(SYS_pwrite64, file, from, bytes, offset));
}

ssize_t store_pread(int file, void* to, std::size_t bytes, std::uint64_t offset) {
  return static_cast<ssize_t>(syscall(SYS_pread64, file, to, bytes, offset));
}

// Descriptors from here on are left alone by programs that take the lowest ones: one that closes all it sees, and opens
// others, does not get our number soon.
int store_out_of_the_way(int file) {
  constexpr rlim_t most = 4096;  // the kernel's table of descriptors grows with the highest one
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int moved = fcntl(file, F_DUPFD_CLOEXEC, static_cast<int>(std::min(limit.rlim_cur, most) / 2));
  if (moved < 0) {
    return file;
  }
  close(file);
  return moved;
}

// A file that outlives its descriptor. A program that becomes a daemon closes descriptors that are not its own, and
// their numbers get other files: so each use looks whether the number still means this file, and if it does not, goes
// through a mapping, which takes address space and no memory until then.
class FileSegment final : public Segment {
 public:
  FileSegment(int file, std::uint64_t bytes) : Segment(bytes), file_(file) {
    struct stat status = {};
    fstat(file, &status);
    device_ = status.st_dev;
    inode_ = status.st_ino;
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    mapping_ = mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
  }
  ~FileSegment() override {
    if (is_open()) {
      close(file_);
    }
    if (mapping_ != nullptr) {
      munmap(mapping_, ranges.total());
    }
  }

  bool write(std::uint64_t offset, const char* from, std::size_t bytes) override {
    if (!is_open()) {
      if (mapping_ != nullptr) {
        std::memcpy(mapping_ + offset, from, bytes);
      }
      return mapping_ != nullptr;
    }
    while (bytes > 0) {
      const ssize_t done = store_pwrite(file_, from, bytes, offset);
      if (done < 0 && errno == EINTR) {
        continue;
      }
      if (done <= 0) {
        return false;
      }
      from += done;
      offset += static_cast<std::uint64_t>(done);
      bytes -= static_cast<std::size_t>(done);
    }
    return true;
  }

  bool read(std::uint64_t offset, char* to, std::size_t bytes) override {
    if (!is_open()) {
      if (mapping_ != nullptr) {
        std::memcpy(to, mapping_ + offset, bytes);
      }
      return mapping_ != nullptr;
    }
    while (bytes > 0) {
      const ssize_t done = store_pread(file_, to, bytes, offset);
      if (done < 0 && errno == EINTR) {
        continue;
      }
      if (done == 0) {
        errno = EIO;  // the file is shorter than what was written to it
      }
      if (done <= 0) {
        return false;
      }
      to += done;
      offset += static_cast<std::uint64_t>(done);
      bytes -= static_cast<std::size_t>(done);
    }
    return true;
  }

 private:
  // False, with errno set, when the program has closed the descriptor, whatever its number means now.
  bool is_open() const {
    struct stat status = {};
    if (fstat(file_, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_) {
      return true;
    }
    errno = EBADF;
    return false;
  }

  int file_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  char* mapping_ = nullptr;
};

const char* store_advice(int error_number) {
  switch (error_number) {
    case EBADF:
      return "the program has closed its file: keep it open, or raise 'ulimit -v'";
    case EFBIG:
      return "raise 'ulimit -f'";
    case EMFILE:
      return "raise 'ulimit -n'";
    case ENOSPC:
    case EDQUOT:
      return "free space there, or choose another directory with store=";
    default:
      return "make it a directory that can be written, or choose another one with store=";
  }
}

class FileStore final : public Store {
 public:
  explicit FileStore(std::string directory) : directory_(std::move(directory)) {}

  std::string failure(const char* action, int error_number) const override {
    return "the host store in '" + directory_ + "' cannot be " + action + ": " + std::strerror(error_number) + "; " +
           store_advice(error_number);
  }

  // An open file without a name, or -1 with errno set.
  int create() const {
    std::string name = directory_ + "/lms-store-XXXXXX";
    const int file = mkostemp(&name[0], O_CLOEXEC);
    if (file >= 0) {
      unlink(name.c_str());
    }
    return file;
  }

 protected:
  std::unique_ptr<Segment> grow(std::uint64_t bytes) override {
    const int file = create();
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
    return std::make_unique<FileSegment>(store_out_of_the_way(file), bytes);
  }

  bool shared_by_fork() const override { return true; }  // both processes hold the same open file

 private:
  std::string directory_;
};

}  // namespace

bool Store::allocate(std::uint64_t bytes, Slot* slot) {
  try {
    return take_slot(bytes, slot);
  } catch (const std::bad_alloc&) {
    error_ = failure("enlarged", ENOMEM);
    return false;
  }
}

bool Store::take_slot(std::uint64_t bytes, Slot* slot) {
  for (const auto& segment : segments_) {
    if (segment->frozen) {
      continue;
    }
    const std::uint64_t offset = segment->ranges.take(bytes);
    if (offset != Ranges::none) {
      *slot = Slot{this, segment.get(), offset};
      used_ += bytes;
      return true;
    }
  }
  // When the system refuses a large segment, a smaller one may still do.
  std::uint64_t size = next_segment_bytes(bytes);
  std::unique_ptr<Segment> segment = grow(size);
  while (segment == nullptr && size > bytes) {
    size = std::max(bytes, size / 2);
    segment = grow(size);
  }
  if (segment == nullptr) {
    error_ = failure("enlarged", errno);
    return false;
  }
  *slot = Slot{this, segment.get(), segment->ranges.take(bytes)};
  used_ += bytes;
  add_segment(std::move(segment));
  return true;
}

bool Store::has_room(std::uint64_t bytes) const {
  return std::any_of(segments_.begin(), segments_.end(), [bytes](const std::unique_ptr<Segment>& segment) {
    return !segment->frozen && segment->ranges.has(bytes);
  });
}

std::uint64_t Store::next_segment_bytes(std::uint64_t bytes) const {
  return std::max(bytes, std::min(largest_segment(), std::max(store_first_segment, writable_ / store_growth)));
}

void Store::add_segment(std::unique_ptr<Segment> segment) {
  writable_ += segment->ranges.total();
  segments_.push_back(std::move(segment));
}

void Store::release(const Slot& slot, std::uint64_t bytes) {
  slot.segment->ranges.give(slot.offset, bytes);
  used_ -= bytes;
  if (!slot.segment->ranges.all_free()) {
    return;
  }
  // One empty segment is kept: a store whose size swings around a boundary must not make a file at every swing.
  const auto is_spare = [&](const std::unique_ptr<Segment>& segment) {
    return segment.get() != slot.segment && !segment->frozen && segment->ranges.all_free();
  };
  if (!slot.segment->frozen) {
    if (std::none_of(segments_.begin(), segments_.end(), is_spare)) {
      return;
    }
    writable_ -= slot.segment->ranges.total();
  }
  segments_.erase(std::find_if(segments_.begin(), segments_.end(),
                               [&](const std::unique_ptr<Segment>& segment) { return segment.get() == slot.segment; }));
}

void Store::freeze() {
  if (!shared_by_fork()) {
    return;
  }
  for (const auto& segment : segments_) {
    segment->frozen = true;
  }
  writable_ = 0;
  segments_.erase(std::remove_if(segments_.begin(), segments_.end(),
                                 [](const std::unique_ptr<Segment>& segment) { return segment->ranges.all_free(); }),
                  segments_.end());
}

std::unique_ptr<Store> make_memory_store() { return std::make_unique<MemoryStore>(); }

std::unique_ptr<Store> make_file_store(const std::string& directory, std::string* error) {
  auto store = std::make_unique<FileStore>(directory);
  const int file = store->create();
  if (file < 0) {
    *error = store->failure("created", errno);
    return nullptr;
  }
  close(file);
  return store;
}

}  // namespace lms

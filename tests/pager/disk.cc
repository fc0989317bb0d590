// The store in files: what moves through which queue, checksums, several directories, and everything that a disk, a
// kernel or a program can refuse or spoil.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "check.h"
#include "disk/checksum.h"
#include "disk/disk_queue.h"
#include "disk/file_segment.h"
#include "disk/file_store.h"
#include "disk/thread_queue.h"
#include "disk/uring_queue.h"
#include "processes.h"

using check::contains;
using check::create;
using check::filled;
using check::holds;
using check::kib;
using check::mib;
using check::options;
using check::pin;
using check::Random;
using check::reclaim;
using check::statistic;
using check::store_files;
using check::touch;
using lms::DiskQueue;
using lms::DiskRequest;
using lms::Slot;
using lms::Store;

namespace {

// Pages, as blocks have them.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    base_ = static_cast<char*>(memory);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { munmap(base_, bytes_); }

  char* get() { return base_; }

 private:
  std::size_t bytes_;
  char* base_ = nullptr;
};

std::string folder(const char* name) {
  const std::string path = check::directory() + "/" + name;
  CHECK(mkdir(path.c_str(), 0700) == 0 || errno == EEXIST);
  return path;
}

std::unique_ptr<Store> store_in(const std::vector<std::string>& directories, bool checks = true) {
  std::string error;
  lms::FileStoreOptions given;
  given.directories = directories;
  given.checks = checks;
  std::unique_ptr<Store> store = lms::make_file_store(given, &error);
  CHECK(error.empty());
  CHECK(store != nullptr);
  return store;
}

// From now on the system call fails; with `file` only for that descriptor as its first argument.
void refuse(long call, int error_number, int file = -1) {
  const std::uint8_t past_file = file == -1 ? 0 : 1;
  const sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(file), 0, past_file),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error_number)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof filter / sizeof filter[0], const_cast<sock_filter*>(filter)};
  CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  // In all threads.
  CHECK_EQ(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program), 0);
}

void forbid_uring() {
#ifdef SYS_io_uring_setup
  refuse(SYS_io_uring_setup, EPERM);
#endif
}

// A slow disk: from now on, of the calls of threads that start later, those to write to files in that directory take so
// long, one after the other. False where the kernel can't do that.
bool slow_writes(const std::string& directory, std::chrono::milliseconds each) {
#ifdef SECCOMP_USER_NOTIF_FLAG_CONTINUE
  const sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pwrite64, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof filter / sizeof filter[0], const_cast<sock_filter*>(filter)};
  CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  const long calls = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
  if (calls >= 0) {
    std::thread([=] {
      seccomp_notif call = {};
      while (ioctl(static_cast<int>(calls), SECCOMP_IOCTL_NOTIF_RECV, &call) == 0) {
        const std::string link = "/proc/self/fd/" + std::to_string(call.data.args[0]);
        std::array<char, PATH_MAX> file{};
        if (readlink(link.c_str(), file.data(), file.size() - 1) > 0 && contains(file.data(), directory.c_str())) {
          std::this_thread::sleep_for(each);
        }
        seccomp_notif_resp answer = {};
        answer.id = call.id;
        answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        ioctl(static_cast<int>(calls), SECCOMP_IOCTL_NOTIF_SEND, &answer);
        call = {};
      }
    }).detach();
    return true;
  }
#endif
  std::printf("needs Linux 5.5, and to be let\n");
  return false;
}

// Runs in a process of its own, since what it does to itself lasts. Returns what it said on stderr.
template <typename Run>
std::string apart(Run run) {
  int said[2] = {};
  CHECK_EQ(pipe(said), 0);
  const pid_t child = check::process([&] {
    dup2(said[1], STDERR_FILENO);
    close(said[0]);
    close(said[1]);
    run();
  });
  close(said[1]);
  std::string text;
  char part[4096];
  for (ssize_t bytes = 0; (bytes = read(said[0], part, sizeof part)) > 0;) {
    text.append(part, static_cast<std::size_t>(bytes));
  }
  close(said[0]);
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    CHECK_FAIL("the process failed: %s", text.c_str());
  }
  return text;
}

}  // namespace

// ---------------------------------------------------------------------------------------------- checksums

namespace {

// Of the definition: eight sums of every eighth word of 32 bits, and the sums of these sums after each.
std::array<std::uint64_t, 16> sums_of(const char* from, std::size_t bytes) {
  std::array<std::uint64_t, 16> sums{};
  for (std::size_t i = 0; i < bytes / 4; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, from + 4 * i, 4);
    sums[i % 8] += word;
    sums[8 + i % 8] += sums[i % 8];
  }
  return sums;
}

}  // namespace

CASE(checksums_tell_sums_apart) {
  Random random(check::seed());
  Memory memory(64 * kib);
  for (std::uint64_t step = 0; step < std::max<std::uint64_t>(20, check::steps(300)); ++step) {
    const std::size_t bytes = 32 * (1 + random.below(2048));
    check::fill(memory.get(), bytes, random.next());
    const std::uint64_t sum = lms::checksum(memory.get(), bytes);
    const auto exact = sums_of(memory.get(), bytes);
    CHECK_EQ(lms::checksum(memory.get(), bytes), sum);
    // What a disk does: a bit, a sector of zeros, a sector from elsewhere, two of them exchanged.
    for (int kind = 0; kind < 4; ++kind) {
      Memory other(64 * kib);
      std::memcpy(other.get(), memory.get(), bytes);
      const std::size_t piece = std::min<std::size_t>(bytes / 2, 512);
      const std::size_t at = random.below(bytes - piece + 1);
      const std::size_t second = random.below(bytes - piece + 1);
      if (kind == 0) {
        other.get()[at] = static_cast<char>(other.get()[at] ^ (1 << random.below(8)));
      } else if (kind == 1) {
        std::memset(other.get() + at, 0, piece);
      } else if (kind == 2) {
        std::memcpy(other.get() + at, memory.get() + second, piece);
      } else {
        std::memcpy(other.get() + at, memory.get() + second, piece);
        std::memcpy(other.get() + second, memory.get() + at, piece);
      }
      const bool same = std::memcmp(other.get(), memory.get(), bytes) == 0;
      CHECK_EQ(lms::checksum(other.get(), bytes) == sum, same);
      CHECK_EQ(sums_of(other.get(), bytes) == exact, same);
    }
  }
}

CASE(checksums_of_all_ones_do_not_overflow) {
  // The largest sums that there can be in a unit: one word more or less at either end must still count.
  Memory memory(lms::disk_unit);
  std::memset(memory.get(), 0xFF, lms::disk_unit);
  const std::uint64_t sum = lms::checksum(memory.get(), lms::disk_unit);
  const auto exact = sums_of(memory.get(), lms::disk_unit);
  for (const std::uint64_t largest : exact) {
    CHECK(largest < std::uint64_t{1} << 63);
  }
  for (const std::size_t at : {std::size_t{0}, lms::disk_unit - 1}) {
    memory.get()[at] = 0;
    CHECK(lms::checksum(memory.get(), lms::disk_unit) != sum);
    memory.get()[at] = static_cast<char>(0xFF);
  }
  CHECK_EQ(lms::checksum(memory.get(), lms::disk_unit), sum);
}

// ---------------------------------------------------------------------------------------------- queues

namespace {

int file_of(std::uint64_t bytes) {
  std::string name = check::directory() + "/file-XXXXXX";  // mkostemp(3) replaces the letters
  const int file = mkostemp(&name[0], O_CLOEXEC);
  CHECK(file >= 0);
  unlink(name.c_str());
  CHECK_EQ(ftruncate(file, static_cast<off_t>(bytes)), 0);
  return file;
}

// Moves pieces of any size, in any order, as many at a time as may be.
void moves_contents(DiskQueue* queue) {
  constexpr std::uint64_t piece = 64 * kib;
  constexpr std::uint64_t pieces = 100;
  const int file = file_of(pieces * piece);
  Memory memory(pieces * piece);
  check::fill(memory.get(), pieces * piece, 1);
  for (const bool write : {true, false}) {
    if (!write) {
      std::memset(memory.get(), 0, pieces * piece);
    }
    std::vector<DiskRequest> requests(pieces);
    std::uint64_t begun = 0;
    for (std::uint64_t over = 0; over < pieces;) {
      if (begun < pieces && begun - over < DiskQueue::depth) {
        const std::uint64_t index = (begun * 37) % pieces;
        requests[index] = DiskRequest{file, write, iovec{memory.get() + index * piece, piece}, index * piece, -1};
        queue->submit(&requests[index]);
        ++begun;
      } else {
        const DiskRequest* request = queue->wait();
        CHECK_EQ(request->result, piece);
        ++over;
      }
    }
  }
  CHECK(holds(memory.get(), pieces * piece, 1));
  // Errors belong to their requests.
  DiskRequest wrong = {-1, false, iovec{memory.get(), piece}, 0, 0};
  DiskRequest beyond = {file, false, iovec{memory.get(), piece}, pieces * piece, -1};
  queue->submit(&wrong);
  queue->submit(&beyond);
  for (int i = 0; i < 2; ++i) {
    const DiskRequest* request = queue->wait();
    CHECK_EQ(request->result, request == &wrong ? -EBADF : 0);
  }
  CHECK(queue->works());
  close(file);
}

}  // namespace

CASE(io_uring_moves_contents) {
  const std::unique_ptr<DiskQueue> queue = lms::make_uring_queue();
  if (queue == nullptr) {
    std::printf("needs a kernel that allows io_uring\n");
    return;
  }
  moves_contents(queue.get());
}

CASE(threads_move_contents) {
  lms::DiskThreads threads;
  lms::ThreadQueue queue(&threads);
  std::thread other([&threads] {
    lms::ThreadQueue second(&threads);
    moves_contents(&second);
  });
  moves_contents(&queue);
  other.join();
  _exit(0);  // the threads are never ended
}

CASE(no_thread_is_to_be_had) {
  apart([] {
    refuse(SYS_clone, EAGAIN);
#ifdef SYS_clone3
    refuse(SYS_clone3, EAGAIN);
#endif
    lms::DiskThreads threads;
    lms::ThreadQueue queue(&threads);
    moves_contents(&queue);
  });
}

CASE(io_uring_survives_a_closed_descriptor) {
  const std::unique_ptr<DiskQueue> queue = lms::make_uring_queue();
  if (queue == nullptr) {
    std::printf("needs a kernel that allows io_uring\n");
    return;
  }
  const int file = file_of(mib);
  Memory memory(mib);
  check::fill(memory.get(), mib, 1);
  DiskRequest first = {file, true, iovec{memory.get(), mib / 2}, 0, 0};
  queue->submit(&first);
  for (int number = 3; number < check::descriptors; ++number) {
    if (number != file) {
      close(number);
    }
  }
  DiskRequest second = {file, true, iovec{memory.get() + mib / 2, mib / 2}, mib / 2, 0};
  queue->submit(&second);
  for (int i = 0; i < 2; ++i) {
    CHECK_EQ(queue->wait()->result, mib / 2);
  }
  CHECK(!queue->works());
  Memory back(mib);
  CHECK_EQ(pread(file, back.get(), mib, 0), mib);
  CHECK(holds(back.get(), mib, 1));
}

// ---------------------------------------------------------------------------------------------- the store

namespace {

// Blocks of many sizes, written, read and released by several threads.
// That this process has made, but for those that io_uring takes. Sanitizers make some of their own.
std::uint64_t system_calls_that_write() {
  std::ifstream file("/proc/self/io");
  std::string name;
  std::uint64_t value = 0;
  while (file >> name >> value) {
    if (name == "syscw:") {
      return value;
    }
  }
  CHECK(!"a kernel that counts system calls for each process");
  return 0;
}

// Up to 16 parts of whole pages.
std::vector<iovec> cut(char* memory, std::uint64_t bytes, Random* random) {
  std::vector<iovec> parts;
  while (bytes > 0) {
    const std::uint64_t part = parts.size() == 15 ? bytes : (1 + random->below(bytes / (4 * kib))) * 4 * kib;
    parts.push_back(iovec{memory, part});
    memory += part;
    bytes -= part;
  }
  return parts;
}

void keeps_contents(Store* store) {
  constexpr std::uint64_t largest = 3 * mib;
  std::mutex lock;
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      Random random(check::seed() + thread);
      Memory memory(largest);
      for (std::uint64_t step = 0; step < std::max<std::uint64_t>(5, check::steps(40)); ++step) {
        // Small ones are written together.
        const std::uint64_t most = random.below(2) == 0 ? lms::disk_unit : largest;
        const std::uint64_t bytes = (1 + random.below(most / (4 * kib))) * 4 * kib;
        Slot slot;
        {
          const std::lock_guard<std::mutex> guard(lock);
          CHECK(store->allocate(bytes, &slot));
        }
        const std::uint64_t seed = random.next();
        check::fill(memory.get(), bytes, seed);
        const std::vector<iovec> parts =
            most < largest ? cut(memory.get(), bytes, &random) : std::vector<iovec>{{memory.get(), bytes}};
        CHECK(slot.segment->write_together(slot.offset, parts.data(), parts.size()));
        std::memset(memory.get(), 0, bytes);
        std::uint64_t at = slot.offset;
        for (const iovec& part : parts) {
          CHECK(slot.segment->read(at, static_cast<char*>(part.iov_base), part.iov_len));
          at += part.iov_len;
        }
        CHECK(holds(memory.get(), bytes, seed));
        const std::lock_guard<std::mutex> guard(lock);
        store->release(slot, bytes);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK_EQ(store->used_bytes(), 0);
}

}  // namespace

CASE(files_keep_contents) { keeps_contents(store_in({check::directory()}).get()); }

CASE(files_keep_contents_without_checksums) { keeps_contents(store_in({check::directory()}, false).get()); }

CASE(files_keep_contents_without_io_uring) {
  apart([] {
    forbid_uring();
    keeps_contents(store_in({check::directory()}).get());
  });
}

CASE(files_keep_contents_without_locked_memory) {
  apart([] {
    const rlimit none = {0, 0};
    CHECK_EQ(setrlimit(RLIMIT_MEMLOCK, &none), 0);
    keeps_contents(store_in({check::directory()}).get());
  });
}

CASE(files_keep_contents_in_the_page_cache) {
  // Where the file system refuses O_DIRECT: F_SETFL is what asks for it.
  apart([] {
    refuse(SYS_fcntl, EINVAL);
    keeps_contents(store_in({check::directory()}).get());
  });
}

CASE(files_keep_contents_in_a_file_system_in_memory) {
  const std::string name = "/dev/shm/lms-test-" + std::to_string(getpid());
  CHECK_EQ(mkdir(name.c_str(), 0700), 0);
  keeps_contents(store_in({name}).get());
  CHECK_EQ(rmdir(name.c_str()), 0);
}

CASE(files_keep_contents_where_parts_are_refused) {
  apart([] {
    refuse(SYS_pwritev, EIO);
    keeps_contents(store_in({check::directory()}).get());
  });
}

CASE(a_file_system_that_wants_other_pieces) {
  // Direct I/O is refused when it is tried, as where sectors are larger than pages: from memory that is not aligned.
  const std::unique_ptr<Store> store = store_in({check::directory()});
  Slot slot;
  CHECK(store->allocate(mib, &slot));
  Memory memory(2 * mib);
  char* odd = memory.get() + 8;
  check::fill(odd, mib, 1);
  CHECK(slot.segment->write(slot.offset, odd, mib));
  std::memset(odd, 0, mib);
  CHECK(slot.segment->read(slot.offset, odd, mib));
  CHECK(holds(odd, mib, 1));
  const std::vector<int> files = store_files();
  CHECK_EQ(files.size(), 1);
  CHECK_EQ(fcntl(files[0], F_GETFL) & O_DIRECT, 0);
}

CASE(the_page_cache_stays_empty) {
  const std::unique_ptr<Store> store = store_in({check::directory()});
  Slot slot;
  CHECK(store->allocate(4 * mib, &slot));
  const std::vector<int> files = store_files();
  CHECK_EQ(files.size(), 1);
  if ((fcntl(files[0], F_GETFL) & O_DIRECT) == 0) {
    std::printf("needs a directory on a file system with O_DIRECT\n");
    return;
  }
  Memory memory(4 * mib);
  check::fill(memory.get(), 4 * mib, 1);
  CHECK(slot.segment->write(slot.offset, memory.get(), 4 * mib));
  CHECK(slot.segment->read(slot.offset, memory.get(), 4 * mib));
  void* mapped = mmap(nullptr, 4 * mib, PROT_READ, MAP_SHARED, files[0], static_cast<off_t>(slot.offset));
  CHECK(mapped != MAP_FAILED);
  std::vector<unsigned char> resident(4 * mib / CHECK_PAGE);
  CHECK_EQ(mincore(mapped, 4 * mib, resident.data()), 0);
  CHECK_EQ(std::count_if(resident.begin(), resident.end(), [](unsigned char page) { return (page & 1) != 0; }), 0);
  munmap(mapped, 4 * mib);
}

CASE(wrong_contents_are_not_read) {
  for (const bool checks : {true, false}) {
    const std::unique_ptr<Store> store = store_in({check::directory()}, checks);
    Slot first;
    Slot slot;
    CHECK(store->allocate(64 * kib, &first));
    CHECK(store->allocate(2 * mib, &slot));
    Memory memory(2 * mib);
    check::fill(memory.get(), 2 * mib, 1);
    CHECK(slot.segment->write(slot.offset, memory.get(), 2 * mib));
    CHECK(slot.segment->read(slot.offset, memory.get(), 2 * mib));
    const std::vector<int> files = store_files();
    CHECK_EQ(files.size(), 1);
    // A byte in the last of its units.
    char byte = 0;
    const off_t at = static_cast<off_t>(slot.offset + 2 * mib - 100);
    const std::string path = "/proc/self/fd/" + std::to_string(files[0]);
    const int buffered = open(path.c_str(), O_RDWR | O_CLOEXEC);
    CHECK(buffered >= 0);
    CHECK_EQ(pread(buffered, &byte, 1, at), 1);
    byte = static_cast<char>(byte ^ 1);
    CHECK_EQ(pwrite(buffered, &byte, 1, at), 1);
    close(buffered);
    CHECK_EQ(slot.segment->read(slot.offset, memory.get(), 2 * mib), !checks);
    if (checks) {
      CHECK_EQ(errno, EBADMSG);
      const std::string text = store->failure("read", slot, 2 * mib, errno);
      CHECK(contains(text.c_str(), ("in '" + check::directory() + "' cannot be read: wrong checksum").c_str()));
      CHECK(contains(text.c_str(), "a block of 2097152 bytes at byte 65536"));
    }
    // What was written anew is right again.
    check::fill(memory.get(), 2 * mib, 2);
    CHECK(slot.segment->write(slot.offset, memory.get(), 2 * mib));
    CHECK(slot.segment->read(slot.offset, memory.get(), 2 * mib));
    CHECK(holds(memory.get(), 2 * mib, 2));
  }
}

CASE_WITHOUT_SANITIZER(parts_are_written_in_one_request) {
  const std::unique_ptr<Store> store = store_in({check::directory()});
  Slot slot;
  CHECK(store->allocate(256 * kib, &slot));
  Memory memory(512 * kib);
  check::fill(memory.get(), 512 * kib, 1);
  std::vector<iovec> parts;
  for (std::uint64_t part = 0; part < 4; ++part) {
    parts.push_back(iovec{memory.get() + part * 128 * kib, 64 * kib});
  }
  const std::uint64_t before = system_calls_that_write();
  CHECK(slot.segment->write_together(slot.offset, parts.data(), parts.size()));
  CHECK_EQ(system_calls_that_write(), before + 1);
  // Each has a checksum of its own.
  for (const iovec& part : parts) {
    CHECK(slot.segment->read(slot.offset, memory.get(), part.iov_len));
    CHECK(std::memcmp(memory.get(), part.iov_base, part.iov_len) == 0);
    slot.offset += part.iov_len;
  }
}

// Several are due at the same time: each operation is the last for a while that writes to eight of them.
CASE_WITHOUT_SANITIZER(small_blocks_leave_together) {
  constexpr std::uint64_t bytes = 64 * kib;
  lms_pager* pager = create(options(4 * mib, "iteration", check::directory().c_str()));
  std::vector<char*> blocks;
  for (std::uint64_t block = 0; block < 128; ++block) {
    blocks.push_back(filled(pager, bytes, block));
  }
  const std::uint64_t before = system_calls_that_write();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (std::uint64_t round = 1; system_calls_that_write() == before; ++round) {
    CHECK(std::chrono::steady_clock::now() < deadline);
    for (std::uint64_t first = 0; first < blocks.size(); first += 8) {
      std::vector<lms_pin_token> tokens;
      for (std::uint64_t block = first; block < first + 8; ++block) {
        tokens.push_back(pin(pager, blocks[block], true));
        check::fill(blocks[block], bytes, 1000 * round + block);
      }
      for (const lms_pin_token& token : tokens) {
        lms_unpin(pager, token);
      }
    }
    for (std::uint64_t block = 0; block < blocks.size(); ++block) {
      for (int use = 0; use < 8; ++use) {
        touch(pager, blocks[block]);  // it works while others leave
      }
      CHECK(holds(blocks[block], bytes, 1000 * round + block));
    }
  }
  CHECK(statistic(pager, "early_out.bytes") > 0);
}

CASE(wrong_contents_are_an_error_of_who_needs_them) {
  lms_pager* pager = create(options(8 * mib, "lru", check::directory().c_str()));
  char* block = filled(pager, mib, 1);
  char* other = filled(pager, mib, 2);
  CHECK_EQ(reclaim(pager), 2 * mib);
  const std::vector<int> files = store_files();
  CHECK_EQ(files.size(), 1);
  // The file is shorter than what was written to it.
  struct stat before = {};
  CHECK_EQ(fstat(files[0], &before), 0);
  CHECK_EQ(ftruncate(files[0], 0), 0);
  lms_pin_token token = {};
  CHECK_EQ(lms_pin(pager, block, 0, &token), LMS_READ_FAILED);
  CHECK(contains(lms_last_error(), "cannot be read: its file is shorter than what was written to it"));
  // And then has zeros there.
  CHECK_EQ(ftruncate(files[0], before.st_size), 0);
  CHECK_EQ(lms_pin(pager, block, 0, &token), LMS_READ_FAILED);
  CHECK(contains(lms_last_error(), "cannot be read: wrong checksum"));
  CHECK(contains(lms_last_error(), "a block of 1048576 bytes"));
  // Everything else goes on.
  lms_free(pager, block);
  lms_free(pager, other);
  char* next = filled(pager, mib, 3);
  CHECK_EQ(reclaim(pager), mib);
  const lms_pin_token right = pin(pager, next);
  CHECK(holds(next, mib, 3));
  lms_unpin(pager, right);
}

// ---------------------------------------------------------------------------------------------- several directories

CASE(directories_share_the_blocks) {
  const std::unique_ptr<Store> store = store_in({folder("a"), folder("b"), folder("c")});
  std::vector<Slot> slots(96);
  Memory memory(mib);
  std::array<std::uint64_t, 3> bytes{};
  for (std::size_t i = 0; i < slots.size(); ++i) {
    CHECK(store->allocate(mib, &slots[i]));
    bytes[slots[i].segment->place] += mib;
    check::fill(memory.get(), mib, i);
    CHECK(slots[i].segment->write(slots[i].offset, memory.get(), mib));
  }
  for (const std::uint64_t part : bytes) {
    CHECK(part > 0);  // how much is a matter of speed
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    CHECK(slots[i].segment->read(slots[i].offset, memory.get(), mib));
    CHECK(holds(memory.get(), mib, i));
    store->release(slots[i], mib);
  }
  CHECK_EQ(store->used_bytes(), 0);
}

CASE(a_directory_that_is_gone_is_left_out) {
  const std::string said = apart([] {
    const std::string gone = folder("gone");
    const std::unique_ptr<Store> store = store_in({gone, folder("stays")});
    CHECK_EQ(rmdir(gone.c_str()), 0);
    keeps_contents(store.get());
  });
  CHECK(contains(said.c_str(), "/gone' cannot be enlarged: No such file or directory"));
  CHECK(contains(said.c_str(), "left out while other directories have room"));
  CHECK_EQ(said.find('\n'), said.size() - 1);  // said once
}

CASE(all_directories_that_are_gone_are_named) {
  const std::string said = apart([] {
    const std::string first = folder("first");
    const std::string second = folder("second");
    const std::unique_ptr<Store> store = store_in({first, second});
    CHECK_EQ(rmdir(first.c_str()), 0);
    CHECK_EQ(rmdir(second.c_str()), 0);
    lms::Slot slot;
    CHECK(!store->allocate(mib, &slot));
    CHECK(contains(store->error().c_str(), "/first'"));
    CHECK(contains(store->error().c_str(), "(nor can that in '"));
    CHECK(contains(store->error().c_str(), "/second'"));
  });
  CHECK_EQ(std::count(said.begin(), said.end(), '\n'), 2);  // each is said to be left out
}

CASE(a_directory_that_is_wrong_is_an_error) {
  std::string error;
  lms::FileStoreOptions given;
  given.directories = {folder("a"), "no/such/directory"};
  CHECK(lms::make_file_store(given, &error) == nullptr);
  CHECK(contains(error.c_str(), "'no/such/directory' cannot be created: No such file or directory"));
}

// A disk that is slow to write to is measured, and gets less.
CASE_WITHOUT_SANITIZER(a_slow_directory_gets_less) {
  apart([] {
    if (!slow_writes(folder("slow"), std::chrono::milliseconds(50))) {
      return;
    }
    forbid_uring();
    const std::unique_ptr<Store> store = store_in({folder("slow"), folder("fast")});
    Memory memory(mib);
    std::array<std::uint64_t, 2> bytes{};
    for (std::uint64_t i = 0; i < 96; ++i) {
      Slot slot;
      CHECK(store->allocate(mib, &slot));
      bytes[slot.segment->place] += mib;
      check::fill(memory.get(), mib, i);
      CHECK(slot.segment->write(slot.offset, memory.get(), mib));
      CHECK(slot.segment->read(slot.offset, memory.get(), mib));
      CHECK(holds(memory.get(), mib, i));
    }
    CHECK(bytes[0] > 0);
    CHECK(bytes[1] > 2 * bytes[0]);
  });
}

namespace {

// A program that pages all its blocks out and in, again and again.
void works_through(lms_pager* pager, std::uint64_t rounds) {
  constexpr std::uint64_t count = 24;
  std::vector<char*> blocks;
  for (std::uint64_t i = 0; i < count; ++i) {
    blocks.push_back(filled(pager, mib, i));
  }
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const lms_pin_token token = pin(pager, blocks[i], true);
      CHECK(holds(blocks[i], mib, (round - 1) * count + i));
      check::fill(blocks[i], mib, round * count + i);
      lms_unpin(pager, token);
    }
  }
  for (char* block : blocks) {
    lms_free(pager, block);
  }
}

// The number of a file that the pager's store has in the directory.
int file_in(lms_pager* pager, const std::string& directory) {
  std::vector<char*> blocks;
  while (store_files(directory).empty()) {
    CHECK(blocks.size() < 100);
    blocks.push_back(filled(pager, mib, 1));
    reclaim(pager);
  }
  for (char* block : blocks) {
    lms_free(pager, block);
  }
  return store_files(directory)[0];
}

}  // namespace

CASE_WITHOUT_SANITIZER(a_slow_disk) {
  for (const char* policy : {"lru", "iteration"}) {
    apart([policy] {
      if (!slow_writes(check::directory(), std::chrono::milliseconds(2))) {
        return;
      }
      forbid_uring();
      lms_pager* pager = create(options(8 * mib, policy, check::directory().c_str()));
      std::thread other([pager] { works_through(pager, 4); });
      works_through(pager, 4);
      other.join();
      CHECK_EQ(statistic(pager, "store_bytes.current"), 0);
      CHECK_EQ(statistic(pager, "over_limit.requests"), 0);
    });
  }
}

CASE(a_directory_whose_disk_fails_is_left_out) {
  for (const char* policy : {"lru", "iteration"}) {
    const std::string said = apart([policy] {
      forbid_uring();
      const std::string both = folder("fails") + "\n" + folder("works");
      lms_pager* pager = create(options(8 * mib, policy, both.c_str()));
      refuse(SYS_pwrite64, EIO, file_in(pager, "/fails"));
      std::vector<std::thread> threads;
      for (int count = 0; count < 3; ++count) {  // whose writes fail at the same time
        threads.emplace_back([pager] { works_through(pager, 5); });
      }
      for (std::thread& thread : threads) {
        thread.join();
      }
      CHECK_EQ(statistic(pager, "store_bytes.current"), 0);
    });
    CHECK(contains(said.c_str(), "/fails' cannot be written: Input/output error"));
    CHECK_EQ(said.find('\n'), said.size() - 1);
  }
}

CASE(the_only_directory_fails) {
  const std::string said = apart([] {
    forbid_uring();
    lms_pager* pager = create(options(8 * mib, "lru", check::directory().c_str()));
    char* block = filled(pager, mib, 7);
    reclaim(pager);
    touch(pager, block, true);
    refuse(SYS_pwrite64, EIO);
    std::uint64_t reclaimed = 0;
    CHECK_EQ(lms_reclaim(pager, mib, &reclaimed), LMS_STORE_FAILED);
    CHECK(contains(lms_last_error(), "cannot be written: Input/output error"));
    CHECK(contains(lms_last_error(), "choose another directory"));
    CHECK_EQ(lms_reclaim(pager, mib, &reclaimed), LMS_STORE_FAILED);
    CHECK(holds(block, mib, 7));
  });
  CHECK(contains(said.c_str(), "cannot be written: Input/output error"));
  CHECK(contains(said.c_str(), "what can't leave stays in memory"));
  CHECK_EQ(said.find('\n'), said.size() - 1);  // said once
}

CASE(all_directories_fail) {
  const std::string said = apart([] {
    forbid_uring();
    const std::string both = folder("a") + "\n" + folder("b");
    lms_pager* pager = create(options(8 * mib, "lru", both.c_str()));
    char* block = filled(pager, mib, 7);
    refuse(SYS_pwrite64, EIO);
    for (int times = 0; times < 3; ++times) {
      std::uint64_t reclaimed = 0;
      CHECK_EQ(lms_reclaim(pager, mib, &reclaimed), LMS_STORE_FAILED);
      CHECK(contains(lms_last_error(), "cannot be written: Input/output error"));
      CHECK(holds(block, mib, 7));
    }
  });
  CHECK_EQ(std::count(said.begin(), said.end(), '\n'), 2);
}

CASE(reading_fails) {
  apart([] {
    forbid_uring();
    lms_pager* pager = create(options(8 * mib, "lru", check::directory().c_str()));
    char* block = filled(pager, mib, 7);
    CHECK_EQ(reclaim(pager), mib);
    refuse(SYS_pread64, EIO);
    lms_pin_token token = {};
    CHECK_EQ(lms_pin(pager, block, 0, &token), LMS_READ_FAILED);
    CHECK(contains(lms_last_error(), "cannot be read: Input/output error (a block of 1048576 bytes at byte"));
    CHECK(contains(lms_last_error(), "the disk fails"));
  });
}

// ---------------------------------------------------------------------------------------------- forks

// ThreadSanitizer takes a thread that starts in a child for one of its parent's.
CASE_WITHOUT_SANITIZER(parent_and_child_go_on) {
  for (const bool uring : {true, false}) {
    apart([uring] {
      if (!uring) {
        forbid_uring();
      }
      const std::string both = folder("a") + "\n" + folder("b");
      lms_pager* pager = create(options(8 * mib, "iteration", both.c_str()));
      std::vector<char*> kept;
      for (std::uint64_t i = 0; i < 8; ++i) {
        kept.push_back(filled(pager, mib, 100 + i));
      }
      works_through(pager, 3);
      // Requests of another thread are in flight at any moment.
      std::thread other([pager] { works_through(pager, 6); });
      std::vector<pid_t> children;
      for (int count = 0; count < 4; ++count) {
        const pid_t child = fork();
        if (child == 0) {
          works_through(pager, 3);
          for (std::uint64_t i = 0; i < kept.size(); ++i) {
            const lms_pin_token token = pin(pager, kept[i]);
            CHECK(holds(kept[i], mib, 100 + i));
            lms_unpin(pager, token);
          }
          _exit(0);
        }
        children.push_back(child);
        works_through(pager, 1);
      }
      other.join();
      for (const pid_t child : children) {
        int status = 0;
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK_EQ(status, 0);
      }
      for (std::uint64_t i = 0; i < kept.size(); ++i) {
        const lms_pin_token token = pin(pager, kept[i]);
        CHECK(holds(kept[i], mib, 100 + i));
        lms_unpin(pager, token);
      }
    });
  }
}

CASE(the_program_closes_all_descriptors) {
  for (const bool uring : {true, false}) {
    apart([uring] {
      if (!uring) {
        forbid_uring();
      }
      lms_pager* pager = create(options(8 * mib, "iteration", check::directory().c_str()));
      std::vector<char*> kept;
      for (std::uint64_t i = 0; i < 8; ++i) {
        kept.push_back(filled(pager, mib, 100 + i));
      }
      works_through(pager, 3);
      for (int number = 3; number < check::descriptors; ++number) {
        close(number);
      }
      works_through(pager, 3);
      for (std::uint64_t i = 0; i < kept.size(); ++i) {
        const lms_pin_token token = pin(pager, kept[i]);
        CHECK(holds(kept[i], mib, 100 + i));
        lms_unpin(pager, token);
      }
    });
  }
}

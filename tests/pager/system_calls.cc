// System calls that are given blocks: away, clean, and none.
#include "system_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <thread>

#include "check.h"

using check::allocate;
using check::create;
using check::filled;
using check::holds;
using check::kib;
using check::mib;
using check::options;
using check::reclaim;
using check::statistic;
using check::touch;

namespace {

constexpr std::uint64_t block_bytes = 64 * kib;
constexpr std::size_t part = 16 * kib;  // less than what a pipe and a socket hold

// A block that is away, or resident and clean: then a call that writes it would fail.
char* away(lms_pager* pager, std::uint64_t seed) {
  char* block = filled(pager, block_bytes, seed);
  reclaim(pager);
  CHECK(statistic(pager, "away_bytes.current") >= block_bytes);
  return block;
}

char* clean(lms_pager* pager, std::uint64_t seed) {
  char* block = away(pager, seed);
  touch(pager, block);
  CHECK(statistic(pager, "clean_bytes.current") >= block_bytes);
  return block;
}

struct Ends {
  int in = -1;
  int out = -1;
  ~Ends() {
    close(in);
    close(out);
  }
};

void connect(Ends* ends, bool datagrams) {
  int both[2];
  CHECK_EQ(socketpair(AF_UNIX, datagrams ? SOCK_DGRAM : SOCK_STREAM, 0, both), 0);
  ends->in = both[0];
  ends->out = both[1];
}

void make_file(Ends* ends) {
  std::string name = check::directory() + "/file-XXXXXX";
  ends->out = mkstemp(&name[0]);
  ends->in = open(name.c_str(), O_RDWR);
  CHECK(ends->in >= 0 && ends->out >= 0);
  unlink(name.c_str());
}

using Transfer = std::function<ssize_t(int file, char* buffer, std::size_t bytes)>;

struct Pair {
  const char* name;
  void (*make)(Ends*);
  Transfer out;
  Transfer in;
};

void sockets(Ends* ends) { connect(ends, false); }
void datagrams(Ends* ends) { connect(ends, true); }

iovec vector(char* buffer, std::size_t bytes) { return iovec{buffer, bytes}; }

msghdr message(iovec* one) {
  msghdr result = {};
  result.msg_iov = one;
  result.msg_iovlen = 1;
  return result;
}

ssize_t with_file(int file, const char* mode, const std::function<std::size_t(FILE*)>& transfer) {
  FILE* stream = fdopen(dup(file), mode);
  CHECK(stream != nullptr);
  const std::size_t items = transfer(stream);
  CHECK_EQ(fclose(stream), 0);
  return static_cast<ssize_t>(items);
}

const Pair pairs[] = {
    {"write, read", sockets, [](int file, char* buffer, std::size_t bytes) { return write(file, buffer, bytes); },
     [](int file, char* buffer, std::size_t bytes) { return read(file, buffer, bytes); }},
    {"pwrite, pread", make_file,
     [](int file, char* buffer, std::size_t bytes) { return pwrite(file, buffer, bytes, 8); },
     [](int file, char* buffer, std::size_t bytes) { return pread(file, buffer, bytes, 8); }},
    {"writev, readv", sockets,
     [](int file, char* buffer, std::size_t bytes) {
       const iovec one = vector(buffer, bytes);
       return writev(file, &one, 1);
     },
     [](int file, char* buffer, std::size_t bytes) {
       const iovec one = vector(buffer, bytes);
       return readv(file, &one, 1);
     }},
    {"pwritev, preadv", make_file,
     [](int file, char* buffer, std::size_t bytes) {
       const iovec one = vector(buffer, bytes);
       return pwritev(file, &one, 1, 8);
     },
     [](int file, char* buffer, std::size_t bytes) {
       const iovec one = vector(buffer, bytes);
       return preadv(file, &one, 1, 8);
     }},
    {"send, recv", datagrams, [](int file, char* buffer, std::size_t bytes) { return send(file, buffer, bytes, 0); },
     [](int file, char* buffer, std::size_t bytes) { return recv(file, buffer, bytes, 0); }},
    {"sendto, recvfrom", datagrams,
     [](int file, char* buffer, std::size_t bytes) { return sendto(file, buffer, bytes, 0, nullptr, 0); },
     [](int file, char* buffer, std::size_t bytes) { return recvfrom(file, buffer, bytes, 0, nullptr, nullptr); }},
    {"sendmsg, recvmsg", datagrams,
     [](int file, char* buffer, std::size_t bytes) {
       iovec one = vector(buffer, bytes);
       const msghdr header = message(&one);
       return sendmsg(file, &header, 0);
     },
     [](int file, char* buffer, std::size_t bytes) {
       iovec one = vector(buffer, bytes);
       msghdr header = message(&one);
       return recvmsg(file, &header, 0);
     }},
    {"sendmmsg, recvmmsg", datagrams,
     [](int file, char* buffer, std::size_t bytes) {
       iovec one = vector(buffer, bytes);
       mmsghdr header = {message(&one), 0};
       CHECK_EQ(sendmmsg(file, &header, 1, 0), 1);
       return static_cast<ssize_t>(header.msg_len);
     },
     [](int file, char* buffer, std::size_t bytes) {
       iovec one = vector(buffer, bytes);
       mmsghdr header = {message(&one), 0};
       CHECK_EQ(recvmmsg(file, &header, 1, 0, nullptr), 1);
       return static_cast<ssize_t>(header.msg_len);
     }},
    {"fwrite, fread", sockets,
     [](int file, char* buffer, std::size_t bytes) {
       return with_file(file, "w", [=](FILE* stream) { return fwrite(buffer, 1, bytes, stream); });
     },
     [](int file, char* buffer, std::size_t bytes) {
       return with_file(file, "r", [=](FILE* stream) { return 8 * fread(buffer, 8, bytes / 8, stream); });
     }},
    {"process_vm_writev, process_vm_readv", make_file,
     [](int file, char* buffer, std::size_t bytes) {
       std::vector<char> between(bytes);
       const iovec local = vector(buffer, bytes);
       const iovec remote = vector(between.data(), bytes);
       CHECK_EQ(process_vm_writev(getpid(), &local, 1, &remote, 1, 0), bytes);
       return write(file, between.data(), bytes);
     },
     [](int file, char* buffer, std::size_t bytes) {
       std::vector<char> between(bytes);
       CHECK_EQ(read(file, between.data(), bytes), bytes);
       const iovec local = vector(buffer, bytes);
       const iovec remote = vector(between.data(), bytes);
       return process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
     }},
};

}  // namespace

CASE(blocks_that_are_away) {
  for (const Pair& pair : pairs) {
    std::printf("%s\n", pair.name);
    lms_pager* pager = create(options(mib));
    Ends ends;
    pair.make(&ends);
    char* from = away(pager, 1);
    errno = 0;
    CHECK_EQ(pair.out(ends.out, from + 8 * kib, part), part);
    CHECK_EQ(statistic(pager, "pinned_bytes.current"), 0);
    char* to = away(pager, 2);
    CHECK_EQ(pair.in(ends.in, to, part), part);
    CHECK_EQ(errno, 0);
    CHECK(std::memcmp(to, from + 8 * kib, part) == 0);
    CHECK(holds(from, block_bytes, 1));
    for (std::size_t at = part; at < block_bytes; at += 8) {  // the rest is as it was
      CHECK_EQ(check::load(to + at), check::pattern_at(2, at / 8));
    }
    lms_shutdown(pager);
  }
}

CASE(clean_blocks) {
  for (const Pair& pair : pairs) {
    std::printf("%s\n", pair.name);
    lms_pager* pager = create(options(mib));
    Ends ends;
    pair.make(&ends);
    std::vector<char> from(part, 'x');
    CHECK_EQ(pair.out(ends.out, from.data(), part), part);
    char* to = clean(pager, 2);
    CHECK_EQ(pair.in(ends.in, to, part), part);
    CHECK(std::memcmp(to, from.data(), part) == 0);
    reclaim(pager);  // what was read is no clean block's
    CHECK(std::memcmp(to, from.data(), part) == 0);
    lms_shutdown(pager);
  }
}

CASE(random_bytes) {
  lms_pager* pager = create(options(mib));
  char* block = clean(pager, 1);
  CHECK_EQ(getrandom(block, 256, 0), 256);
  CHECK(!holds(block, block_bytes, 1));
}

CASE(many_buffers_in_many_blocks) {
  // More than the limit holds: it is passed for the length of the call, and holds again afterwards.
  lms_pager* pager = create(options(4 * block_bytes));
  constexpr int count = 64;
  std::vector<iovec> buffers;
  for (int i = 0; i < count; ++i) {
    buffers.push_back(vector(filled(pager, block_bytes, static_cast<std::uint64_t>(i)), block_bytes));
    char aside = 'x';
    buffers.push_back(vector(&aside, 0));
  }
  Ends file;
  make_file(&file);
  CHECK_EQ(writev(file.out, buffers.data(), 2 * count), count * block_bytes);
  CHECK(statistic(pager, "over_limit_bytes.peak") > 0);
  CHECK(statistic(pager, "resident_bytes.current") <= 4 * block_bytes);
  std::vector<char> contents(count * block_bytes);
  CHECK_EQ(pread(file.in, contents.data(), contents.size(), 0), contents.size());
  for (std::uint64_t i = 0; i < count; ++i) {
    CHECK(holds(contents.data() + i * block_bytes, block_bytes, i));
  }
}

CASE(a_buffer_across_blocks) {
  // As no allocation is, but these touch.
  lms_pager* pager = create(options(mib));
  char* first = filled(pager, block_bytes, 1);
  char* second = filled(pager, block_bytes, 2);
  char* low = first < second ? first : second;
  CHECK_EQ((first < second ? second : first) - low, block_bytes);
  reclaim(pager);
  Ends file;
  make_file(&file);
  CHECK_EQ(pwrite(file.out, low, 2 * block_bytes, 0), 2 * block_bytes);
}

CASE(a_strict_limit_is_passed) {
  lms_pager* pager = create(options(2 * block_bytes, "lru", nullptr, true));
  char* block = away(pager, 1);
  char* other = filled(pager, block_bytes, 2);
  char* third = filled(pager, block_bytes, 3);
  const lms_pin_token pinned[] = {check::pin(pager, other), check::pin(pager, third)};
  Ends file;
  make_file(&file);
  CHECK_EQ(write(file.out, block, block_bytes), block_bytes);
  lms_unpin(pager, pinned[0]);
  lms_unpin(pager, pinned[1]);
  CHECK(holds(block, block_bytes, 1));
}

CASE(what_the_kernel_refuses_is_refused) {
  lms_pager* pager = create(options(mib));
  char* block = away(pager, 1);
  lms_free(pager, block);
  Ends file;
  make_file(&file);
  errno = 0;
  CHECK(write(file.out, block, 4096) < 0 && errno == EFAULT);
  errno = 0;
  const iovec* volatile nothing = nullptr;
  CHECK(writev(file.out, nothing, 1) < 0 && errno == EFAULT);
  char* other = away(pager, 2);
  errno = 0;
  CHECK(write(-1, other, 4096) < 0 && errno == EBADF);
}

CASE(a_block_stays_while_a_call_waits) {
  lms_pager* pager = create(options(mib));
  char* block = away(pager, 1);
  Ends ends;
  sockets(&ends);
  std::thread reader([&] { CHECK_EQ(recv(ends.in, block, part, MSG_WAITALL), part); });
  while (statistic(pager, "pinned_bytes.current") == 0) {
    std::this_thread::yield();
  }
  CHECK_EQ(reclaim(pager), 0);
  const std::vector<char> sent(part, 's');
  CHECK_EQ(write(ends.out, sent.data(), part), part);
  reader.join();
  CHECK(std::memcmp(block, sent.data(), part) == 0);
  CHECK_EQ(reclaim(pager), block_bytes);
}

CASE_WITHOUT_SANITIZER(a_cancelled_call_lets_go) {
  static lms_pager* pager = create(options(mib));
  static char* block = away(pager, 1);
  static Ends ends;
  sockets(&ends);
  pthread_t thread;
  CHECK_EQ(pthread_create(
               &thread, nullptr,
               [](void*) -> void* {
                 static_cast<void>(!read(ends.in, block, part));
                 return nullptr;
               },
               nullptr),
           0);
  while (statistic(pager, "pinned_bytes.current") == 0) {
    std::this_thread::yield();
  }
  CHECK_EQ(pthread_cancel(thread), 0);
  void* result = nullptr;
  CHECK_EQ(pthread_join(thread, &result), 0);
  CHECK(result == PTHREAD_CANCELED);
  CHECK_EQ(statistic(pager, "pinned_bytes.current"), 0);
}

CASE(a_library_that_is_loaded_later) {
  lms_pager* pager = create(options(mib));
  char* block = away(pager, 1);
  void* later = dlopen(CHECK_LATER, RTLD_NOW | RTLD_LOCAL);
  CHECK(later != nullptr);
  const auto out = reinterpret_cast<long (*)(int, const void*, unsigned long)>(dlsym(later, "later_write"));
  const auto in = static_cast<long (**)(int, void*, unsigned long)>(dlsym(later, "later_read"));
  CHECK(out != nullptr && in != nullptr);
  Ends ends;
  sockets(&ends);
  CHECK_EQ(out(ends.out, block, part), part);
  char* to = clean(pager, 2);
  CHECK_EQ((*in)(ends.in, to, part), part);
  CHECK(std::memcmp(block, to, part) == 0);
  // So does what a program looks up by its name.
  const auto looked_up = reinterpret_cast<ssize_t (*)(int, const void*, std::size_t)>(dlsym(RTLD_DEFAULT, "write"));
  reclaim(pager);
  CHECK_EQ(looked_up(ends.out, block, part), part);
}

CASE(a_library_with_a_pager_of_its_own) {
  // Whichever of the two comes in front of libc first.
  void* second = dlopen(CHECK_SECOND, RTLD_NOW | RTLD_LOCAL);
  CHECK(second != nullptr);
  const auto theirs = reinterpret_cast<char* (*)(unsigned long, char)>(dlsym(second, "second_block"));
  CHECK(theirs != nullptr);
  Ends file;
  make_file(&file);
  char* before = theirs(block_bytes, 'b');
  CHECK(before != nullptr);
  lms_pager* pager = create(options(mib));
  char* ours = away(pager, 1);
  char* after = theirs(block_bytes, 'a');
  CHECK(after != nullptr);
  CHECK_EQ(pwrite(file.out, before, part, 0), part);
  CHECK_EQ(pwrite(file.out, ours, part, part), part);
  CHECK_EQ(pwrite(file.out, after, part, 2 * part), part);
  std::vector<char> contents(3 * part);
  CHECK_EQ(pread(file.in, contents.data(), contents.size(), 0), contents.size());
  CHECK(std::string(contents.data(), part) == std::string(part, 'b'));
  CHECK(std::memcmp(contents.data() + part, ours, part) == 0);
  CHECK(std::string(contents.data() + 2 * part, part) == std::string(part, 'a'));
  // A fault of either finds its pager, also when the program has a handler by now.
  CHECK(signal(SIGSEGV, [](int) { std::_Exit(9); }) == SIG_DFL || CHECK_SANITIZED);
  CHECK_EQ(check::load(before + block_bytes / 2) & 0xff, 'b');
  CHECK(holds(ours, block_bytes, 1));
  CHECK_EQ(check::load(after + block_bytes / 2) & 0xff, 'a');
}

CASE(children) {
  lms_pager* pager = create(options(mib));
  char* block = away(pager, 1);
  Ends file;
  make_file(&file);
  const pid_t child = fork();
  if (child == 0) {
    std::_Exit(write(file.out, block, part) == static_cast<ssize_t>(part) ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  std::vector<char> contents(part);
  CHECK_EQ(pread(file.in, contents.data(), part, 0), part);
  CHECK(std::memcmp(contents.data(), block, part) == 0);
}

CASE(installed_twice) {
  lms_pager* pager = create(options(mib));
  CHECK(lms::system_calls::install().ok());
  create(options(mib));
  Ends file;
  make_file(&file);
  CHECK_EQ(write(file.out, away(pager, 1), part), part);
}

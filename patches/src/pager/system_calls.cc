#include "system_calls.h"

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <mutex>
#include <tuple>
#include <vector>

#include "imports.h"
#include "pin.h"
#include "registry.h"

namespace lms {
namespace system_calls {

namespace {

// A call that succeeds leaves errno as it was.
class KeepErrno {
 public:
  KeepErrno() : error_number_(errno) {}
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;
  ~KeepErrno() { errno = error_number_; }

 private:
  int error_number_;
};

enum class KernelAccess : bool { reads, writes };

// The blocks that a call's buffers touch, pinned until it ends. Takes no lock and no memory where none does, so that
// the functions stay as safe as they are in signal handlers and after vfork.
class CallPins {
 public:
  CallPins() = default;
  CallPins(const CallPins&) = delete;
  CallPins& operator=(const CallPins&) = delete;
  ~CallPins() {
    if (!pins_.empty()) {
      release();
    }
  }

  void add(const void* buffer, std::size_t bytes, KernelAccess access) {
    for (std::size_t index = 0; Registered* pager = registry::at(index); ++index) {
      if (pager->reserves(buffer)) {
        add_blocks(pager, static_cast<const char*>(buffer), bytes, access);
      }
    }
  }

  void add(const iovec* buffers, std::size_t count, KernelAccess access) {
    if (buffers != nullptr && count <= IOV_MAX) {  // else the kernel refuses
      for (std::size_t i = 0; i < count; ++i) {
        add(buffers[i].iov_base, buffers[i].iov_len, access);
      }
    }
  }

  void add(const msghdr* message, KernelAccess access) {
    if (message != nullptr) {
      add(message->msg_iov, message->msg_iovlen, access);
    }
  }

 private:
  struct Entry {
    Registered* pager;
    Pin pin;
  };

  __attribute__((noinline)) void add_blocks(Registered* pager, const char* begin, std::size_t bytes,
                                            KernelAccess access) {
    const KeepErrno keep;
    try {
      // A range that no block follows ends here, as it does for the kernel.
      for (std::size_t left = bytes; left > 0;) {
        pins_.push_back(Entry{pager, Pin{}});
        const std::size_t covered = pager->pin_for_call(begin, access == KernelAccess::writes, &pins_.back().pin);
        if (covered == 0) {
          pins_.pop_back();
          break;
        }
        begin += covered;
        left -= covered < left ? covered : left;
      }
    } catch (const std::exception&) {
      return;  // no memory: the kernel says what it cannot reach
    }
  }

  __attribute__((noinline)) void release() {
    const KeepErrno keep;
    try {
      for (const Entry& entry : pins_) {
        entry.pager->unpin_after_call(entry.pin);
      }
    } catch (const std::exception&) {
      return;  // no memory: the limit stays passed until the next operation ends
    }
  }

  std::vector<Entry> pins_;
};

// Which of a function's arguments are memory that the kernel reads or writes, by their numbers.

template <KernelAccess access, std::size_t pointer, std::size_t... sizes>  // as many bytes as the product of the sizes
struct Buffer {
  template <typename Arguments>
  static void pin(const Arguments& arguments, CallPins* pins) {
    std::size_t bytes = 1;
    const std::size_t factors[] = {static_cast<std::size_t>(std::get<sizes>(arguments))...};
    for (const std::size_t factor : factors) {
      bytes *= factor;
    }
    pins->add(std::get<pointer>(arguments), bytes, access);
  }
};

template <KernelAccess access, std::size_t vector, std::size_t count>
struct Vector {
  template <typename Arguments>
  static void pin(const Arguments& arguments, CallPins* pins) {
    pins->add(std::get<vector>(arguments), static_cast<std::size_t>(std::get<count>(arguments)), access);
  }
};

template <KernelAccess access, std::size_t message>
struct Message {
  template <typename Arguments>
  static void pin(const Arguments& arguments, CallPins* pins) {
    pins->add(std::get<message>(arguments), access);
  }
};

template <KernelAccess access, std::size_t messages, std::size_t count>
struct Messages {
  template <typename Arguments>
  static void pin(const Arguments& arguments, CallPins* pins) {
    const mmsghdr* all = std::get<messages>(arguments);
    for (unsigned i = 0; all != nullptr && i < std::get<count>(arguments); ++i) {
      pins->add(&all[i].msg_hdr, access);
    }
  }
};

// A function in front of another. Not noexcept: a thread that is cancelled in the call unwinds through it.
template <typename Name, typename Function, typename... Buffers>
struct Wrapper;
template <typename Name, typename Result, typename... Arguments, typename... Buffers>
struct Wrapper<Name, Result(Arguments...), Buffers...> {
  static std::atomic<void*> original;

  static Result call(Arguments... arguments) {
    CallPins pins;
    const auto all = std::tie(arguments...);
    const int in_order[] = {(Buffers::pin(all, &pins), 0)...};
    static_cast<void>(in_order);
    return reinterpret_cast<Result (*)(Arguments...)>(original.load(std::memory_order_relaxed))(arguments...);
  }
};
template <typename Name, typename Result, typename... Arguments, typename... Buffers>
std::atomic<void*> Wrapper<Name, Result(Arguments...), Buffers...>::original{nullptr};

template <std::size_t pointer, std::size_t... sizes>
using Reads = Buffer<KernelAccess::reads, pointer, sizes...>;
template <std::size_t pointer, std::size_t... sizes>
using Writes = Buffer<KernelAccess::writes, pointer, sizes...>;
template <std::size_t vector, std::size_t count>
using ReadsVector = Vector<KernelAccess::reads, vector, count>;
template <std::size_t vector, std::size_t count>
using WritesVector = Vector<KernelAccess::writes, vector, count>;
template <std::size_t message>
using ReadsMessage = Message<KernelAccess::reads, message>;
template <std::size_t message>
using WritesMessage = Message<KernelAccess::writes, message>;
template <std::size_t messages, std::size_t count>
using ReadsMessages = Messages<KernelAccess::reads, messages, count>;
template <std::size_t messages, std::size_t count>
using WritesMessages = Messages<KernelAccess::writes, messages, count>;

// The functions by name, with their types, which not every system's headers have, and what the kernel does with their
// arguments. The types of 64-bit systems: there off_t has 64 bits under both names. __NAME_chk is what NAME is called
// with _FORTIFY_SOURCE; its last size, or that before the flags, is that of the whole object.
#define LMS_SYSTEM_CALLS(LMS_CALL)                                                                                     \
  LMS_CALL(read, ssize_t(int, void*, size_t), Writes<1, 2>)                                                            \
  LMS_CALL(__read, ssize_t(int, void*, size_t), Writes<1, 2>)                                                          \
  LMS_CALL(__read_chk, ssize_t(int, void*, size_t, size_t), Writes<1, 2>)                                              \
  LMS_CALL(pread, ssize_t(int, void*, size_t, off_t), Writes<1, 2>)                                                    \
  LMS_CALL(pread64, ssize_t(int, void*, size_t, off_t), Writes<1, 2>)                                                  \
  LMS_CALL(__pread64, ssize_t(int, void*, size_t, off_t), Writes<1, 2>)                                                \
  LMS_CALL(__pread_chk, ssize_t(int, void*, size_t, off_t, size_t), Writes<1, 2>)                                      \
  LMS_CALL(__pread64_chk, ssize_t(int, void*, size_t, off_t, size_t), Writes<1, 2>)                                    \
  LMS_CALL(readv, ssize_t(int, const iovec*, int), WritesVector<1, 2>)                                                 \
  LMS_CALL(preadv, ssize_t(int, const iovec*, int, off_t), WritesVector<1, 2>)                                         \
  LMS_CALL(preadv64, ssize_t(int, const iovec*, int, off_t), WritesVector<1, 2>)                                       \
  LMS_CALL(preadv2, ssize_t(int, const iovec*, int, off_t, int), WritesVector<1, 2>)                                   \
  LMS_CALL(preadv64v2, ssize_t(int, const iovec*, int, off_t, int), WritesVector<1, 2>)                                \
  LMS_CALL(write, ssize_t(int, const void*, size_t), Reads<1, 2>)                                                      \
  LMS_CALL(__write, ssize_t(int, const void*, size_t), Reads<1, 2>)                                                    \
  LMS_CALL(pwrite, ssize_t(int, const void*, size_t, off_t), Reads<1, 2>)                                              \
  LMS_CALL(pwrite64, ssize_t(int, const void*, size_t, off_t), Reads<1, 2>)                                            \
  LMS_CALL(__pwrite64, ssize_t(int, const void*, size_t, off_t), Reads<1, 2>)                                          \
  LMS_CALL(writev, ssize_t(int, const iovec*, int), ReadsVector<1, 2>)                                                 \
  LMS_CALL(pwritev, ssize_t(int, const iovec*, int, off_t), ReadsVector<1, 2>)                                         \
  LMS_CALL(pwritev64, ssize_t(int, const iovec*, int, off_t), ReadsVector<1, 2>)                                       \
  LMS_CALL(pwritev2, ssize_t(int, const iovec*, int, off_t, int), ReadsVector<1, 2>)                                   \
  LMS_CALL(pwritev64v2, ssize_t(int, const iovec*, int, off_t, int), ReadsVector<1, 2>)                                \
  LMS_CALL(vmsplice, ssize_t(int, const iovec*, size_t, unsigned), WritesVector<1, 2>)                                 \
  LMS_CALL(send, ssize_t(int, const void*, size_t, int), Reads<1, 2>)                                                  \
  LMS_CALL(__send, ssize_t(int, const void*, size_t, int), Reads<1, 2>)                                                \
  LMS_CALL(sendto, ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t), Reads<1, 2>)                    \
  LMS_CALL(sendmsg, ssize_t(int, const msghdr*, int), ReadsMessage<1>)                                                 \
  LMS_CALL(sendmmsg, int(int, mmsghdr*, unsigned, int), ReadsMessages<1, 2>)                                           \
  LMS_CALL(recv, ssize_t(int, void*, size_t, int), Writes<1, 2>)                                                       \
  LMS_CALL(__recv, ssize_t(int, void*, size_t, int), Writes<1, 2>)                                                     \
  LMS_CALL(__recv_chk, ssize_t(int, void*, size_t, size_t, int), Writes<1, 2>)                                         \
  LMS_CALL(recvfrom, ssize_t(int, void*, size_t, int, sockaddr*, socklen_t*), Writes<1, 2>)                            \
  LMS_CALL(__recvfrom_chk, ssize_t(int, void*, size_t, size_t, int, sockaddr*, socklen_t*), Writes<1, 2>)              \
  LMS_CALL(recvmsg, ssize_t(int, msghdr*, int), WritesMessage<1>)                                                      \
  LMS_CALL(recvmmsg, int(int, mmsghdr*, unsigned, int, timespec*), WritesMessages<1, 2>)                               \
  LMS_CALL(fread, size_t(void*, size_t, size_t, FILE*), Writes<0, 1, 2>)                                               \
  LMS_CALL(fread_unlocked, size_t(void*, size_t, size_t, FILE*), Writes<0, 1, 2>)                                      \
  LMS_CALL(__fread_chk, size_t(void*, size_t, size_t, size_t, FILE*), Writes<0, 2, 3>)                                 \
  LMS_CALL(__fread_unlocked_chk, size_t(void*, size_t, size_t, size_t, FILE*), Writes<0, 2, 3>)                        \
  LMS_CALL(fwrite, size_t(const void*, size_t, size_t, FILE*), Reads<0, 1, 2>)                                         \
  LMS_CALL(fwrite_unlocked, size_t(const void*, size_t, size_t, FILE*), Reads<0, 1, 2>)                                \
  LMS_CALL(getrandom, ssize_t(void*, size_t, unsigned), Writes<0, 1>)                                                  \
  LMS_CALL(getentropy, int(void*, size_t), Writes<0, 1>)                                                               \
  LMS_CALL(process_vm_readv, ssize_t(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long),  \
           WritesVector<1, 2>, ReadsVector<3, 4>)                                                                      \
  LMS_CALL(process_vm_writev, ssize_t(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long), \
           ReadsVector<1, 2>, WritesVector<3, 4>)                                                                      \
  LMS_CALL(mq_send, int(int, const char*, size_t, unsigned), Reads<1, 2>)                                              \
  LMS_CALL(mq_receive, ssize_t(int, char*, size_t, unsigned*), Writes<1, 2>)

#define LMS_TAG(name, ...) struct Named_##name;
LMS_SYSTEM_CALLS(LMS_TAG)
#undef LMS_TAG

}  // namespace

Status install() {
  static const imports::Replacement replacements[] = {
#define LMS_ROW(name, ...)                                                    \
  {#name, reinterpret_cast<void*>(&Wrapper<Named_##name, __VA_ARGS__>::call), \
   &Wrapper<Named_##name, __VA_ARGS__>::original},
      LMS_SYSTEM_CALLS(LMS_ROW)
#undef LMS_ROW
  };
  static std::mutex& lock = *new std::mutex;
  static bool installed = false;
  const std::lock_guard<std::mutex> guard(lock);
  Status status;
  if (!installed) {
    status = imports::redirect(replacements, sizeof replacements / sizeof replacements[0]);
    installed = status.ok();
  }
  return status;
}

}  // namespace system_calls
}  // namespace lms

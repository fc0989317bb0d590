#include "disk_queue.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace lms {

// System calls past those that system_calls.h puts in front of libc's: these move blocks that are on their way.
void disk_move(DiskRequest* request) {
  const auto number = request->write ? SYS_pwrite64 : SYS_pread64;
  do {
    request->result =
        syscall(number, request->file, request->memory.iov_base, request->memory.iov_len, request->offset);
  } while (request->result < 0 && errno == EINTR);
  if (request->result < 0) {
    request->result = -errno;
  }
}

std::int64_t disk_write(int file, const iovec* parts, std::size_t count, std::uint64_t offset) {
  std::int64_t written = 0;
  do {
    written = syscall(SYS_pwritev, file, parts, count, offset, 0UL);
  } while (written < 0 && errno == EINTR);
  return written < 0 ? -errno : written;
}

}  // namespace lms

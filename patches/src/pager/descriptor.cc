#include "descriptor.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace lms {

int out_of_the_way(int file) {
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

}  // namespace lms

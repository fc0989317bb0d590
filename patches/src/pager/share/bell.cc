#include "bell.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include "meeting_point.h"

namespace lms {

std::unique_ptr<Bell> Bell::make(const std::string& path, const ShareTerms& terms) {
  // Of a sharer that was killed; its place is ours now.
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return nullptr;
  }
  if (mkfifo(path.c_str(), S_IRUSR | S_IWUSR) != 0) {
    return nullptr;
  }
  const int file = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) {
    return nullptr;
  }
  auto bell = std::make_unique<Bell>(path, file);
  if (!meeting_point::let_in(file, terms) || !bell->is_ours()) {
    return nullptr;
  }
  return bell;
}

Bell::Bell(const std::string& path, int file) : path_(path), file_(file) {
  struct stat found{};
  if (fstat(file_, &found) == 0 && S_ISFIFO(found.st_mode)) {
    inode_ = found.st_ino;
  }
}

Bell::~Bell() { close(); }

void Bell::close() {
  if (is_ours()) {
    ::close(file_);
  }
  file_ = -1;
}

bool Bell::is_ours() const {
  struct stat found{};
  return fstat(file_, &found) == 0 && S_ISFIFO(found.st_mode) && found.st_ino == inode_;
}

void Bell::wait(int milliseconds) const {
  if (!is_ours()) {
    const timespec time{milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&time, nullptr);
    return;
  }
  pollfd one{file_, POLLIN, 0};
  if (poll(&one, 1, milliseconds) > 0 && is_ours()) {
    char rings[64];
    while (read(file_, rings, sizeof rings) == static_cast<ssize_t>(sizeof rings)) {
    }
  }
}

void Bell::remove() const { unlink(path_.c_str()); }

void Bell::ring(const std::string& path, const ShareTerms& terms) {
  // For reading, too: who listens may be killed at any moment, and without a reader the write would raise SIGPIPE.
  const int file = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) {
    return;
  }
  struct stat found{};
  if (fstat(file, &found) == 0 && S_ISFIFO(found.st_mode) && meeting_point::trusted(found, terms)) {
    const char ring = 1;
    static_cast<void>(!write(file, &ring, 1));  // when it is full, it rings already
  }
  ::close(file);
}

}  // namespace lms

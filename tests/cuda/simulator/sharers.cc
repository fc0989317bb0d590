#include "sharers.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace sim {

namespace {

constexpr int most_processes = 64;
constexpr int most_devices = 16;
constexpr std::int64_t byte_of_all = most_processes;  // its lock guards the table

struct flock range_of(std::int64_t byte, short type) {
  struct flock range = {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = byte;
  range.l_len = 1;
  return range;
}

}  // namespace

struct Sharers::Table {
  std::atomic<std::uint64_t> used[most_processes][most_devices];
};

Sharers* Sharers::of(const std::string& path) {
  if (path.empty()) {
    return nullptr;
  }
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* table = MAP_FAILED;
  if (file >= 0 && ftruncate(file, sizeof(Table)) == 0) {
    table = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (table == MAP_FAILED) {
    std::perror(("simulated CUDA: shared: " + path).c_str());
    std::abort();
  }
  auto* sharers = new Sharers(file, static_cast<Table*>(table));
  for (int place = 0; place < most_processes; ++place) {
    if (sharers->lock(place, F_WRLCK, false)) {
      sharers->place_ = place;
      for (std::atomic<std::uint64_t>& used : sharers->table_->used[place]) {
        used.store(0);
      }
      return sharers;
    }
  }
  std::fprintf(stderr, "simulated CUDA: more than %d processes share %s\n", most_processes, path.c_str());
  std::abort();
}

bool Sharers::lock(std::int64_t byte, short type, bool wait) const {
  struct flock range = range_of(byte, type);
  return fcntl(file_, wait ? F_OFD_SETLKW : F_OFD_SETLK, &range) == 0;
}

std::uint64_t Sharers::sum(int device) const {
  std::uint64_t bytes = 0;
  for (int place = 0; place < most_processes; ++place) {
    const std::uint64_t used = table_->used[place][device].load();
    struct flock range = range_of(place, F_WRLCK);
    const bool lives =
        place == place_ || (used > 0 && fcntl(file_, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK);
    bytes += lives ? used : 0;
  }
  return bytes;
}

bool Sharers::take(int device, std::uint64_t bytes, std::uint64_t capacity) {
  if (file_ < 0) {
    return true;
  }
  lock(byte_of_all, F_WRLCK, true);
  const bool fits = sum(device) + bytes <= capacity;
  if (fits) {
    table_->used[place_][device].fetch_add(bytes);
  }
  lock(byte_of_all, F_UNLCK, true);
  return fits;
}

void Sharers::give(int device, std::uint64_t bytes) {
  if (file_ >= 0) {
    table_->used[place_][device].fetch_sub(bytes);
  }
}

std::uint64_t Sharers::used(int device) { return file_ < 0 ? 0 : sum(device); }

void Sharers::forget() {
  close(file_);
  file_ = -1;
}

}  // namespace sim

#include "ledger.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "meeting_point.h"
#include "monotonic.h"

namespace lms {

namespace {

// Older headers lack these.
constexpr int ledger_get_lock = 36;  // F_OFD_GETLK
constexpr int ledger_set_lock = 37;  // F_OFD_SETLK

constexpr std::uint64_t ledger_magic = 0x31455241'48534d4c;  // "LMSHARE1"
constexpr std::uint64_t ledger_version = 1;
constexpr std::size_t ledger_lock_byte = 0;
constexpr std::size_t ledger_first_place_byte = 1;

// How long the lock is tried for, and how long apart: what is done with it takes some microseconds. Who joins has all
// the time: its holder may only wait for a processor.
constexpr std::uint64_t ledger_patience_ns = 20'000'000;
constexpr std::uint64_t ledger_patience_to_join_ns = 5'000'000'000;
constexpr long ledger_nap_ns = 50'000;

// FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv: notices what is no record.
std::uint64_t ledger_checksum(const void* data, std::size_t bytes) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (std::size_t index = 0; index < bytes; ++index) {
    sum = (sum ^ static_cast<const unsigned char*>(data)[index]) * 0x100000001b3;
  }
  return sum;
}

struct flock ledger_range(std::size_t byte, short type) {
  struct flock range{};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(byte);
  range.l_len = 1;
  return range;
}

bool ledger_makes_sense(const ShareRecord& record) {
  return record.token != 0 && record.weight >= share_least_weight && record.weight <= share_most_weight &&
         record.priority >= -share_most_priority && record.priority <= share_most_priority &&
         record.allowed <= UINT64_MAX / Ledger::most_sharers && record.held <= UINT64_MAX / Ledger::most_sharers;
}

Status ledger_unusable(const std::string& path, const std::string& why) {
  return Status(LMS_STORE_FAILED, "processes cannot share through the file '" + path + "': " + why +
                                      "; see to that, or let LMS_SHARE name another directory");
}

}  // namespace

struct Ledger::Header {
  std::uint64_t magic;
  std::uint64_t version;
  ShareBudget budget;
  std::uint64_t checksum;  // of the budget
};

struct Ledger::Stored {
  ShareRecord record;
  std::uint64_t checksum;
};

static constexpr std::size_t ledger_header_bytes = 256;
static constexpr std::size_t ledger_record_bytes = 256;
static constexpr std::size_t ledger_bytes = ledger_header_bytes + Ledger::most_sharers * ledger_record_bytes;

std::unique_ptr<Ledger> Ledger::join(const std::string& directory, const std::string& name, const ShareTerms& terms,
                                     Status* status) {
  static_assert(sizeof(Header) <= ledger_header_bytes && sizeof(Stored) <= ledger_record_bytes, "they have room");
  const std::string path = directory + "/" + name + ".ledger";
  while (true) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, S_IRUSR | S_IWUSR);
    if (file < 0) {
      *status = ledger_unusable(path, std::strerror(errno));
      return nullptr;
    }
    std::unique_ptr<Ledger> ledger(new Ledger(path, terms, file));
    struct stat found{};
    if (fstat(file, &found) != 0 || !S_ISREG(found.st_mode) || !meeting_point::trusted(found, terms)) {
      *status = ledger_unusable(path, "it is no file of this user");
      return nullptr;
    }
    if (!ledger->lock(ledger_patience_to_join_ns)) {
      *status = Status(LMS_UNSUPPORTED, "a process that shares through '" + path +
                                            "' holds it and does not go on; let it, or end it ('fuser -v' names it)");
      return nullptr;
    }
    if (!ledger->is_current()) {
      continue;  // the last sharer has removed it meanwhile
    }
    *status = ledger->prepare();
    if (status->ok()) {
      *status = ledger->take_place();
    }
    if (!status->ok()) {
      ledger->remove_if_last();
      return nullptr;
    }
    return ledger;
  }
}

Ledger::Ledger(std::string path, const ShareTerms& terms, int file)
    : path_(std::move(path)), terms_(terms), file_(file) {
  struct stat found{};
  if (fstat(file_, &found) == 0) {
    device_ = found.st_dev;
    inode_ = found.st_ino;
  }
}

Ledger::~Ledger() {
  if (bell_ != nullptr && !is_lost()) {
    bell_->remove();  // whoever waits on it still has it open
  }
  close_file();
}

void Ledger::forget() {
  if (bell_ != nullptr) {
    bell_->close();
  }
  close_file();
}

void Ledger::close_file() {
  if (has_descriptor()) {
    close(file_);
  }
  file_ = -1;
}

bool Ledger::has_descriptor() const {
  struct stat found{};
  return fstat(file_, &found) == 0 && found.st_dev == device_ && found.st_ino == inode_;
}

bool Ledger::is_lost() const { return !has_descriptor() || !is_current(); }

// Whether the path still leads to the file.
bool Ledger::is_current() const {
  struct stat found{};
  return stat(path_.c_str(), &found) == 0 && found.st_dev == device_ && found.st_ino == inode_;
}

bool Ledger::try_lock(std::size_t byte, short type) const {
  struct flock range = ledger_range(byte, type);
  return fcntl(file_, ledger_set_lock, &range) == 0;
}

bool Ledger::is_free(std::size_t byte) const {
  struct flock range = ledger_range(byte, F_WRLCK);
  return fcntl(file_, ledger_get_lock, &range) == 0 && range.l_type == F_UNLCK;
}

bool Ledger::lock() { return lock(ledger_patience_ns); }

bool Ledger::lock(std::uint64_t patience_ns) {
  if (!has_descriptor()) {
    return false;
  }
  std::uint64_t end = 0;
  while (!try_lock(ledger_lock_byte, F_WRLCK)) {
    const std::uint64_t now = monotonic_ns();
    end = end == 0 ? now + patience_ns : end;
    if (impatient_ || now > end) {
      impatient_ = true;
      return false;
    }
    const timespec nap{0, ledger_nap_ns};
    nanosleep(&nap, nullptr);
  }
  impatient_ = false;
  return true;
}

void Ledger::unlock() {
  if (has_descriptor()) {
    try_lock(ledger_lock_byte, F_UNLCK);
  }
}

bool Ledger::read(void* to, std::size_t bytes, std::size_t offset) const {
  return pread(file_, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

bool Ledger::write(const void* from, std::size_t bytes, std::size_t offset) const {
  if (!has_descriptor()) {
    return false;
  }
  const ssize_t written = pwrite(file_, from, bytes, static_cast<off_t>(offset));
  if (written >= 0 && written < static_cast<ssize_t>(bytes)) {
    errno = ENOSPC;
  }
  return written == static_cast<ssize_t>(bytes);
}

// Makes the file whole where it is new, where whoever made it was killed, or where somebody has truncated it.
Status Ledger::prepare() {
  struct stat found{};
  if (fstat(file_, &found) == 0 && found.st_size < static_cast<off_t>(ledger_bytes)) {
    if (found.st_size == 0 && !meeting_point::let_in(file_, terms_)) {
      return ledger_unusable(path_,
                             "it cannot be given to group '" + terms_.group + "' (" + std::strerror(errno) + ")");
    }
    const std::vector<char> zeros(ledger_bytes - static_cast<std::size_t>(found.st_size));
    if (!write(zeros.data(), zeros.size(), static_cast<std::size_t>(found.st_size))) {
      const std::string why = std::strerror(errno);
      static_cast<void>(has_descriptor() && ftruncate(file_, found.st_size) == 0);
      return ledger_unusable(path_, why);
    }
  }
  Header header{};
  if (read(&header, sizeof header, 0) && header.magic == 0) {
    header = Header{ledger_magic, ledger_version, {}, 0};
    if (!write(&header, sizeof header, 0)) {
      return ledger_unusable(path_, std::strerror(errno));
    }
  }
  if (header.magic != ledger_magic) {
    return ledger_unusable(path_, "it is no ledger, and has to be removed once no process uses it");
  }
  if (header.version != ledger_version) {
    return Status(LMS_UNSUPPORTED, "another version of LMS shares through '" + path_ +
                                       "'; use one version in all processes that share a budget, or another name");
  }
  return {};
}

Status Ledger::take_place() {
  Status status(LMS_UNSUPPORTED, std::to_string(most_sharers) + " processes share the budget of '" + path_ +
                                     "' already, which is the most");
  for (std::size_t place = 0; place < most_sharers; ++place) {
    if (!is_free(ledger_first_place_byte + place) || !try_lock(ledger_first_place_byte + place, F_WRLCK)) {
      continue;
    }
    bell_ = Bell::make(bell_path(place), terms_);
    if (bell_ == nullptr) {
      // What another user of the group has left here may be for that user alone to remove.
      status = ledger_unusable(bell_path(place), std::strerror(errno));
      try_lock(ledger_first_place_byte + place, F_UNLCK);
      continue;
    }
    place_ = place;
    return {};
  }
  return status;
}

std::string Ledger::bell_path(std::size_t place) const { return path_ + "." + std::to_string(place); }

std::vector<Ledger::Entry> Ledger::others() const {
  std::vector<char> all(ledger_bytes - ledger_header_bytes);
  std::vector<Entry> found;
  // Less if somebody has truncated the file; what is missing comes back as each writes its record.
  static_cast<void>(pread(file_, all.data(), all.size(), ledger_header_bytes));
  for (std::size_t place = 0; place < most_sharers; ++place) {
    Stored stored{};
    std::memcpy(&stored, all.data() + place * ledger_record_bytes, sizeof stored);
    if (place != place_ && stored.record.token != 0 &&
        stored.checksum == ledger_checksum(&stored.record, sizeof stored.record) && ledger_makes_sense(stored.record) &&
        !is_free(ledger_first_place_byte + place)) {
      found.push_back(Entry{place, stored.record});
    }
  }
  return found;
}

ShareBudget Ledger::budget() const {
  Header header{};
  const bool whole =
      read(&header, sizeof header, 0) && header.checksum == ledger_checksum(&header.budget, sizeof header.budget);
  return whole ? header.budget : ShareBudget{};
}

bool Ledger::write(const ShareBudget& budget) {
  const Header header{ledger_magic, ledger_version, budget, ledger_checksum(&budget, sizeof budget)};
  return write(&header, sizeof header, 0);
}

bool Ledger::write(const ShareRecord& record) {
  const Stored stored{record, ledger_checksum(&record, sizeof record)};
  return write(&stored, sizeof stored, ledger_header_bytes + place_ * ledger_record_bytes);
}

void Ledger::remove_if_last() {
  for (std::size_t place = 0; place < most_sharers; ++place) {
    if (place != place_ && !is_free(ledger_first_place_byte + place)) {
      return;
    }
  }
  for (std::size_t place = 0; place < most_sharers; ++place) {
    unlink(bell_path(place).c_str());  // of sharers that were killed
  }
  if (is_current()) {
    unlink(path_.c_str());
  }
}

void Ledger::ring(std::size_t place) const { Bell::ring(bell_path(place), terms_); }

}  // namespace lms

// The ledger of a budget: a file in which each sharer says what it may have, holds, and could use.
//
// A sharer writes its own record and nobody else's, so one that is killed in the middle leaves nothing half done. A
// record counts while its owner lives, which a lock on one byte of the file tells: the kernel drops it however the
// process ends (an open file description's lock, fcntl(2), F_OFD_SETLK: not one of the process, which any close() of
// the file would drop). Another byte's lock is held while records are read and written together. Nobody waits for that
// for longer than lock() says: its holder may have been stopped.
//
// The file is read and written, not mapped: a mapping of a file that somebody truncates kills the process. Its blocks
// are allocated when it is made, so a full disk is noticed then and never later.
//
// Not thread-safe.
#ifndef LMS_LEDGER_H
#define LMS_LEDGER_H

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../status.h"
#include "bell.h"
#include "share_terms.h"

namespace lms {

// What a sharer says of itself. Sizes in bytes. The layout is the file's, and that of _ledger.py.
struct ShareRecord {
  std::uint64_t token;  // differs between sharers that ever had the record; 0: nobody
  std::uint64_t pid;  // in its own namespace
  double weight;
  std::uint64_t minimum;
  std::int64_t priority;
  std::uint64_t budget;  // that it was given; UINT64_MAX: what the device has
  std::uint64_t allowed;  // may be held
  std::uint64_t held;  // is held; more than `allowed` where an operation needed it
  std::uint64_t demand;  // could be used
  std::uint64_t giving;  // nonzero while it pages out for others
  std::uint64_t beat;  // CLOCK_MONOTONIC nanoseconds, when it last looked
  std::uint64_t page;  // which statistics page is its (StatisticsPage::id)
  // For people:
  std::uint64_t resident;
  std::uint64_t allocated;
  std::uint64_t away;
  std::uint64_t in_bytes;
  std::uint64_t out_bytes;
  std::uint64_t wait_ns;
  std::array<char, 32> command;
};

struct ShareBudget {
  std::uint64_t bytes;
  std::uint64_t automatic;  // nonzero: it follows what the device has; else all sharers gave the same
};

class Ledger {
 public:
  static constexpr std::size_t most_sharers = 128;

  struct Entry {
    std::size_t place;
    ShareRecord record;
  };

  // Joins the ledger `name` in the directory: takes a place there. The ledger stays locked. Null on failure:
  // LMS_UNSUPPORTED, it is full, of another version or held by a sharer that does not answer; LMS_STORE_FAILED, the
  // file cannot be used.
  static std::unique_ptr<Ledger> join(const std::string& directory, const std::string& name, const ShareTerms& terms,
                                      Status* status);

  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  ~Ledger();  // gives the place up

  // False when somebody holds the lock who does not go on (it was stopped; from then on only one try is made), or the
  // program has closed the descriptor, see is_lost().
  bool lock();
  void unlock();

  // The program closed our descriptor, or somebody removed the file: the place is lost, too.
  bool is_lost() const;

  // ---- with the lock

  // Of sharers that live, without this one. What makes no sense is left out.
  std::vector<Entry> others() const;
  ShareBudget budget() const;
  bool write(const ShareBudget& budget);
  bool write(const ShareRecord& record);

  // Removes the files where no other sharer lives.
  void remove_if_last();

  // ---- without

  void ring(std::size_t place) const;
  const std::shared_ptr<Bell>& bell() const { return bell_; }

  // In a forked child, whose parent keeps the place: closes the descriptors.
  void forget();

 private:
  struct Header;
  struct Stored;

  Ledger(std::string path, const ShareTerms& terms, int file);
  bool lock(std::uint64_t patience_ns);
  bool is_free(std::size_t byte) const;
  bool try_lock(std::size_t byte, short type) const;
  bool is_current() const;
  bool has_descriptor() const;
  void close_file();
  Status prepare();
  Status take_place();
  std::string bell_path(std::size_t place) const;
  bool read(void* to, std::size_t bytes, std::size_t offset) const;
  bool write(const void* from, std::size_t bytes, std::size_t offset) const;

  const std::string path_;
  const ShareTerms terms_;
  int file_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::size_t place_ = most_sharers;  // none
  bool impatient_ = false;
  std::shared_ptr<Bell> bell_;
};

}  // namespace lms
#endif  // LMS_LEDGER_H

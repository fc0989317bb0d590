// How much RAM the process may use: what the machine and the memory control groups that it is in leave (Linux,
// versions 1 and 2), and whether the kernel says that memory is short. Knows nothing of blocks. Sizes are in bytes.
#ifndef LMS_RAM_H
#define LMS_RAM_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lms {

// The machine, or a control group.
struct RamBound {
  std::string name;  // for people
  std::uint64_t limit;
  std::uint64_t used;  // the kernel's caches not included that it gives up without harm
  std::uint64_t least_used;  // nor any other
};

// What there is at a moment.
class RamView {
 public:
  // Reads the files of /proc and /sys in the folder `root`.
  explicit RamView(const std::string& root = {});

  // What one user of memory may have who has `own` of what is used now. A reserve is left for everybody else.
  std::uint64_t allowed(std::uint64_t own) const;
  // Whether `bytes` more may be taken, from the reserve too.
  bool has(std::uint64_t bytes) const;
  // What allows least, as a sentence goes on: "the control group '/job' of 1024 bytes, of which others use 24".
  std::string tightest(std::uint64_t own) const;

  // How long something had to wait for memory, in microseconds since some moment; false where the kernel does not say.
  bool stalled(std::uint64_t* microseconds) const;

 private:
  void add_groups(const std::string& root);
  void add_machine(const std::string& root);

  std::vector<RamBound> bounds_;
  std::string pressure_;  // of the process's group, or of the machine
};

// A limit that follows what there is: down at once, up to what there was for two seconds, and lower for a while when
// others wait for memory.
class RamLimit {
 public:
  // The limit from now on, for one who has at least `least` and at most `most` of what is used. `now_ns` is any clock.
  std::uint64_t follow(const RamView& view, std::uint64_t least, std::uint64_t most, std::uint64_t now_ns);

 private:
  void note_stalls(const RamView& view, std::uint64_t now_ns);
  std::uint64_t less_held_back(std::uint64_t bytes) const;

  std::uint64_t limit_ = 0;
  std::uint64_t lasting_ = UINT64_MAX;  // the least that was allowed since `lasting_ns_`
  std::uint64_t lasting_ns_ = 0;
  std::uint64_t held_back_ = 0;  // 64ths of what is allowed
  std::uint64_t stalled_us_ = 0;  // at the time `noted_ns_`
  std::uint64_t noted_ns_ = 0;
};

// How many of these pages, each by its address, have memory.
std::size_t count_resident(const std::vector<const char*>& pages);

// Whether files in the folder are in memory, so that what is written there makes no room.
bool is_in_ram(const std::string& folder);
// The first of these folders that can be written to and is on a disk; empty when none is.
std::string first_on_disk(const std::vector<std::string>& folders);

}  // namespace lms
#endif  // LMS_RAM_H

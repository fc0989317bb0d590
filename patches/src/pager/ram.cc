#include "ram.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace lms {

namespace {

// What is kept free: the program takes memory for other things between two looks, a page-out takes its time, and who
// goes beyond a control group's limit is killed. 20 ms, which lie between two looks where memory is short, are 64 MiB
// for a thread that fills fresh pages at 3 GB/s. What is left of it in a large group is for the kernel's caches.
constexpr std::uint64_t ram_reserve_part = 20;
constexpr std::uint64_t ram_least_reserve = 64 << 20;
// Changes below this part are left: each one makes the policy plan anew, and the reserve is larger.
constexpr std::uint64_t ram_step_part = 64;
// What took memory in this time may do so again, as in each step of a program: what it leaves in between is not taken.
constexpr std::uint64_t ram_rise_window_ns = 2'000'000'000;

// Who waits for memory more than this part of the time has too little of it: the kernel drops what it needs again.
constexpr std::uint64_t ram_stall_part = 5;
constexpr std::uint64_t ram_stall_window_ns = 500'000'000;
// In 64ths: a quarter less after two seconds of it, and back after eight without.
constexpr std::uint64_t ram_held_back_whole = 64;
constexpr std::uint64_t ram_held_back_most = 16;
constexpr std::uint64_t ram_held_back_step = 4;

constexpr std::uint64_t ram_unbounded = std::uint64_t{1} << 62;

constexpr long ram_tmpfs = 0x01021994;  // of linux/magic.h
constexpr long ram_ramfs = 0x858458f6;

std::uint64_t ram_minus(std::uint64_t left, std::uint64_t right) { return left - std::min(left, right); }

std::uint64_t ram_reserve(const RamBound& bound) { return std::max(bound.limit / ram_reserve_part, ram_least_reserve); }

std::uint64_t ram_allowed(const RamBound& bound, std::uint64_t own) {
  return ram_minus(ram_minus(bound.limit, ram_reserve(bound)), ram_minus(bound.used, own));
}

// Empty when the file cannot be read.
std::string ram_text(const std::string& path) {
  std::string text;
  if (std::FILE* file = std::fopen(path.c_str(), "re")) {
    char part[4096];
    std::size_t bytes = 0;
    while ((bytes = std::fread(part, 1, sizeof part, file)) > 0) {
      text.append(part, bytes);
    }
    std::fclose(file);
  }
  return text;
}

std::vector<std::string> ram_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// The number that a file begins with; UINT64_MAX for "max", and where there is no file.
std::uint64_t ram_number(const std::string& path) {
  const std::string text = ram_text(path);
  return !text.empty() && text[0] >= '0' && text[0] <= '9' ? std::strtoull(text.c_str(), nullptr, 10) : UINT64_MAX;
}

// The number in the line that begins with the name; 0 where there is none.
std::uint64_t ram_value(const std::string& text, const std::string& name) {
  for (const std::string& line : ram_lines(text)) {
    if (line.compare(0, name.size(), name) == 0) {
      return std::strtoull(line.c_str() + name.size(), nullptr, 10);
    }
  }
  return 0;
}

// False where the folder is no control group with a limit of memory.
bool ram_read_group(const std::string& folder, bool first_version, RamBound* bound) {
  const std::string file = folder + "/memory.";
  const std::uint64_t usage = ram_number(file + (first_version ? "usage_in_bytes" : "current"));
  // Above memory.high the kernel makes a process wait, as long as it takes.
  bound->limit = first_version ? ram_number(file + "limit_in_bytes")
                               : std::min(ram_number(file + "max"), ram_number(file + "high"));
  if (usage == UINT64_MAX || bound->limit == UINT64_MAX) {
    return false;
  }
  // Pages of files that nobody changes any more are given up without a sound, and so are those that have to be written
  // first, a moment later: the store's own are of that kind, and if they counted, paging out would lower the limit.
  // Active ones (a program's own code is among them) are used, so half of them stays, as in the kernel's MemAvailable.
  const std::string stat = ram_text(file + "stat");
  const std::string total = first_version ? "total_" : "";  // of the groups in it, too
  const std::uint64_t inactive = ram_value(stat, total + "inactive_file ");
  const std::uint64_t active = ram_value(stat, total + "active_file ");
  bound->used = ram_minus(usage, inactive + active / 2);
  bound->least_used = ram_minus(usage, inactive + active);
  return true;
}

}  // namespace

RamView::RamView(const std::string& root) {
  add_groups(root);
  add_machine(root);
}

void RamView::add_groups(const std::string& root) {
  for (const std::string& line : ram_lines(ram_text(root + "/proc/self/cgroup"))) {
    // "0::/user.slice", "9:memory:/docker/4f0"
    const std::size_t colon = line.find(':');
    const std::size_t second = line.find(':', colon + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = "," + line.substr(colon + 1, second - colon - 1) + ",";
    const bool first_version = controllers != ",,";
    if (first_version && controllers.find(",memory,") == std::string::npos) {
      continue;
    }
    const std::string folder = root + "/sys/fs/cgroup" + (first_version ? "/memory" : "");
    // A container sees its own group, by whatever name, as the root.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      path = path == "/" ? "" : path;
      RamBound bound;
      bound.name = "the control group '" + (path.empty() ? "/" : path) + "'";
      if (ram_read_group(folder + path, first_version, &bound)) {
        bounds_.push_back(bound);
      }
      const std::string pressure = folder + path + "/memory.pressure";
      if (!first_version && pressure_.empty() && access(pressure.c_str(), R_OK) == 0) {
        pressure_ = pressure;
      }
      if (path.find('/') == std::string::npos) {
        break;
      }
    }
  }
}

void RamView::add_machine(const std::string& root) {
  const std::string text = ram_text(root + "/proc/meminfo");  // in KiB
  const std::uint64_t total = ram_value(text, "MemTotal:") << 10;
  if (total > 0) {
    const std::uint64_t used = ram_minus(total, ram_value(text, "MemAvailable:") << 10);
    bounds_.push_back(RamBound{"the machine", total, used, used});
  }
  if (pressure_.empty()) {
    pressure_ = root + "/proc/pressure/memory";
  }
}

std::uint64_t RamView::allowed(std::uint64_t own) const {
  std::uint64_t least = ram_unbounded;
  for (const RamBound& bound : bounds_) {
    least = std::min(least, ram_allowed(bound, own));
  }
  return least;
}

bool RamView::has(std::uint64_t bytes) const {
  return std::all_of(bounds_.begin(), bounds_.end(), [bytes](const RamBound& bound) {
    return bytes <= ram_minus(bound.limit, bound.least_used + ram_reserve(bound) / 4);  // to tell that it has not
  });
}

std::string RamView::tightest(std::uint64_t own) const {
  const auto found = std::min_element(bounds_.begin(), bounds_.end(), [own](const RamBound& a, const RamBound& b) {
    return ram_allowed(a, own) < ram_allowed(b, own);
  });
  return found == bounds_.end() ? "the machine"
                                : found->name + " of " + std::to_string(found->limit) + " bytes, of which others use " +
                                      std::to_string(ram_minus(found->used, own));
}

bool RamView::stalled(std::uint64_t* microseconds) const {
  const std::string text = ram_text(pressure_);  // "some avg10=0.00 avg60=0.00 avg300=0.00 total=12"
  const std::size_t total = text.compare(0, 5, "some ") == 0 ? text.find("total=") : std::string::npos;
  if (total == std::string::npos) {
    return false;
  }
  *microseconds = std::strtoull(text.c_str() + total + 6, nullptr, 10);
  return true;
}

std::uint64_t RamLimit::follow(const RamView& view, std::uint64_t least, std::uint64_t most, std::uint64_t now_ns) {
  note_stalls(view, now_ns);
  const std::uint64_t low = less_held_back(view.allowed(least));
  const std::uint64_t high = less_held_back(view.allowed(most));
  if (limit_ > high + high / ram_step_part) {
    limit_ = high;
  }
  lasting_ = std::min(lasting_, low);
  if (lasting_ns_ == 0 || now_ns - lasting_ns_ >= ram_rise_window_ns) {
    if (lasting_ > limit_ + limit_ / ram_step_part) {
      limit_ = lasting_;
    }
    lasting_ = UINT64_MAX;
    lasting_ns_ = now_ns;
  }
  return limit_;
}

void RamLimit::note_stalls(const RamView& view, std::uint64_t now_ns) {
  const std::uint64_t passed = now_ns - noted_ns_;
  std::uint64_t stalled_us = 0;
  if ((noted_ns_ != 0 && passed < ram_stall_window_ns) || !view.stalled(&stalled_us)) {
    return;
  }
  if (noted_ns_ != 0 && ram_minus(stalled_us, stalled_us_) * 1000 > passed / ram_stall_part) {
    held_back_ = std::min(held_back_ + ram_held_back_step, ram_held_back_most);
  } else {
    held_back_ = ram_minus(held_back_, 1);
  }
  stalled_us_ = stalled_us;
  noted_ns_ = now_ns;
}

std::uint64_t RamLimit::less_held_back(std::uint64_t bytes) const {
  return bytes - bytes / ram_held_back_whole * held_back_;
}

std::size_t count_resident(const std::vector<const char*>& pages) {
  std::size_t count = 0;
  for (const char* page : pages) {
    unsigned char resident = 0;
    mincore(const_cast<char*>(page), 1, &resident);
    count += resident & 1;
  }
  return count;
}

bool is_in_ram(const std::string& folder) {
  struct statfs found = {};
  if (statfs(folder.c_str(), &found) != 0) {
    return false;
  }
  const auto type = static_cast<unsigned>(found.f_type);
  return type == static_cast<unsigned>(ram_tmpfs) || type == static_cast<unsigned>(ram_ramfs);
}

std::string first_on_disk(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    struct stat found = {};
    if (!folder.empty() && stat(folder.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
        access(folder.c_str(), W_OK | X_OK) == 0 && !is_in_ram(folder)) {
      return folder;
    }
  }
  return {};
}

}  // namespace lms

// The limit that follows what there is of RAM: on trees of files like the kernel's, and in a memory control group.
#include "ram.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "pager.h"
#include "processes.h"

using check::contains;
using check::kib;
using check::mib;
using check::process;
using check::statistic;
using check::wait_until;
using lms::RamLimit;
using lms::RamView;

namespace {

constexpr std::uint64_t gib = 1 << 30;
constexpr std::uint64_t unbounded = std::uint64_t{1} << 62;
constexpr std::uint64_t second_ns = 1'000'000'000;

// A folder with /proc and /sys as they are given.
class Tree {
 public:
  Tree() {
    static std::atomic<int> count{0};
    root_ = check::directory() + "/tree" + std::to_string(count.fetch_add(1));
    CHECK_EQ(mkdir(root_.c_str(), 0700), 0);
  }

  const std::string& root() const { return root_; }

  // Never seen half written.
  void write(const std::string& path, const std::string& text) const {
    for (std::size_t end = path.find('/'); end != std::string::npos; end = path.find('/', end + 1)) {
      mkdir((root_ + "/" + path.substr(0, end)).c_str(), 0700);
    }
    const std::string file = root_ + "/" + path;
    {
      std::ofstream stream(file + ".new");
      stream << text;
      CHECK(stream.flush().good());
    }
    CHECK_EQ(std::rename((file + ".new").c_str(), file.c_str()), 0);
  }

  void in_groups(const std::string& lines) const { write("proc/self/cgroup", lines); }

  void machine(std::uint64_t total, std::uint64_t available) const {
    write("proc/meminfo", "MemTotal:       " + std::to_string(total / kib) +
                              " kB\nMemFree:        1 kB\nMemAvailable:   " + std::to_string(available / kib) +
                              " kB\n");
  }

  // Of version 2.
  void group(const std::string& path, const std::string& limit, std::uint64_t usage, std::uint64_t inactive = 0,
             std::uint64_t active = 0) const {
    const std::string folder = "sys/fs/cgroup" + path + "/memory.";
    write(folder + "max", limit + "\n");
    write(folder + "current", std::to_string(usage) + "\n");
    write(folder + "stat", "anon 7\ninactive_anon 5\nactive_anon 6\ninactive_file " + std::to_string(inactive) +
                               "\nactive_file " + std::to_string(active) + "\n");
  }
  void group(const std::string& path, std::uint64_t limit, std::uint64_t usage, std::uint64_t inactive = 0,
             std::uint64_t active = 0) const {
    group(path, std::to_string(limit), usage, inactive, active);
  }

  void stalls(const std::string& path, std::uint64_t microseconds) const {
    write(path, "some avg10=0.00 avg60=0.00 avg300=0.00 total=" + std::to_string(microseconds) +
                    "\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
  }

  std::uint64_t allowed(std::uint64_t own = 0) const { return RamView(root_).allowed(own); }

 private:
  std::string root_;
};

// In one group, on a machine without bounds of its own.
class OneGroup : public Tree {
 public:
  explicit OneGroup(std::uint64_t limit, std::uint64_t usage = 0) {
    in_groups("0::/job\n");
    group("/job", limit, usage);
  }
};

// Its blocks follow the tree.
lms_pager* following(const Tree& tree) {
  lms::Settings settings;
  settings.limit_kind = LMS_LIMIT_AUTO;
  settings.store.directories = {check::directory()};
  settings.policy = "lru";
  settings.address_space = 1 << 30;
  settings.root = tree.root();
  lms::Status status;
  lms::Pager* pager = lms::Pager::make(settings, &status);
  if (pager == nullptr) {
    CHECK_FAIL("%s", status.message.c_str());
  }
  return reinterpret_cast<lms_pager*>(pager);
}

std::vector<char*> filled(lms_pager* pager, std::uint64_t count) {
  std::vector<char*> blocks;
  for (std::uint64_t index = 0; index < count; ++index) {
    blocks.push_back(check::filled(pager, mib, index));
  }
  return blocks;
}

void expect_whole(lms_pager* pager, const std::vector<char*>& blocks) {
  for (std::uint64_t index = 0; index < blocks.size(); ++index) {
    const lms_pin_token token = check::pin(pager, blocks[index]);
    CHECK(check::holds(blocks[index], mib, index));
    lms_unpin(pager, token);
  }
}

void expect_error(const char* part) {
  if (!contains(lms_last_error(), part)) {
    CHECK_FAIL("the sentence lacks '%s'", part);
  }
}

constexpr std::uint64_t reserve = 64 * mib;  // of all that has less than 1280 MiB

}  // namespace

// ------------------------------------------------------------------------------------------------ what there is

CASE(nothing_is_known) {
  const Tree tree;
  CHECK_EQ(tree.allowed(), unbounded);
  CHECK(RamView(tree.root()).has(UINT64_MAX));
  RamLimit limit;
  CHECK_EQ(limit.follow(RamView(tree.root()), 0, 0, 1), unbounded);
  CHECK_EQ(limit.follow(RamView(tree.root()), 0, 0, 2), unbounded);
}

CASE(the_machine) {
  const Tree tree;
  tree.in_groups("1:cpu:/\n");
  tree.machine(40 * gib, 10 * gib);
  CHECK_EQ(tree.allowed(), 8 * gib);  // less 5 %
  CHECK_EQ(tree.allowed(3 * gib), 11 * gib);
  CHECK_EQ(tree.allowed(100 * gib), 38 * gib);
  tree.machine(40 * gib, gib);
  CHECK_EQ(tree.allowed(), 0);
  CHECK(contains(RamView(tree.root()).tightest(0).c_str(), "the machine of 42949672960 bytes, of which others use"));
}

CASE(a_group_and_those_around_it) {
  const Tree tree;
  tree.machine(64 * gib, 64 * gib);
  tree.in_groups("0::/user/job/step\n");
  tree.group("/user/job/step", "max", gib);
  CHECK_EQ(tree.allowed(), 64 * gib - 64 * gib / 20);
  tree.group("/user/job", 10 * gib, 4 * gib);
  CHECK_EQ(tree.allowed(gib), 10 * gib - 10 * gib / 20 - 3 * gib);
  tree.group("/user", 20 * gib, 18 * gib);  // larger, and more is used by others
  CHECK_EQ(tree.allowed(gib), 20 * gib - gib - 17 * gib);
  CHECK(contains(RamView(tree.root()).tightest(gib).c_str(), "'/user' of 21474836480 bytes, of which others use"));
  tree.group("/user/job/step", 512 * mib, 100 * mib);
  CHECK_EQ(tree.allowed(100 * mib), 512 * mib - reserve);
  tree.write("sys/fs/cgroup/user/job/step/memory.high", "314572800\n");
  CHECK_EQ(tree.allowed(100 * mib), 300 * mib - reserve);
}

CASE(a_container) {
  for (const char* path : {"/", "/docker/4f0", "/../sibling"}) {  // its own group, by whatever name
    const Tree tree;
    tree.machine(64 * gib, 64 * gib);
    tree.in_groups(std::string("0::") + path + "\n");
    tree.group("", gib, 100 * mib);
    CHECK_EQ(tree.allowed(), gib - reserve - 100 * mib);
  }
}

CASE(version_one) {
  const Tree tree;
  tree.machine(64 * gib, 64 * gib);
  tree.in_groups("5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n");
  const std::string folder = "sys/fs/cgroup/memory/job/memory.";
  tree.write(folder + "limit_in_bytes", "9223372036854771712\n");
  tree.write(folder + "usage_in_bytes", "1073741824\n");
  tree.write(folder + "stat",
             "cache 9\ninactive_file 1\nactive_file 2\ntotal_inactive_file 104857600\n"
             "total_active_file 209715200\n");
  CHECK_EQ(tree.allowed(), 64 * gib - 64 * gib / 20);
  tree.write(folder + "limit_in_bytes", "2147483648\n");
  CHECK_EQ(tree.allowed(), 2 * gib - 2 * gib / 20 - gib + 200 * mib);
  CHECK(contains(RamView(tree.root()).tightest(0).c_str(), "the control group '/job'"));
}

CASE(caches_of_the_kernel) {
  OneGroup tree(gib, 900 * mib);
  tree.group("/job", gib, 900 * mib, 300 * mib, 200 * mib);
  CHECK_EQ(tree.allowed(), gib - reserve - 500 * mib);
  const RamView view(tree.root());
  CHECK(view.has(gib - 400 * mib - reserve / 4));  // the last of it, too
  CHECK(!view.has(gib - 400 * mib - reserve / 4 + 1));
}

CASE(more_is_used_than_there_is) {
  OneGroup tree(300 * mib, 500 * mib);
  CHECK_EQ(tree.allowed(), 0);
  CHECK_EQ(tree.allowed(400 * mib), 300 * mib - reserve - 100 * mib);
  CHECK(!RamView(tree.root()).has(1));
}

CASE(pages_that_have_memory) {
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  char* memory =
      static_cast<char*>(mmap(nullptr, 16 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  CHECK(memory != MAP_FAILED);
  madvise(memory, 16 * page, MADV_NOHUGEPAGE);
  std::vector<const char*> pages;
  for (std::size_t index = 0; index < 16; ++index) {
    pages.push_back(memory + index * page);
    if (index % 3 == 0) {
      memory[index * page] = 1;
    }
  }
  CHECK_EQ(lms::count_resident(pages), 6);
}

CASE(folders_on_a_disk) {
  const std::string disk = check::directory();
  if (lms::is_in_ram(disk) || access("/dev/shm", W_OK) != 0) {
    std::printf("skipped: the test's own folder is in memory, or /dev/shm is not there\n");
    return;
  }
  CHECK(lms::is_in_ram("/dev/shm"));
  std::ofstream(disk + "/file") << "x";
  CHECK(lms::first_on_disk({"", "/nowhere", "/dev/shm", disk + "/file", disk, "/"}) == disk);
  CHECK(lms::first_on_disk({"", "/nowhere", "/dev/shm"}).empty());
}

// ------------------------------------------------------------------------------------------------ the limit

CASE(down_at_once_and_up_in_steps) {
  OneGroup tree(gib);
  RamLimit limit;
  std::uint64_t now = 1;
  const auto look = [&](std::uint64_t usage, std::uint64_t least = 0, std::uint64_t most = 0) {
    tree.group("/job", gib, usage);
    return limit.follow(RamView(tree.root()), least, std::max(least, most), now += 2 * second_ns);
  };
  CHECK_EQ(look(0), 960 * mib);
  CHECK_EQ(look(10 * mib), 960 * mib);  // too little for a new plan
  CHECK_EQ(look(20 * mib), 940 * mib);
  CHECK_EQ(look(10 * mib), 940 * mib);
  CHECK_EQ(look(4 * mib), 956 * mib);
  CHECK_EQ(look(500 * mib), 460 * mib);
  // 100 MiB are on their way: others may use as much less.
  CHECK_EQ(look(700 * mib, 150 * mib, 250 * mib), 460 * mib);
  CHECK_EQ(look(700 * mib, 50 * mib, 150 * mib), 410 * mib);
  CHECK_EQ(look(700 * mib, 300 * mib, 400 * mib), 560 * mib);
}

CASE(up_to_what_there_was_for_two_seconds) {
  OneGroup tree(gib);
  RamLimit limit;
  const auto look = [&](std::uint64_t usage, std::uint64_t now) {
    tree.group("/job", gib, usage);
    return limit.follow(RamView(tree.root()), 0, 0, now);
  };
  CHECK_EQ(look(460 * mib, 1), 500 * mib);
  CHECK_EQ(look(260 * mib, second_ns), 500 * mib);
  CHECK_EQ(look(360 * mib, 2 * second_ns), 500 * mib);
  CHECK_EQ(look(160 * mib, 2 * second_ns + 1), 600 * mib);
  // What comes and goes in less: as if it always were there.
  for (std::uint64_t second = 3; second < 9; ++second) {
    CHECK_EQ(look(410 * mib, second * second_ns), 550 * mib);
    CHECK_EQ(look(10 * mib, second * second_ns + 1000), 550 * mib);
  }
  CHECK_EQ(look(10 * mib, 10 * second_ns), 550 * mib);
  CHECK_EQ(look(10 * mib, 13 * second_ns), 950 * mib);
}

CASE(others_wait_for_memory) {
  OneGroup tree(gib);
  const std::string file = "sys/fs/cgroup/job/memory.pressure";
  tree.stalls("proc/pressure/memory", 0);  // the machine's does not count where the group has one
  RamLimit limit;
  std::uint64_t now = 1;
  std::uint64_t stalled = 0;
  const auto half_a_second = [&](std::uint64_t more) {
    tree.stalls(file, stalled += more);
    return limit.follow(RamView(tree.root()), 0, 0, now += second_ns / 2);
  };
  const std::uint64_t whole = gib - reserve;
  CHECK_EQ(half_a_second(0), whole);
  CHECK_EQ(half_a_second(100000), whole);  // a fifth of the time
  std::uint64_t last = whole;
  for (int step = 1; step <= 4; ++step) {
    const std::uint64_t next = half_a_second(100001);
    CHECK_EQ(next, whole - whole / 64 * 4 * static_cast<std::uint64_t>(step));
    last = next;
  }
  CHECK_EQ(half_a_second(500000), last);  // no less than three quarters
  limit.follow(RamView(tree.root()), 0, 0, now + 1);  // looks in between change nothing
  // As much is allowed again after eight seconds, and taken after two more at most.
  for (int step = 0; step < 16; ++step) {
    const std::uint64_t next = half_a_second(0);
    CHECK(next >= last && next < whole);
    last = next;
  }
  for (int step = 0; step < 7; ++step) {
    last = half_a_second(0);
  }
  CHECK_EQ(last, whole);
}

CASE(the_machine_waits_for_memory) {
  OneGroup tree(gib);
  RamLimit limit;
  CHECK_EQ(limit.follow(RamView(tree.root()), 0, 0, 1), gib - reserve);
  tree.stalls("proc/pressure/memory", 1000000);
  limit.follow(RamView(tree.root()), 0, 0, second_ns);  // from now on
  tree.stalls("proc/pressure/memory", 1900000);
  CHECK(limit.follow(RamView(tree.root()), 0, 0, 2 * second_ns) < gib - reserve);
}

// ------------------------------------------------------------------------------------------------ pagers

CASE(blocks_leave_when_there_is_less) {
  OneGroup tree(reserve + 100 * mib);
  lms_pager* pager = following(tree);
  CHECK_EQ(lms_limit(pager), 100 * mib);
  const std::vector<char*> blocks = filled(pager, 80);
  CHECK_EQ(statistic(pager, "out.bytes"), 0);
  tree.group("/job", reserve + 40 * mib, 0);  // and nobody asks for a block
  wait_until([&] { return statistic(pager, "resident_bytes.current") <= 40 * mib; }, "they have left");
  CHECK_EQ(statistic(pager, "limit_bytes"), 40 * mib);
  tree.group("/job", reserve + 100 * mib, 0);
  wait_until([&] { return lms_limit(pager) == 100 * mib; }, "the limit has risen");
  expect_whole(pager, blocks);
  CHECK_EQ(statistic(pager, "resident_bytes.current"), 80 * mib);
  // Others' memory, of a group that is used to the end: what blocks have is among it.
  tree.group("/job", reserve + 100 * mib, 130 * mib);
  wait_until([&] { return statistic(pager, "resident_bytes.current") <= 50 * mib; }, "they have left again");
  tree.group("/job", reserve + 100 * mib, 0);
  expect_whole(pager, blocks);
}

CASE(a_limit_ends_it) {
  OneGroup tree(reserve + 100 * mib);
  lms_pager* pager = following(tree);
  const std::vector<char*> blocks = filled(pager, 40);
  CHECK_EQ(lms_set_limit(pager, 60 * mib), LMS_OK);
  tree.group("/job", reserve + 10 * mib, 0);
  usleep(500000);  // more than one look
  CHECK_EQ(lms_limit(pager), 60 * mib);
  CHECK_EQ(statistic(pager, "out.bytes"), 0);
  expect_whole(pager, blocks);
}

CASE(switched_off_and_on) {
  OneGroup tree(reserve + 40 * mib);
  lms_pager* pager = following(tree);
  const std::vector<char*> blocks = filled(pager, 60);
  CHECK(statistic(pager, "away_bytes.current") > 0);
  tree.group("/job", reserve + 40 * mib, reserve + 40 * mib);  // used to the end
  CHECK_EQ(lms_restore_all(pager), LMS_OUT_OF_MEMORY);
  expect_error("control group '/job'");
  tree.group("/job", gib, 0);
  CHECK_EQ(lms_restore_all(pager), LMS_OK);
  tree.group("/job", reserve + 10 * mib, 0);
  usleep(300000);
  CHECK_EQ(statistic(pager, "away_bytes.current"), 0);
  lms_shutdown(pager);
  tree.group("/job", reserve + 20 * mib, 0);
  lms::Settings settings;
  settings.limit_kind = LMS_LIMIT_AUTO;
  settings.store.directories = {check::directory()};
  settings.root = tree.root();
  CHECK(reinterpret_cast<lms::Pager*>(pager)->configure(settings).ok());
  wait_until([&] { return statistic(pager, "resident_bytes.current") <= 20 * mib; }, "it follows again");
  expect_whole(pager, blocks);
}

// Everything is in use, and no more is to be had: an error that says so, where the kernel would kill.
CASE(what_does_not_fit_is_an_error) {
  OneGroup tree(reserve + 8 * mib);
  lms_pager* pager = following(tree);
  std::vector<lms_pin_token> tokens;
  for (char* block : filled(pager, 8)) {
    tokens.push_back(check::pin(pager, block));
  }
  char* more = check::allocate(pager, mib);  // the reserve has it
  CHECK_EQ(statistic(pager, "over_limit.requests"), 1);
  tree.group("/job", reserve + 8 * mib, reserve);
  void* none = nullptr;
  CHECK_EQ(lms_allocate(pager, mib, &none), LMS_OUT_OF_MEMORY);
  expect_error("that limit is what is left now of the control group '/job' of 75497472 bytes");
  tree.group("/job", reserve + 8 * mib, 0);
  lms_free(pager, check::allocate(pager, 2 * mib));
  lms_free(pager, more);
  for (const lms_pin_token& token : tokens) {
    lms_unpin(pager, token);
  }
}

CASE(too_little_to_begin_with) {
  OneGroup tree(reserve + 8 * mib, 8 * mib);
  lms::Settings settings;
  settings.limit_kind = LMS_LIMIT_AUTO;
  settings.store.directories = {check::directory()};
  settings.root = tree.root();
  lms::Status status;
  CHECK(lms::Pager::make(settings, &status) == nullptr);
  CHECK_EQ(status.code, LMS_OUT_OF_MEMORY);
  CHECK(contains(status.message.c_str(), "limit 'auto' finds no memory for tensors in the control group '/job'"));
}

CASE(options) {
  check::meet();
  lms_options options = check::options(0, "lru", check::directory().c_str());
  const std::string store = check::directory();
  options.store = store.c_str();
  options.limit_kind = LMS_LIMIT_AUTO;
  lms_pager* pager = nullptr;
  options.share = "a";
  CHECK_EQ(lms_create(&options, &pager), LMS_INVALID_ARGUMENT);
  expect_error("limit 'auto'");
  options.share = nullptr;
  if (lms::is_in_ram("/dev/shm")) {
    options.store = "/dev/shm";
    CHECK_EQ(lms_create(&options, &pager), LMS_INVALID_ARGUMENT);
    expect_error("'/dev/shm' is in memory");
  }
}

// Without a store: in a folder on a disk.
CASE(a_temporary_folder) {
  const std::string folder = check::directory() + "/temporary";
  if (lms::is_in_ram(check::directory())) {
    std::printf("skipped: the test's own folder is in memory\n");
    return;
  }
  CHECK_EQ(mkdir(folder.c_str(), 0700), 0);
  setenv("TMPDIR", folder.c_str(), 1);
  lms_options options = check::options(0);
  options.limit_kind = LMS_LIMIT_AUTO;
  lms_pager* pager = check::create(options);
  CHECK(lms_limit(pager) > 0);
  const std::vector<char*> blocks = filled(pager, 4);
  CHECK_EQ(check::reclaim(pager), 4 * mib);
  CHECK(!check::store_files(folder).empty());
  expect_whole(pager, blocks);
}

CASE(a_forked_child) {
  OneGroup tree(reserve + 100 * mib);
  lms_pager* pager = following(tree);
  const std::vector<char*> blocks = filled(pager, 40);
  const pid_t child = process([&] {
    // It follows from its first need of pages on. What it has in common with its parent stays: to page that out gives
    // nothing back.
    const std::vector<char*> own = filled(pager, 20);
    tree.group("/job", reserve + 30 * mib, 0);
    wait_until([&] { return statistic(pager, "limit_bytes") == 40 * mib; }, "it follows");
    wait_until([&] { return statistic(pager, "device_bytes.current") <= 40 * mib; }, "as much has left");
    // Its own by now.
    for (char* block : blocks) {
      check::touch(pager, block, true);
      check::store(block, check::pattern_at(static_cast<std::uint64_t>(block - block), 0));
    }
    expect_whole(pager, own);
  });
  check::expect_success(child);
  wait_until([&] { return statistic(pager, "resident_bytes.current") <= 30 * mib; }, "the parent follows, too");
  expect_whole(pager, blocks);
}

CASE(threads_while_it_changes) {
  OneGroup tree(reserve + 8 * mib);
  lms_pager* pager = following(tree);
  const std::uint64_t steps = check::steps(10000);
  std::atomic<int> running{3};
  std::vector<std::thread> threads;
  for (int number = 0; number < 3; ++number) {
    threads.emplace_back([&, seed = check::seed() + static_cast<std::uint64_t>(number)] {
      check::Random random(seed);
      struct Item {
        char* address;
        std::uint64_t seed;
      };
      std::vector<Item> items;
      for (std::uint64_t step = 0; step < steps; ++step) {
        if (items.size() < 24) {  // 12 MiB, more than there is at any time
          const std::uint64_t value = random.next();
          items.push_back(Item{check::filled(pager, 512 * kib, value), value});
          continue;
        }
        const std::size_t at = random.below(items.size());
        const lms_pin_token token = check::pin(pager, items[at].address);
        CHECK(check::holds(items[at].address, 512 * kib, items[at].seed));
        lms_unpin(pager, token);
        if (random.chance(20)) {
          lms_free(pager, items[at].address);
          items[at] = items.back();
          items.pop_back();
        }
      }
      for (const Item& item : items) {
        lms_free(pager, item.address);
      }
      running.fetch_sub(1);
    });
  }
  check::Random random(check::seed());
  while (running.load() > 0) {
    tree.group("/job", reserve + (4 + random.below(8)) * mib, 0);
    tree.stalls("proc/pressure/memory", random.below(1 << 30));
    usleep(10000);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(statistic(pager, "out.bytes") > 0);
}

// ------------------------------------------------------------------------------------------------ a real group

namespace {

// A control group for memory, of either version, if one can be made here.
class Group {
 public:
  Group() {
    const bool first = access("/sys/fs/cgroup/memory", X_OK) == 0;
    const std::string folder =
        (first ? "/sys/fs/cgroup/memory/lms-test-" : "/sys/fs/cgroup/lms-test-") + std::to_string(getpid());
    limit_ = first ? "/memory.limit_in_bytes" : "/memory.max";
    if (mkdir(folder.c_str(), 0700) == 0) {
      folder_ = folder;
      if (access((folder_ + limit_).c_str(), W_OK) != 0) {
        rmdir(folder_.c_str());
        folder_.clear();
      }
    }
  }
  ~Group() {
    if (!folder_.empty()) {
      rmdir(folder_.c_str());
    }
  }

  bool exists() const { return !folder_.empty(); }
  void enter() const { CHECK(write("/cgroup.procs", std::to_string(getpid()))); }
  // False when the kernel refuses, since more is used.
  bool limit(std::uint64_t bytes) const { return write(limit_, std::to_string(bytes)); }

 private:
  bool write(const std::string& file, const std::string& text) const {
    std::ofstream stream(folder_ + file);
    stream << text;
    return stream.flush().good();
  }

  std::string folder_;
  std::string limit_;
};

}  // namespace

CASE_WITHOUT_SANITIZER(in_a_control_group) {
  const Group group;
  if (!group.exists() || lms::is_in_ram(check::directory())) {
    std::printf("skipped: no memory control group can be made here, or no file that is not in memory\n");
    return;
  }
  CHECK(group.limit(256 * mib));
  const pid_t child = process([&] {
    group.enter();
    const std::string store = check::directory();
    lms_options options = check::options(0, "lru", store.c_str());
    options.limit_kind = LMS_LIMIT_AUTO;
    lms_pager* pager = check::create(options);
    const std::uint64_t limit = lms_limit(pager);
    CHECK(limit > 128 * mib && limit <= 192 * mib);
    const std::vector<char*> blocks = filled(pager, 400);  // more than the group may have
    expect_whole(pager, blocks);
    // Other memory of the process, as it grows.
    std::vector<std::unique_ptr<char[]>> others;
    for (int count = 0; count < 64; ++count) {
      others.push_back(std::make_unique<char[]>(mib));
      std::memset(others.back().get(), count, mib);
      usleep(5000);
    }
    wait_until([&] { return lms_limit(pager) <= 128 * mib; }, "the limit follows");
    expect_whole(pager, blocks);
    others.clear();
    // Less for the group. The kernel of version 1 refuses while more is used, that of version 2 would kill.
    for (std::uint64_t bytes = 256 * mib; bytes >= 160 * mib; bytes -= 16 * mib) {
      wait_until([&] { return group.limit(bytes); }, "the kernel takes the limit");
      wait_until([&] { return lms_limit(pager) + reserve <= bytes; }, "the limit is followed");
    }
    expect_whole(pager, blocks);
    CHECK(statistic(pager, "resident_bytes.peak") < 200 * mib);
  });
  check::expect_success(child);
}

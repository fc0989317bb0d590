// Pages that the host's backend keeps of what has left, for what comes.
#include "backend/host_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "check.h"
#include "processes.h"

using check::create;
using check::filled;
using check::holds;
using check::kib;
using check::mib;
using check::options;
using check::Random;
using check::statistic;
using check::touch;
using lms::HostPages;
using lms::HostRun;

namespace {

constexpr std::uint64_t huge = 2 * mib;

// Addresses as an arena has them.
class Range {
 public:
  explicit Range(std::size_t bytes) : bytes_(bytes), base_(lms::host_place(bytes)) { CHECK(base_ != nullptr); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range() { munmap(base_, bytes_); }

  char* get() { return base_; }

  void fill(std::uint64_t seed) {
    CHECK_EQ(mprotect(base_, bytes_, PROT_READ | PROT_WRITE), 0);
    check::fill(base_, bytes_, seed);
  }

 private:
  std::size_t bytes_;
  char* base_;
};

bool can_be_read(const char* address) {
  int ends[2] = {};
  CHECK_EQ(pipe(ends), 0);
  const ssize_t written = write(ends[1], address, 1);
  CHECK(written == 1 || errno == EFAULT);
  close(ends[0]);
  close(ends[1]);
  return written == 1;
}

std::uint64_t faults() {
  rusage usage = {};
  CHECK_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  return static_cast<std::uint64_t>(usage.ru_minflt);
}

// Whether this kernel can keep pages; says so if not. The emulator of a processor moves them, but not to where it is
// asked to, so that nothing stays.
bool kernel_keeps() {
  HostPages pages;
  Range range(huge);
  range.fill(0);
  const bool keeps = pages.keep(range.get(), huge) && pages.bytes() == huge;
  if (!keeps) {
    std::printf("needs Linux 5.7, and not in an emulator\n");
  }
  return keeps;
}

// The one run of that size.
char* only(const std::vector<HostRun>& runs, std::size_t bytes) {
  CHECK_EQ(runs.size(), 1);
  CHECK_EQ(runs.front().bytes, bytes);
  return runs.front().address;
}

}  // namespace

CASE(pages_are_kept) {
  if (!kernel_keeps()) {
    return;
  }
  const std::size_t bytes = huge + 64 * kib;
  HostPages pages;
  Range range(bytes);
  range.fill(1);
  CHECK(pages.keep(range.get(), bytes));
  CHECK_EQ(pages.bytes(), bytes);
  CHECK(!can_be_read(range.get()));
  CHECK(msync(range.get(), bytes, MS_ASYNC) == 0);  // the addresses stay taken
  Range other(bytes);
  CHECK(pages.take(other.get()).empty());
  CHECK(pages.reserve(other.get(), bytes));
  CHECK_EQ(pages.bytes(), 0);
  CHECK(!pages.reserve(range.get(), bytes));  // there are no more
  CHECK_EQ(pages.trim(UINT64_MAX), 0);
  CHECK(pages.take(range.get()).empty());
  char* taken = only(pages.take(other.get()), bytes);
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(taken) % huge, 0);
  CHECK(pages.take(other.get()).empty());
  CHECK_EQ(mprotect(taken, bytes, PROT_READ), 0);
  CHECK(holds(taken, bytes, 1));
  munmap(taken, bytes);
}

// Small ranges get what is there, of any size.
CASE(small_ranges_are_put_together) {
  if (!kernel_keeps()) {
    return;
  }
  HostPages pages;
  Range small(192 * kib);
  Range large(huge);
  Range wanted(mib);
  small.fill(1);
  large.fill(2);
  CHECK(pages.keep(large.get(), huge));
  CHECK(pages.keep(small.get(), 192 * kib));
  CHECK(pages.reserve(wanted.get(), 128 * kib));  // of the smaller
  char* part = only(pages.take(wanted.get()), 128 * kib);
  CHECK_EQ(pages.bytes(), huge + 64 * kib);
  CHECK(pages.reserve(wanted.get(), mib));  // the rest of it, and of the larger
  const std::vector<HostRun> runs = pages.take(wanted.get());
  CHECK_EQ(runs.size(), 2);
  CHECK_EQ(runs[0].bytes, 64 * kib);
  CHECK_EQ(runs[1].bytes, mib - 64 * kib);
  for (const HostRun& run : {HostRun{part, 128 * kib, 0}, runs[0], runs[1]}) {
    CHECK_EQ(mprotect(run.address, run.bytes, PROT_READ), 0);
  }
  CHECK(holds(part, 128 * kib, 1));
  munmap(part, 128 * kib);
  munmap(runs[0].address, runs[0].bytes);
  munmap(runs[1].address, runs[1].bytes);
  CHECK(!pages.reserve(wanted.get(), huge));  // a part is no huge page any more
  CHECK(pages.reserve(wanted.get(), huge - 4 * kib));
  std::size_t bytes = 0;
  for (const HostRun& run : pages.take(wanted.get())) {
    bytes += run.bytes;
    munmap(run.address, run.bytes);
  }
  CHECK_EQ(bytes, mib + 64 * kib);  // there is no more
  CHECK_EQ(pages.bytes(), 0);
}

// A run of less than 64 KiB is taken where it completes a range, and not otherwise.
CASE(short_runs_complete_a_range) {
  if (!kernel_keeps()) {
    return;
  }
  HostPages pages;
  Range small(8 * kib);
  Range larger(124 * kib);
  Range wanted(mib);
  small.fill(1);
  larger.fill(2);
  CHECK(pages.keep(small.get(), 8 * kib));
  CHECK(!pages.reserve(wanted.get(), 128 * kib));
  CHECK_EQ(pages.bytes(), 8 * kib);
  CHECK(pages.keep(larger.get(), 124 * kib));
  CHECK(pages.reserve(wanted.get(), 132 * kib));
  const std::vector<HostRun> runs = pages.take(wanted.get());
  CHECK_EQ(runs.size(), 2);
  CHECK(runs[0].bytes == 124 * kib && runs[1].bytes == 8 * kib && runs[1].offset == 124 * kib);
  for (const HostRun& run : runs) {
    munmap(run.address, run.bytes);
  }
  CHECK_EQ(pages.bytes(), 0);
}

// Large ones get huge pages, and what is smaller behind them.
CASE(large_ranges_are_put_together) {
  if (!kernel_keeps()) {
    return;
  }
  HostPages pages;
  Range first(2 * huge + 128 * kib);
  Range second(huge);
  Range wanted(4 * huge);
  first.fill(1);
  second.fill(2);
  CHECK(pages.keep(first.get(), 2 * huge + 128 * kib));
  CHECK(pages.keep(second.get(), huge));
  CHECK(pages.reserve(wanted.get(), 4 * huge + 64 * kib));
  const std::vector<HostRun> runs = pages.take(wanted.get());
  CHECK_EQ(runs.size(), 3);
  CHECK(runs[0].offset == 0 && runs[0].bytes == 2 * huge);
  CHECK(runs[1].offset == 2 * huge && runs[1].bytes == huge);
  CHECK(runs[2].offset == 4 * huge && runs[2].bytes == 64 * kib);  // between them there is nothing
  CHECK_EQ(pages.bytes(), 64 * kib);
  for (const HostRun& run : runs) {
    CHECK(run.bytes < huge || reinterpret_cast<std::uintptr_t>(run.address) % huge == 0);
    munmap(run.address, run.bytes);
  }
}

// What was put together of several mappings is kept again, whole.
CASE(mappings_inside_a_range) {
  if (!kernel_keeps()) {
    return;
  }
  HostPages pages;
  Range range(256 * kib);
  range.fill(1);
  CHECK_EQ(mprotect(range.get() + 64 * kib, 64 * kib, PROT_READ), 0);  // three
  pages.note_mapping(range.get() + 64 * kib);
  pages.note_mapping(range.get() + 128 * kib);
  CHECK_EQ(madvise(range.get() + 64 * kib, 64 * kib, MADV_DONTFORK), 0);
  CHECK(pages.keep(range.get(), 256 * kib));
  CHECK_EQ(pages.bytes(), 256 * kib);
  CHECK(pages.reserve(range.get(), 256 * kib));
  std::size_t largest = 0;
  for (const HostRun& run : pages.take(range.get())) {
    largest = std::max(largest, run.bytes);
    munmap(run.address, run.bytes);
  }
  CHECK_EQ(largest, 128 * kib);
  // What is forgotten is one mapping again.
  pages.forget_mappings(range.get(), range.get() + 256 * kib);
  CHECK(mmap(range.get(), 256 * kib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
        MAP_FAILED);
  CHECK(pages.keep(range.get(), 256 * kib));
  CHECK(pages.reserve(range.get(), 256 * kib));
  munmap(only(pages.take(range.get()), 256 * kib), 256 * kib);
}

CASE(those_kept_longest_go_first) {
  if (!kernel_keeps()) {
    return;
  }
  HostPages pages;
  std::vector<std::unique_ptr<Range>> ranges;
  for (std::uint64_t number = 0; number < 4; ++number) {
    const std::size_t bytes = (number == 2 ? 2 : 1) * huge;
    ranges.push_back(std::make_unique<Range>(bytes));
    ranges.back()->fill(number);
    CHECK(pages.keep(ranges.back()->get(), bytes));
  }
  CHECK_EQ(pages.bytes(), 5 * huge);
  CHECK_EQ(pages.trim(1), huge);
  CHECK_EQ(pages.trim(2 * huge), 3 * huge);
  CHECK_EQ(pages.bytes(), huge);
  CHECK(pages.reserve(ranges[0]->get(), huge));
  char* newest = only(pages.take(ranges[0]->get()), huge);
  CHECK_EQ(mprotect(newest, huge, PROT_READ), 0);
  CHECK(holds(newest, huge, 3));
  munmap(newest, huge);
}

// Blocks come and go within the limit, and nobody zeroes a page for them.
CASE_WITHOUT_SANITIZER(what_leaves_serves_what_comes) {
  constexpr std::uint64_t bytes = 2 * huge;
  constexpr std::uint64_t count = 12;
  if (!kernel_keeps()) {
    return;
  }
  lms_pager* pager = create(options(4 * bytes, "lru", check::directory().c_str()));
  std::vector<char*> blocks;
  for (std::uint64_t block = 0; block < count; ++block) {
    blocks.push_back(filled(pager, bytes, block));
  }
  for (int round = 0; round < 2; ++round) {
    for (const char* block : blocks) {
      touch(pager, block, true);
    }
  }
  const std::uint64_t most = check::in_ram() + mib;
  const std::uint64_t before = faults();
  const std::uint64_t in = statistic(pager, "in.blocks");
  for (int round = 0; round < 5; ++round) {
    for (std::uint64_t block = 0; block < count; ++block) {
      touch(pager, blocks[block], true);
      CHECK(holds(blocks[block], bytes, block));
      CHECK(check::in_ram() <= most);
      CHECK(statistic(pager, "device_bytes.current") + statistic(pager, "kept_bytes.current") <= 4 * bytes);
    }
  }
  CHECK_EQ(statistic(pager, "in.blocks") - in, 5 * count);
  CHECK(faults() - before < 5 * count);  // each would be two or more
  // A lower limit, a reclaim and the end give them back.
  CHECK_EQ(lms_set_limit(pager, 2 * bytes), LMS_OK);
  CHECK(statistic(pager, "device_bytes.current") + statistic(pager, "kept_bytes.current") <= 2 * bytes);
  CHECK(check::in_ram() <= most - 2 * bytes);
  check::reclaim(pager);
  CHECK_EQ(statistic(pager, "device_bytes.current"), 0);
  CHECK_EQ(statistic(pager, "kept_bytes.current"), 0);
  CHECK(check::in_ram() <= most - 4 * bytes);
}

// A block of two mappings: the kernel moves one at a time, before Linux 6.17. And what has been asked for a block's
// pages is not for another's.
CASE(mappings_of_all_kinds) {
  if (!kernel_keeps()) {
    return;
  }
  HostPages pages;
  Range two(2 * huge);
  two.fill(1);
  CHECK_EQ(mprotect(two.get(), huge, PROT_READ), 0);
  CHECK_EQ(madvise(two.get(), huge, MADV_DONTFORK), 0);
  const bool kept = pages.keep(two.get(), 2 * huge);
  CHECK(!can_be_read(two.get()));
  CHECK_EQ(pages.bytes(), kept ? 2 * huge : 0);
  Range one(huge);
  one.fill(2);
  CHECK_EQ(madvise(one.get(), huge, MADV_DONTFORK), 0);
  CHECK(pages.keep(one.get(), huge));
  CHECK(pages.reserve(one.get(), huge));
  char* taken = only(pages.take(one.get()), huge);
  CHECK_EQ(mprotect(taken, huge, PROT_READ | PROT_WRITE), 0);
  check::expect_success(check::process([&] { CHECK(holds(taken, huge, 2)); }));
  munmap(taken, huge);
}

// The program may need the addresses.
CASE_WITHOUT_SANITIZER(nothing_is_kept_where_addresses_are_few) {
  HostPages pages;
  Range range(huge);
  range.fill(1);
  const rlimit few = {1ULL << 40, 1ULL << 40};
  CHECK_EQ(setrlimit(RLIMIT_AS, &few), 0);
  CHECK(!pages.keep(range.get(), huge));
  CHECK(can_be_read(range.get()));
}

// Of several sizes, allocated and freed, with forks in between.
CASE(sizes_of_all_kinds) {
  constexpr std::uint64_t limit = 16 * mib;
  const std::uint64_t sizes[] = {64 * kib, 4 * kib,        196 * kib, mib,     huge - 4 * kib,
                                 huge,     huge + 4 * kib, 3 * mib,   2 * huge};
  for (const char* policy : {"lru", "iteration"}) {
    lms_pager* pager = create(options(limit, policy));
    Random random(check::seed());
    struct Item {
      char* address;
      std::uint64_t bytes;
      std::uint64_t seed;
    };
    std::vector<Item> items;
    const auto step = [&] {
      if (items.size() < 12 || random.chance(20)) {
        const std::uint64_t bytes = sizes[random.below(sizeof sizes / sizeof *sizes)];
        const std::uint64_t seed = random.next();
        items.push_back(Item{filled(pager, bytes, seed), bytes, seed});
      }
      const std::size_t index = random.below(items.size());
      Item& item = items[index];
      const lms_pin_token token = check::pin(pager, item.address, true);
      CHECK(holds(item.address, item.bytes, item.seed));
      item.seed = random.next();
      check::fill(item.address, item.bytes, item.seed);
      lms_unpin(pager, token);
      if (items.size() > 12) {
        lms_free(pager, items[index].address);
        items[index] = items.back();
        items.pop_back();
      }
      CHECK(statistic(pager, "device_bytes.current") + statistic(pager, "kept_bytes.current") <= limit);
    };
    const std::uint64_t steps = check::steps(400);
    for (std::uint64_t done = 0; done < steps; ++done) {
      step();
      if (done % (steps / 4 + 1) == 10) {
        check::expect_success(check::process([&] {
          for (int count = 0; count < 20; ++count) {
            step();
          }
        }));
      }
    }
    CHECK_EQ(statistic(pager, "over_limit.requests"), 0);
  }
}

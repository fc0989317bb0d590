// How a pager's limit follows what there is of RAM. docs/internals.md, "A limit that follows RAM", says why so.
#include <time.h>

#include <algorithm>

#include "background.h"
#include "pager.h"
#include "share/monotonic.h"

namespace lms {

namespace {

// Between two looks: where other memory could soon need what blocks have, and where it could not.
constexpr std::uint64_t ram_near = 512 << 20;
constexpr long ram_short_pause_ns = 20'000'000;
constexpr long ram_long_pause_ns = 200'000'000;
// Who needs pages looks for itself when the last look is so long ago, since the thread got no time, or there is none.
constexpr std::uint64_t ram_overdue_ns = 250'000'000;
constexpr std::uint64_t ram_sampled_pages = 256;
constexpr std::uint64_t ram_second_ns = 1'000'000'000;

}  // namespace

// Whether there is anything to be had. Without the lock.
Status Pager::check_auto(const Settings& settings) {
  if (settings.limit_kind != LMS_LIMIT_AUTO) {
    return {};
  }
  if (asynchronous_) {
    return Status(LMS_INVALID_ARGUMENT, "limit: what is left of RAM is no limit for a device with memory of its own");
  }
  const Lock lock(lock_);
  const RamView view(settings.root);
  return view.allowed(device_bytes_ + kept_bytes()) >= page_bytes_
             ? Status()
             : Status(LMS_OUT_OF_MEMORY, "limit 'auto' finds no memory for tensors in " +
                                             view.tightest(device_bytes_ + kept_bytes()) +
                                             ", and a part is kept free: give it more, or give a limit in bytes");
}

void Pager::begin_auto_limit() {
  ram_limit_ = RamLimit();
  look_at_ram();
  follow_ram();
}

// Called when pages are needed.
void Pager::follow_ram() {
  if (limit_kind_ != LMS_LIMIT_AUTO) {
    return;
  }
  if (!watches_ram_ && !stopping_) {
    watches_ram_ = start_in_background([this] { watch_ram(); });
  }
  if (monotonic_ns() - ram_looked_ns_ > ram_overdue_ns) {
    look_at_ram();
  }
}

void Pager::look_at_ram() {
  // What blocks have is counted before what is used, so that what they fill meanwhile counts as others'. What is about
  // to get pages may have them already.
  std::uint64_t present = 0;
  const std::vector<const char*> pages = sample_pages(ram_sampled_pages, &present);
  const std::uint64_t kept = kept_bytes();
  const std::uint64_t least = kept + (pages.empty() ? 0 : present / pages.size() * count_resident(pages));
  const std::uint64_t most = least + device_bytes_ - std::min(device_bytes_, present);
  ram_looked_ns_ = monotonic_ns();
  std::uint64_t limit = ram_limit_.follow(RamView(root_), least, most, ram_looked_ns_);
  if (inherited_bytes_ > 0) {
    // To page out what the parent has, too, gives nothing back.
    if (ram_looked_ns_ - common_looked_ns_ > ram_second_ns) {
      common_looked_ns_ = ram_looked_ns_;
      inherited_bytes_ = std::min(inherited_bytes_, bytes_in_common());
    }
    limit = std::max(limit, inherited_bytes_);
  }
  store_limit(limit);
}

void Pager::watch_ram() {
  bool near = true;
  while (true) {
    const timespec pause{0, near ? ram_short_pause_ns : ram_long_pause_ns};
    nanosleep(&pause, nullptr);
    Lock lock(lock_);
    if (stopping_ || limit_kind_ != LMS_LIMIT_AUTO) {
      watches_ram_ = false;
      return;
    }
    look_at_ram();
    // A failure has been counted, and the next request that needs room reports it.
    static_cast<void>(reclaim_to_limit(&lock));
    const std::uint64_t taken = device_bytes_ + kept_bytes();
    near = taken > 0 && taken + ram_near > limit();
  }
}

// Whether `bytes` more can have memory, where the limit is what there is: rather an error than to be killed.
Status Pager::check_ram(std::uint64_t bytes) {
  if (limit_kind_ != LMS_LIMIT_AUTO) {
    return {};
  }
  backend_->trim(bytes);
  return RamView(root_).has(bytes) ? Status() : out_of_memory(bytes);
}

}  // namespace lms

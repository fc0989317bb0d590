// How a pager shares a budget with other processes. docs/internals.md, "Several processes", says why nobody waits for
// ever.
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "background.h"
#include "pager.h"
#include "share/meeting_point.h"
#include "share/monotonic.h"

namespace lms {

namespace {

constexpr int share_look_ms = 50;  // apart, when nobody rings
// A process that did nothing for so long keeps only its minimum from those who need more.
constexpr std::uint64_t share_idle_ns = 500'000'000;
constexpr std::uint64_t share_second_ns = 1'000'000'000;
// How long another sharer may take to answer: where the alternative is to page out, and where it is to pass the limit.
constexpr std::uint64_t share_patience_ns = 10'000'000;
constexpr std::uint64_t share_long_patience_ns = 250'000'000;
constexpr long share_nap_ns = 100'000;
// What is waited for besides: that long for each MiB, which even slow disks need.
constexpr std::uint64_t share_ns_per_mib = 4'000'000;
// How many bytes leave before others hear that they may have them.
constexpr std::uint64_t share_chunk = 8 << 20;
// Where a look found nothing to take there is hardly more a moment later, and it costs as much as to move a small
// block.
constexpr std::uint64_t share_pause_ns = 1'000'000;
// How many pages are looked at, at most, to estimate how many a child has in common with its parent.
constexpr std::uint64_t share_sampled_pages = 4096;
// Of what it allocated at once: sizes differ, so that some of what is freed cannot be used again at once.
constexpr std::uint64_t share_slack_part = 16;

}  // namespace

// ------------------------------------------------------------------------------------------------ joining

// Shares as the settings say, or no more. Nothing has changed when that fails.
Status Pager::share(const Settings& settings) {
  if (!settings.shared) {
    leave_sharers();
    inherited_bytes_ = 0;
    return {};
  }
  if (settings.limit_kind == LMS_LIMIT_AUTO) {
    return Status(
        LMS_INVALID_ARGUMENT,
        "share: a budget is a number of bytes, which all say alike, and limit 'auto' is what a process finds; "
        "give a limit, or leave 'share' out: processes with limit 'auto' leave each other room anyway");
  }
  if (settings.limit_kind != LMS_LIMIT_MANAGED) {
    return Status(LMS_INVALID_ARGUMENT, "share: only a limit of managed tensors can be shared");
  }
  if (settings.limit == Sharer::automatic && backend_->free_bytes() == UINT64_MAX) {
    return Status(LMS_INVALID_ARGUMENT, "share: a budget on this device needs a limit");
  }
  const bool same = sharer_ != nullptr && settings.share == shared_.share && settings.limit == shared_.limit;
  if (same && !sharer_->is_lost()) {
    return {};
  }
  const bool shared = sharer_ != nullptr;
  const Settings before = shared_;
  const std::string directory = same ? meeting_point_ : meeting_point::place();
  leave_sharers();
  Status status = join_sharers(settings, directory);
  if (!status.ok() && shared) {
    static_cast<void>(join_sharers(before, meeting_point_));
    follow_share();
  }
  return status;
}

Status Pager::join_sharers(const Settings& settings, const std::string& directory) {
  ShareTerms terms;
  Status status = read_share_terms(settings.share, &terms);
  if (!status.ok()) {
    return status;
  }
  activity_ = Activity();
  activity_.busy_ns = monotonic_ns();
  sharer_ = Sharer::join(directory, backend_->identity(), terms, settings.limit, standing(), &status);
  if (sharer_ == nullptr) {
    return status;
  }
  shares_ = true;
  rejoin_at_ = 0;
  shared_ = settings;
  meeting_point_ = directory;
  giving_limit_ = UINT64_MAX;
  no_share_until_ = 0;
  if (settings.limit == Sharer::automatic) {
    sharer_->set_free(backend_->free_bytes(), standing());
  }
  sharer_->take(standing().held, standing());  // what there is already
  const std::uint64_t serving = ++serving_;
  const std::shared_ptr<Bell> bell = sharer_->bell();
  if (!start_in_background([this, bell, serving] { serve_sharers(*bell, serving); })) {
    leave_sharers();
    status = Status(LMS_UNSUPPORTED, "share: the system refuses a thread; raise 'ulimit -u'");
  }
  return status;
}

void Pager::leave_sharers() {
  if (sharer_ != nullptr) {
    sharer_.reset();
    ++serving_;  // the thread ends when it looks next
  }
  shares_ = false;
  counts_.share_bytes = 0;
  counts_.share_budget = 0;
}

// For a forked child, or where the program has closed our descriptors, or somebody has removed the files, and the place
// is lost with them. While that fails the limit is what it was, and it is tried again.
void Pager::rejoin_sharers() {
  const std::uint64_t now = monotonic_ns();
  if (now < rejoin_at_) {
    return;
  }
  if (sharer_ != nullptr) {
    limit_without_share_ = limit();
    sharer_.reset();
  }
  const Status status = join_sharers(shared_, meeting_point_);
  if (status.ok()) {
    follow_share();
    return;
  }
  shares_ = true;
  store_limit(limit_without_share_);
  if (rejoin_at_ == 0) {
    const std::string text = "lms: this process shares its budget with nobody for now, and has a limit of " +
                             std::to_string(limit()) + " bytes: " + status.message + "\n";
    static_cast<void>(!write(STDERR_FILENO, text.data(), text.size()));
  }
  rejoin_at_ = now + share_second_ns;
}

void Pager::follow_share() {
  if (sharer_ != nullptr) {
    counts_.share_bytes = sharer_->allowed();
    counts_.share_budget = sharer_->budget();
    store_limit(std::min({own_limit_, giving_limit_, inherited_bytes_ + sharer_->allowed()}));
  }
}

// ------------------------------------------------------------------------------------------------ taking

// False where the process does not share, or not for now.
bool Pager::is_sharing() {
  if (shares_ && (sharer_ == nullptr || sharer_->is_lost())) {
    rejoin_sharers();
  }
  return sharer_ != nullptr;
}

// Takes what may be taken so that `bytes` more can be mapped. True when they can now.
bool Pager::take_share(std::uint64_t bytes) {
  if (!is_sharing()) {
    return false;
  }
  const std::uint64_t now = monotonic_ns();
  activity_.busy_ns = now;
  activity_.idle = false;
  const std::uint64_t total = device_bytes_ + bytes;
  if (std::min(own_limit_, giving_limit_) < total || now < no_share_until_) {
    return false;
  }
  note_allocated();
  const std::uint64_t before = sharer_->allowed();
  const bool enough = sharer_->take(total - std::min(total, inherited_bytes_), standing());
  counts_.share_taken_bytes += sharer_->allowed() - before;
  follow_share();
  if (!enough && !sharer_->expects(share_patience_ns)) {
    no_share_until_ = now + share_pause_ns;
  }
  return enough;
}

// Waits while others page out what this process has a claim to. True when `bytes` more can be mapped now.
bool Pager::wait_for_share(Lock* lock, std::uint64_t bytes, bool has_alternative) {
  const std::uint64_t patience = has_alternative ? share_patience_ns : share_long_patience_ns;
  if (!has_alternative && sharer_ != nullptr) {
    sharer_->ask_anew();
    no_share_until_ = 0;
    if (take_share(bytes)) {
      return true;
    }
  }
  if (sharer_ == nullptr || !sharer_->expects(patience)) {
    return false;
  }
  const std::uint64_t begin = monotonic_ns();
  const std::uint64_t end = begin + patience + (bytes >> 20) * share_ns_per_mib;
  bool enough = false;
  while (!enough && sharer_ != nullptr && !unlimited_ && monotonic_ns() < end && sharer_->expects(patience)) {
    lock->unlock();
    const timespec nap{0, share_nap_ns};
    nanosleep(&nap, nullptr);
    lock->lock();
    no_share_until_ = 0;
    enough = take_share(bytes) || device_bytes_ + bytes <= limit();
  }
  counts_.share_wait_ns += monotonic_ns() - begin;
  if (!enough && sharer_ != nullptr) {
    sharer_->give_up();
  }
  return enough;
}

// `bytes` more are going to be mapped than the share allows. Others take no more than what is left.
void Pager::pass_share(std::uint64_t bytes) {
  if (sharer_ != nullptr) {
    Standing now = standing();
    now.held += bytes;
    sharer_->tell(now);
  }
}

// The device has less memory than the budget says.
void Pager::share_refused() {
  if (sharer_ != nullptr) {
    sharer_->set_free(backend_->free_bytes(), standing());
    sharer_->lower(standing().held, standing(), false);
    follow_share();
  }
}

// ------------------------------------------------------------------------------------------------ giving

void Pager::serve_sharers(const Bell& bell, std::uint64_t serving) {
  while (true) {
    bell.wait(share_look_ms);
    Lock lock(lock_);
    if (serving_ != serving) {
      return;
    }
    if (stopping_ && device_bytes_ == 0) {
      leave_sharers();
      return;
    }
    if (!is_sharing()) {
      continue;  // it is tried again
    }
    if (serving_ != serving) {
      return;  // it has joined again, and another thread serves
    }
    note_activity();
    keep_to_share(&lock);
    if (serving_ == serving && sharer_ != nullptr) {
      give_to_sharers(&lock);
    }
  }
}

// It may hold more than its share: an operation needed that, or a forked child or its parent has written to what they
// had in common.
void Pager::keep_to_share(Lock* lock) {
  if (!unlimited_ && device_bytes_ > limit() && !take_share(0)) {
    static_cast<void>(reclaim_to_limit(lock));
  }
}

void Pager::give_to_sharers(Lock* lock) {
  const std::uint64_t serving = serving_;
  bool gave = false;
  while (true) {
    const Standing now = standing();
    if (unlimited_ || stopping_) {
      sharer_->tell(now);  // it keeps what it has, to the end
      break;
    }
    const std::uint64_t owed = sharer_->owed(now);
    if (owed == 0) {
      break;
    }
    const std::uint64_t has = std::max(sharer_->allowed(), now.held);
    const std::uint64_t goal = std::max(has - owed, now.held - std::min(now.held, share_chunk));
    giving_limit_ = inherited_bytes_ + goal;
    follow_share();
    // What fails here has been counted; others get less.
    static_cast<void>(reclaim_to_limit(lock));
    if (asynchronous_) {  // what is leaving has to be copied before its memory is anybody else's
      ++in_transit_;
      lock->unlock();
      backend_->trim(UINT64_MAX);
      lock->lock();
      --in_transit_;
      moved_.notify_all();
    }
    if (serving_ != serving || sharer_ == nullptr) {
      giving_limit_ = UINT64_MAX;
      return;
    }
    const Standing after = standing();
    gave = true;
    counts_.share_given_bytes += has - std::min(has, std::max(goal, after.held));
    sharer_->lower(std::max(goal, after.held), after, after.held <= goal);
    if (after.held > goal) {
      break;  // what is in use cannot leave
    }
  }
  giving_limit_ = UINT64_MAX;
  follow_share();
  if (gave) {
    over_limit_.store(!unlimited_ && device_bytes_ > limit(), std::memory_order_relaxed);
  }
}

// ------------------------------------------------------------------------------------------------ what it needs

void Pager::note_allocated() {
  std::uint64_t& most = activity_.allocated[activity_.next];
  most = std::max(most, allocated_bytes_.load(std::memory_order_relaxed));
}

// Called now and then.
void Pager::note_activity() {
  Activity& seen = activity_;
  const std::uint64_t now = monotonic_ns();
  const std::uint64_t clock = clock_.load(std::memory_order_relaxed);
  if (clock != seen.clock) {
    seen.clock = clock;
    seen.busy_ns = now;
    seen.idle = false;
  } else if (!seen.idle && now - seen.busy_ns > share_idle_ns) {
    seen.idle = !is_working();
    seen.busy_ns = seen.idle ? seen.busy_ns : now;
  }
  note_allocated();
  if (now - seen.second_ns > share_second_ns) {
    seen.second_ns = now;
    seen.clocks[seen.next] = clock;
    seen.next = (seen.next + 1) % Activity::seconds;
    seen.allocated[seen.next] = 0;
    note_allocated();
    seen.cold = sharer_->others() > 0 ? cold_bytes() : 0;
    if (shared_.limit == Sharer::automatic) {
      sharer_->set_free(backend_->free_bytes(), standing());
    }
    if (inherited_bytes_ > 0) {
      inherited_bytes_ = std::min(inherited_bytes_, bytes_in_common());
      follow_share();
    }
  }
}

// Of a forked child: bytes of memory that the process which it is from has, too, or another child of that. Estimated by
// some of the pages.
std::uint64_t Pager::bytes_in_common() {
  std::uint64_t total = 0;
  const std::vector<const char*> pages = sample_pages(share_sampled_pages, &total);
  return pages.empty() ? 0 : total / pages.size() * backend_->count_in_common(pages);
}

// Pages of all blocks that have pages, `most` or so, at even distances; and the bytes of those blocks.
std::vector<const char*> Pager::sample_pages(std::uint64_t most, std::uint64_t* bytes) const {
  *bytes = 0;
  for (const BlockId id : blocks_.present()) {
    *bytes += blocks_.at(id)->bytes;
  }
  const std::uint64_t step = std::max(page_bytes_, *bytes / most / page_bytes_ * page_bytes_);
  std::vector<const char*> pages;
  std::uint64_t offset = 0;  // of the next page, in what all blocks have
  std::uint64_t begin = 0;
  for (const BlockId id : blocks_.present()) {
    const Block& block = *blocks_.at(id);
    for (; offset < begin + block.bytes; offset += step) {
      pages.push_back(block.address + (offset - begin));
    }
    begin += block.bytes;
  }
  return pages;
}

// Bytes of blocks that nothing has used for Activity::seconds.
std::uint64_t Pager::cold_bytes() const {
  const std::uint64_t since = activity_.clocks[activity_.next];
  std::uint64_t bytes = 0;
  for (BlockId id = 0; since > 0 && id < blocks_.end(); ++id) {
    const Block& block = *blocks_.at(id);
    const std::uint64_t found = block.word.load(std::memory_order_acquire);
    const bool lives = word::state(found) != State::unused;
    if (lives && word::pins(found) == 0 && block.last_use.load(std::memory_order_relaxed) < since) {
      bytes += block.bytes;
    }
  }
  return bytes;
}

// Whether an operation is under way, in the program or on the device.
bool Pager::is_working() {
  if (in_transit_ > 0) {
    return true;
  }
  return std::any_of(blocks_.present().begin(), blocks_.present().end(), [this](BlockId id) {
    const Block& block = *blocks_.at(id);
    return word::pins(block.word.load(std::memory_order_acquire)) > 0 || !backend_->over(block.uses());
  });
}

Standing Pager::standing() {
  const auto own = [this](std::uint64_t bytes) { return bytes - std::min(bytes, inherited_bytes_); };
  const std::uint64_t allocated = allocated_bytes_.load(std::memory_order_relaxed);
  Standing now;
  now.held = own(device_bytes_ + backend_->kept_bytes());
  now.resident = resident_bytes_.load(std::memory_order_relaxed);
  now.allocated = allocated;
  now.away = away_bytes_;
  now.in_bytes = counts_.in_bytes;
  now.out_bytes = counts_.out_bytes;
  now.wait_ns = counts_.share_wait_ns;
  now.page = page_.id();
  if (unlimited_) {
    now.demand = now.held;  // it keeps what it has
  } else if (activity_.idle) {
    now.demand = std::min(sharer_->minimum(), own(allocated));
  } else {
    const std::uint64_t most =
        std::max(allocated, *std::max_element(activity_.allocated.begin(), activity_.allocated.end()));
    const std::uint64_t used = most - std::min(most, activity_.cold);
    now.demand = std::min(own_limit_, own(used + used / share_slack_part));
  }
  return now;
}

}  // namespace lms

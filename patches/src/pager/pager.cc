#include "pager.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <thread>

#include "backend/host_backend.h"
#include "background.h"
#include "fault.h"
#include "fork.h"
#include "system_calls.h"

namespace lms {

namespace {

// How many blocks leave at a time when there are too many of them for the system, rather than too many bytes.
constexpr int pager_some_blocks = 64;
// How much larger than the request a block may be that cannot be parted just there: by this part, which is what
// programs with sizes of any kind need so that most requests are served from the cache. One that repeats itself, as the
// policy knows, comes to have blocks of just its sizes. And how many blocks are tried.
constexpr std::uint64_t pager_waste = 4;
constexpr int pager_most_partings = 8;
// What may be cached in RAM beyond the most that was in use: a part of that, and at least so many bytes.
constexpr std::uint64_t pager_cache_part = 16;
constexpr std::uint64_t pager_cache_least = 32 << 20;
// Of what it costs to write a byte to the store instead of reading one, in doublings: from where on a change counts,
// and how many there are at most.
constexpr double pager_clear_change = 0.75;
constexpr double pager_most_doublings = 3;
// Accesses that fault although the block is there: after so many in a row the fault is not ours to serve.
constexpr int pager_most_spurious_faults = 1000;

void pager_raise_to(std::atomic<std::uint64_t>* peak, std::uint64_t value) {
  std::uint64_t old = peak->load(std::memory_order_relaxed);
  while (old < value && !peak->compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
}

// Adds the time until its end to a counter that the pager's lock guards.
class PagerStall {
 public:
  explicit PagerStall(std::uint64_t* total) : total_(total), start_(std::chrono::steady_clock::now()) {}
  PagerStall(const PagerStall&) = delete;
  PagerStall& operator=(const PagerStall&) = delete;
  ~PagerStall() {
    *total_ += static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_).count());
  }

 private:
  std::uint64_t* total_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

Pager::Pager(std::unique_ptr<Backend> backend, std::unique_ptr<Arena> arena)
    : Registered(backend->base(), backend->serves_faults() ? backend->span() : 0),
      backend_(std::move(backend)),
      arena_(std::move(arena)),
      page_bytes_(backend_->page_bytes()),
      asynchronous_(backend_->asynchronous()),
      page_(backend_->device()),
      copies_(backend_.get()) {}

void* Pager::operator new(std::size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignof(Pager), bytes) != 0) {
    throw std::bad_alloc();
  }
  return memory;
}

void Pager::operator delete(void* pager) { std::free(pager); }

Pager* Pager::make(const Settings& settings, Status* status) {
  std::unique_ptr<Backend> backend = make_host_backend(settings.address_space);
  if (backend == nullptr) {
    *status = Status(LMS_OUT_OF_MEMORY, "the system refuses to reserve address space for paged blocks (" +
                                            std::string(std::strerror(errno)) + "); raise 'ulimit -v'");
    return nullptr;
  }
  return make(std::move(backend), settings, status);
}

Pager* Pager::make(std::unique_ptr<Backend> backend, const Settings& settings, Status* status) {
  std::unique_ptr<Arena> arena = Arena::make(backend->base(), backend->span());
  if (arena == nullptr) {
    *status = Status(LMS_OUT_OF_MEMORY, "the system refuses memory for the table of blocks; raise 'ulimit -v'");
    return nullptr;
  }
  std::unique_ptr<Pager> pager(new Pager(std::move(backend), std::move(arena)));
  *status = pager->apply(settings);
  if (!status->ok()) {
    return nullptr;
  }
  fork::install();
  if (pager->backend_->serves_faults()) {
    *status = fault::install();
    if (status->ok()) {
      *status = system_calls::install();
    }
    if (!status->ok()) {
      return nullptr;
    }
  }
  if (!registry::add(pager.get())) {
    *status = Status(LMS_UNSUPPORTED, "this process has too many pagers; use the ones it has");
    return nullptr;
  }
  return pager.release();
}

void Pager::set_count_others(CountOthers count, void* context) {
  const Lock lock(lock_);
  count_others_ = count;
  count_others_context_ = context;
}

Status Pager::check_limit(std::uint64_t limit) const {
  if (limit <= backend_->capacity()) {
    return {};
  }
  return Status(LMS_INVALID_ARGUMENT, "a limit of " + std::to_string(limit) + " bytes is more than the device has: " +
                                          std::to_string(backend_->capacity()) + " bytes; choose one below that");
}

void Pager::set_trim_others(TrimOthers trim, void* context) {
  const Lock lock(lock_);
  trim_others_ = trim;
  trim_others_context_ = context;
}

// With the lock.
void Pager::take_limit(std::uint64_t limit, lms_limit_kind kind) {
  limit_kind_ = kind;
  total_limit_ = std::min(limit, backend_->capacity());
  unlimited_ = false;
  if (kind == LMS_LIMIT_AUTO) {
    begin_auto_limit();
    return;
  }
  if (sharer_ != nullptr) {
    own_limit_ = limit;
    follow_share();
    return;
  }
  store_limit(total_limit_);
  leave_room_for_others();
}

void Pager::leave_room_for_others() {
  if (limit_kind_ == LMS_LIMIT_TOTAL && count_others_ != nullptr) {
    store_limit(total_limit_ - std::min(total_limit_, count_others_(count_others_context_)));
  }
}

Status Pager::apply(const Settings& settings) {
  const bool any = settings.limit_kind == LMS_LIMIT_TOTAL || settings.limit_kind == LMS_LIMIT_AUTO ||
                   (settings.shared && settings.limit == Sharer::automatic);
  Status in_range = any ? check_auto(settings) : check_limit(settings.limit);
  if (!in_range.ok()) {
    return in_range;
  }
  std::unique_ptr<Policy> policy = make_policy(settings.policy);
  if (policy == nullptr) {
    return Status(LMS_INVALID_ARGUMENT, "policy '" + settings.policy + "' is unknown; use " + policy_names());
  }
  std::unique_ptr<Store> store;
  if (!copies_.go_to(settings.store)) {
    if (settings.store.directories.empty()) {
      store = backend_->make_memory_store();
    } else {
      std::string error;
      store = make_file_store(settings.store, &error);
      if (store == nullptr) {
        return Status(LMS_STORE_FAILED, error);
      }
    }
  }
  if (asynchronous_ && !caching_.load(std::memory_order_relaxed) &&
      !backend_->order(Uses{stream_bit(any_stream), backend_->now()}, host_stream)) {
    return device_failed("finish what used its memory while LMS was off");
  }
  Lock lock(lock_);
  moved_.wait(&lock, [this] { return !growing_; });
  Status shared = share(settings);
  if (!shared.ok()) {
    return shared;
  }
  if (settings.shared && !asynchronous_) {
    backend_->trim(UINT64_MAX);  // others may have use for it
  }
  if (store != nullptr) {
    copies_.set_store(std::move(store), settings.store);
  }
  policy_ = std::move(policy);
  policy_->set_distances(distances_);
  // The new policy sees uses from the first shortage on; nothing that was logged before belongs to it.
  observers_.fetch_and(~to_policy);
  drained_.clear();
  log_.drain(&drained_);
  drained_.clear();
  strict_ = settings.strict;
  stopping_ = false;
  caching_.store(true, std::memory_order_relaxed);
  root_ = settings.root;
  take_limit(settings.shared ? UINT64_MAX : settings.limit, settings.limit_kind);
  return {};
}

Status Pager::configure(const Settings& settings) {
  Status status = apply(settings);
  if (status.ok()) {
    if (backend_->serves_faults()) {
      fault::stay_in_front();
    }
    Lock lock(lock_);
    status = reclaim_to_limit(&lock);
  }
  return status;
}

Status Pager::set_limit(std::uint64_t limit) {
  Status in_range = check_limit(limit);
  if (!in_range.ok()) {
    return in_range;
  }
  Lock lock(lock_);
  take_limit(limit, LMS_LIMIT_MANAGED);
  return reclaim_to_limit(&lock);
}

void Pager::set_distances(const Distances& distances) {
  const Lock lock(lock_);
  distances_ = distances;
  policy_->set_distances(distances);
}

void Pager::shutdown() {
  std::vector<std::unique_ptr<Segment>> empty;  // destroyed after the lock
  Lock lock(lock_);
  stopping_ = true;
  in_worker_.work.notify_all();
  out_worker_.work.notify_all();
  moved_.wait(&lock, [this] { return (in_worker_.threads + out_worker_.threads == 0) || !stopping_; });
  caching_.store(false, std::memory_order_relaxed);
  while (trim_cache(UINT64_MAX, Pages::to_system)) {
  }
  backend_->trim(UINT64_MAX);
  if (device_bytes_ == 0) {
    leave_sharers();  // else when the last block is freed
  }
  empty = copies_.take_empty();
}

// ---------------------------------------------------------------------------------------------- allocation

Status Pager::allocate(std::uint64_t bytes, void** out, StreamId user) {
  if (bytes == 0) {
    return Status(LMS_INVALID_ARGUMENT, "a block needs at least one byte");
  }
  if (bytes > arena_->largest()) {
    return Status(LMS_OUT_OF_MEMORY, "a block of " + std::to_string(bytes) + " bytes is larger than any range of the " +
                                         std::to_string(backend_->span()) + " bytes of address space");
  }
  const std::uint64_t whole = (bytes + page_bytes_ - 1) / page_bytes_ * page_bytes_;
  Block* block = cache_.take(whole, asynchronous_ ? user : Thread::current().index());
  if (block == nullptr) {
    block = take_larger(whole);
  }
  if (block == nullptr) {
    const Status status = allocate_slow(whole, user, &block);
    if (!status.ok()) {
      return status;
    }
  } else if (asynchronous_ && !backend_->order(block->uses(), user)) {
    Status status = device_failed("reuse a block");
    const Lock lock(lock_);
    ++freed_uncached_;  // the cache counted a take that did not happen
    cache_.put_back(block);
    return status;
  }
  block->asked.store(whole, std::memory_order_relaxed);
  start_block(block, user);
  *out = block->address;
  return {};
}

// Turns pages without an owner into a live, resident block.
void Pager::start_block(Block* block, StreamId user) {
  const std::uint64_t generation = word::generation(block->word.load(std::memory_order_relaxed));
  block->seen.store(false, std::memory_order_relaxed);
  block->returned = false;
  block->last_use.store(clock_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  if (asynchronous_) {
    block->home = user;
    block->streams.store(stream_bit(user), std::memory_order_relaxed);
    block->until.store(backend_->now(), std::memory_order_relaxed);
  }
  Thread::current().protect(block);
  pager_raise_to(&allocated_bytes_peak_,
                 allocated_bytes_.fetch_add(block->bytes, std::memory_order_relaxed) + block->bytes);
  pager_raise_to(&resident_bytes_peak_,
                 resident_bytes_.fetch_add(block->bytes, std::memory_order_relaxed) + block->bytes);
  note(block, Use::allocate);
  block->word.store(generation << word::generation_shift | word::of(State::resident), std::memory_order_release);
}

// A cached block of some other size than `bytes`, parted from a larger one; null when none fits.
Block* Pager::take_larger(std::uint64_t bytes) {
  if (cache_.bytes() < bytes) {
    return nullptr;
  }
  Lock lock(lock_);
  for (bool joined = false;; joined = true) {
    const std::uint64_t end = bytes < Arena::large_block ? Arena::large_block : UINT64_MAX;
    std::uint64_t size = bytes - 1;
    for (int tries = 0; tries < pager_most_partings; ++tries) {
      Block* block = cache_.take_larger(size, end);
      if (block == nullptr) {
        break;
      }
      size = block->bytes;
      if (part(block, bytes)) {
        cache_.count_take();
        return block;
      }
      cache_.put_back(block);
    }
    if (joined || !join_cached()) {
      return nullptr;
    }
  }
}

// Makes `bytes` of a block without an owner, or a little more, and caches the rest. False when it cannot be parted so.
bool Pager::part(Block* block, std::uint64_t bytes) {
  const std::uint64_t whole = block->bytes;
  const std::uint64_t kept = backend_->parting(block->address, whole, bytes);
  if (kept - bytes > (policy_->follows() ? 0 : bytes / pager_waste)) {
    return false;
  }
  if (kept == whole) {
    return true;
  }
  const std::uint64_t least = bytes < Arena::large_block ? page_bytes_ : Arena::large_block;
  const std::uint64_t first = Arena::footprint(kept);
  const bool has_rest = first + least <= whole;
  if (!backend_->part(block->address, whole, kept, has_rest ? first : whole)) {
    return false;
  }
  Block* rest = has_rest ? blocks_.take() : nullptr;
  arena_->part(block, kept, rest);
  device_bytes_ -= whole - kept;
  if (rest != nullptr) {
    device_bytes_ += rest->bytes;
    blocks_.add_present(rest);
    rest->home = block->home;
    rest->last_use.store(block->last_use.load(std::memory_order_relaxed), std::memory_order_relaxed);
    rest->streams.store(block->streams.load(std::memory_order_relaxed), std::memory_order_relaxed);
    rest->until.store(block->until.load(std::memory_order_relaxed), std::memory_order_relaxed);
    cache_.put_back(rest);
  }
  return true;
}

// Joins cached blocks that touch. False when there are none.
bool Pager::join_cached() {
  std::vector<Block*> blocks = cache_.take_all();
  std::sort(blocks.begin(), blocks.end(), [](const Block* a, const Block* b) { return a->address < b->address; });
  bool some = false;
  Block* last = nullptr;
  for (Block* block : blocks) {
    if (last != nullptr && join(last, block)) {
      some = true;
      continue;
    }
    if (last != nullptr) {
      cache_.put_back(last);
    }
    last = block;
  }
  if (last != nullptr) {
    cache_.put_back(last);
  }
  return some;
}

// Makes the second of two blocks without owners part of the first. False when they do not touch, or differ.
bool Pager::join(Block* first, Block* second) {
  const std::uint64_t bytes = first->bytes + second->bytes;
  const bool alike =
      first->home == second->home &&
      (second->bytes < Arena::large_block ? bytes < Arena::large_block : first->bytes >= Arena::large_block);
  if (!alike || first->address + first->bytes != second->address ||
      !backend_->join(first->address, first->bytes, second->bytes)) {
    return false;
  }
  arena_->join(first, second);
  const Uses uses = second->uses();
  first->streams.fetch_or(uses.streams, std::memory_order_relaxed);
  raise_to(&first->until, uses.until);
  raise_to(&first->last_use, second->last_use.load(std::memory_order_relaxed));
  blocks_.remove_present(second);
  blocks_.put_back(second);
  return true;
}

Status Pager::allocate_slow(std::uint64_t bytes, StreamId user, Block** out) {
  Lock lock(lock_);
  const PagerStall stall(&counts_.stall_ns);
  release_ranges();
  trim_excess(bytes);
  Status status = reclaim_for(&lock, bytes, Reach::demand);
  if (!status.ok()) {
    return status;
  }
  Block* block = blocks_.take();
  block->bytes = bytes;
  // Cached blocks hold address space and mappings as well as memory.
  if (!arena_->place(block) && !(trim_cache(UINT64_MAX, Pages::to_system) && arena_->place(block))) {
    blocks_.put_back(block);
    return Status(LMS_OUT_OF_MEMORY, "the pager's address space is used up: no free range of " + std::to_string(bytes) +
                                         " bytes; enable it with more address space");
  }
  // Counted first: the lock may be let go meanwhile.
  count_device(*block);
  while (!backend_->map(block->address, bytes, user)) {
    const Refusal refusal(*backend_);
    if (!refusal.lacked_memory || !reclaim_after_refusal(&lock)) {
      device_bytes_ -= bytes;
      arena_->remove(block);
      blocks_.put_back(block);
      return refused("map pages", bytes, refusal);
    }
  }
  counts_.device_bytes_peak = std::max(counts_.device_bytes_peak, device_bytes_);
  ++counts_.mapped_allocations;
  blocks_.add_present(block);
  *out = block;
  return {};
}

void Pager::free(void* address) {
  Block* block = arena_->find(address);
  if (block == nullptr) {
    return;
  }
  std::uint64_t found = block->word.load(std::memory_order_acquire);
  if (word::state(found) == State::unused) {
    return;
  }
  note(block, Use::free);
  if (asynchronous_) {
    // Work that its stream was given by now may still use it, through pointers that the pager has not seen.
    add_use(block, block->home);
  }
  while (word::state(found) == State::resident && (found & (word::clean | word::prefetched)) == 0 &&
         caching_.load(std::memory_order_relaxed)) {
    // The generation moves on, so that a pin on the old block that is dropped later changes nothing.
    const std::uint64_t unused = (word::generation(found) + 1) << word::generation_shift | word::of(State::unused);
    if (block->word.compare_exchange_weak(found, unused, std::memory_order_acq_rel)) {
      allocated_bytes_.fetch_sub(block->bytes, std::memory_order_relaxed);
      resident_bytes_.fetch_sub(block->bytes, std::memory_order_relaxed);
      block->last_use.store(clock_.load(std::memory_order_relaxed), std::memory_order_relaxed);
      cache_.put(block, asynchronous_ ? block->home : Thread::current().index());
      return;
    }
  }
  free_slow(block);
}

bool Pager::range(const void* address, void** begin, std::uint64_t* bytes) const {
  const Block* block = arena_->find(address);
  if (block == nullptr || block->state() == State::unused) {
    return false;
  }
  *begin = block->address;
  *bytes = block->bytes;
  return true;
}

void Pager::free_slow(Block* block) {
  Lock lock(lock_);
  moved_.wait(&lock, [block] { return block->state() != State::leaving && block->state() != State::arriving; });
  const std::uint64_t found = block->word.load(std::memory_order_relaxed);
  const State state = word::state(found);
  if (state == State::unused) {
    return;
  }
  block->word.store((word::generation(found) + 1) << word::generation_shift | word::of(State::unused),
                    std::memory_order_release);
  allocated_bytes_.fetch_sub(block->bytes, std::memory_order_relaxed);
  if (state == State::away) {
    away_bytes_ -= block->bytes;
    backend_->forget(block->address);
  }
  copies_.release(block);
  if (state == State::resident) {
    resident_bytes_.fetch_sub(block->bytes, std::memory_order_relaxed);
    if (caching_.load(std::memory_order_relaxed) &&
        ((found & word::clean) == 0 || backend_->protect(block->address, block->bytes, Access::read_write))) {
      block->last_use.store(clock_.load(std::memory_order_relaxed), std::memory_order_relaxed);
      cache_.put(block, asynchronous_ ? block->home : Thread::current().index());
      return;
    }
    ++freed_uncached_;
    if (!backend_->unmap(block->address, block->bytes, block->uses())) {
      return;  // the range stays taken: its pages could not be given back
    }
    device_bytes_ -= block->bytes;
    blocks_.remove_present(block);
  } else {
    ++freed_uncached_;
  }
  unsettled_.push_back(block);
  release_ranges();
}

// Releases the ranges of freed blocks whose addresses may be used again.
void Pager::release_ranges() {
  for (std::size_t count = unsettled_.size(); count > 0; --count) {
    Block* block = unsettled_.front();
    unsettled_.pop_front();
    if (backend_->settled(block->address, block->bytes)) {
      arena_->remove(block);
      blocks_.put_back(block);
    } else {
      unsettled_.push_back(block);
    }
  }
}

bool Pager::owns(const void* address) const {
  const Block* block = arena_->find(address);
  return block != nullptr && block->state() != State::unused;
}

Pager* Pager::owner(const void* address) {
  for (std::size_t index = 0; Registered* registered = registry::at(index); ++index) {
    auto* pager = static_cast<Pager*>(registered);  // only pagers register
    if (pager->owns(address)) {
      return pager;
    }
  }
  return nullptr;
}

// ------------------------------------------------------------------------------------------------ pins, scopes

Status Pager::pin_slow(Block* block, bool write, Pin* out, StreamId user) {
  // The pin is already counted.
  *out = Pin{};
  Status status;
  bool was_prefetched = false;
  {
    Lock lock(lock_);
    const PagerStall stall(&counts_.stall_ns);
    const std::uint64_t generation = word::generation(block->word.load(std::memory_order_relaxed));
    while (true) {
      const std::uint64_t found = block->word.load(std::memory_order_acquire);
      if (word::state(found) == State::unused || word::generation(found) != generation) {
        status = Status(LMS_INVALID_ARGUMENT, "the address belongs to a block that was freed");
        break;
      }
      if (word::pins(found) > word::most_pins) {
        status = Status(LMS_INVALID_ARGUMENT, "the block is pinned too often; unpin what is no longer used");
        break;
      }
      if (word::state(found) == State::leaving || word::state(found) == State::arriving) {
        moved_.wait(&lock);
      } else if (word::state(found) == State::away) {
        // Where a failure would let the operation run into an illegal access, even a strict limit is passed.
        status = page_in(&lock, block, write, backend_->serves_faults() ? Reach::use : Reach::unlimited);
        if (!status.ok()) {
          break;
        }
      } else {
        if ((found & word::in_flight) != 0) {
          status = order(&lock, block, user);
          if (!status.ok()) {
            break;
          }
          if (waits_on_host(user)) {
            continue;  // the lock may have been let go
          }
        }
        if ((found & word::prefetched) != 0) {
          block->word.fetch_and(~word::prefetched);
          was_prefetched = true;
          ++counts_.prefetch_hits;
        }
        if (write && (found & word::clean) != 0) {
          status = make_writable(block);
        }
        break;
      }
    }
    *out = Pin{block, generation};
  }
  if (!status.ok()) {
    out->release();
    *out = Pin{};
    return status;
  }
  touch(block);
  note(block, write ? Use::write : Use::read);
  if (was_prefetched) {
    in_worker_.work.notify_one();  // there may be something else to look ahead for
  }
  return {};
}

// Makes the stream wait for the copy that brought the block in. The host waits for it without the lock. Whoever waits
// for the stream's work from then on waits for the copy as well, and not for the copies that were begun after it.
Status Pager::order(Lock* lock, Block* block, StreamId user) {
  const Uses copy = block->copy;
  if (backend_->over(copy)) {
    block->word.fetch_and(~word::in_flight);
    block->streams.fetch_and(~copy.streams, std::memory_order_release);
    return {};
  }
  const bool on_host = waits_on_host(user);
  if (on_host) {
    lock->unlock();
  }
  const bool ordered = backend_->order(copy, user);
  Status status = ordered ? Status() : device_failed("wait for a copy");
  if (on_host) {
    lock->lock();
  }
  if (ordered && !on_host) {
    block->streams.fetch_or(stream_bit(user), std::memory_order_release);
    raise_to(&block->until, backend_->now());
    block->streams.fetch_and(~copy.streams, std::memory_order_release);
  }
  return status;
}

void Pager::mark_seen(const void* address, StreamId user) {
  Block* block = arena_->find(address);
  if (block != nullptr) {
    add_use(block, user);  // before it can be paged out
    block->seen.store(true, std::memory_order_release);
  }
}

void Pager::record_use(const void* address, StreamId user) {
  Block* block = arena_->find(address);
  if (block != nullptr) {
    add_use(block, user);
  }
}

Status Pager::hold(const void* address) {
  Pin held;
  Status status = pin(address, true, &held);
  if (status.ok() && held.block != nullptr) {
    held.block->word.fetch_or(word::held, std::memory_order_acq_rel);
    // The stream that it was allocated for needs no announcement to use it, and a page-in forgets that one.
    unpin(held, held.block->home);
  }
  return status;
}

void Pager::begin_scope() {
  Thread::current().begin_scope();
  scope_began();
}

void Pager::end_scope(StreamId user) { scope_ended(Thread::current().end_scope(), user); }

void Pager::scope_began() {
  clock_.fetch_add(1, std::memory_order_relaxed);
  if (Trace* trace = trace_.load(std::memory_order_acquire)) {
    trace->begin(Thread::current().index());
  }
}

void Pager::scope_ended(bool outermost, StreamId user) {
  if (Trace* trace = trace_.load(std::memory_order_acquire)) {
    trace->end(Thread::current().index());
  }
  if (user != host_stream && ((outermost && mark_is_due(user)) || !backend_->lasting(user))) {
    backend_->mark(user);
  }
  if (outermost && over_limit_.load(std::memory_order_relaxed)) {
    reclaim_to_limit_slow();
  }
}

// Called once at the end of an outermost scope.
bool Pager::mark_is_due(StreamId user) {
  if ((observers_.load(std::memory_order_relaxed) & to_policy) == 0) {
    return false;
  }
  count_unmarked(user, 0, 1);
  Unmarked& unmarked = unmarked_[user];
  if (unmarked.operations.load(std::memory_order_relaxed) < mark_operations &&
      unmarked.bytes.load(std::memory_order_relaxed) < limit() / mark_part) {
    return false;
  }
  unmarked.operations.store(0, std::memory_order_relaxed);
  unmarked.bytes.store(0, std::memory_order_relaxed);
  return true;
}

void Pager::reclaim_to_limit_slow() {
  Lock lock(lock_);
  // A failure has been counted, and the next request that needs room reports it.
  static_cast<void>(reclaim_to_limit(&lock));
}

// ------------------------------------------------------------------------------------------------ moving pages

bool Pager::trim_cache(std::uint64_t bytes, Pages pages) {
  std::uint64_t freed = 0;
  while (freed < bytes) {
    Block* block = cache_.take_oldest();
    if (block == nullptr) {
      break;
    }
    if (!(pages == Pages::for_reuse ? unmap_left(*block)
                                    : backend_->unmap(block->address, block->bytes, block->uses()))) {
      cache_.put_back(block);
      break;
    }
    freed += block->bytes;
    device_bytes_ -= block->bytes;
    blocks_.remove_present(block);
    unsettled_.push_back(block);
  }
  release_ranges();
  return freed > 0;
}

// The cache of a machine's own RAM takes it from everybody else, so it may not make more of `bytes` for a new block
// than the program has had in use at once, and a little.
void Pager::trim_excess(std::uint64_t bytes) {
  if (asynchronous_) {
    return;  // the framework's own cache keeps a device's memory as well
  }
  most_used_ = std::max(most_used_, allocated_bytes_peak_.load(std::memory_order_relaxed));
  const std::uint64_t kept = kept_bytes();
  if (device_bytes_ + kept + bytes > most_cached()) {
    trim_cache(bytes - std::min(bytes, kept), Pages::for_reuse);  // what is kept serves it
  }
}

std::uint64_t Pager::most_cached() const {
  return most_used_ + std::max(most_used_ / pager_cache_part, pager_cache_least);
}

// The device, or the system, refuses memory that the limit allows: others have it. Gives some back; false when nothing
// can be.
bool Pager::reclaim_after_refusal(Lock* lock) {
  if (trim_cache(UINT64_MAX, Pages::to_system)) {
    return true;
  }
  if (!asynchronous_) {
    return backend_->trim(UINT64_MAX) > 0;
  }
  share_refused();
  if (trim_others_ != nullptr && trim_others_(trim_others_context_)) {
    return true;
  }
  if (unlimited_) {
    return false;  // everything is to come back: to send something away would not end
  }
  Block* victim = next_victim(page_bytes_, Cause::shortage);
  return victim != nullptr && page_out(lock, victim, false).ok() && victim->state() == State::away;
}

// The block that the policy wants to leave, since `bytes` are needed; null when none can.
Block* Pager::next_victim(std::uint64_t bytes, Cause cause) {
  if (cause == Cause::shortage) {
    observers_.fetch_or(to_policy, std::memory_order_relaxed);
  }
  drain_events();
  const BlockId id = policy_->victim(*this, bytes);
  return id != no_block ? blocks_.at(id) : nullptr;
}

Status Pager::reclaim_for(Lock* lock, std::uint64_t bytes, Reach reach) {
  unsigned paged_out = 0;
  bool asked = false;  // others for their part of what this process has a claim to
  bool insisted = false;
  leave_room_for_others();
  follow_ram();
  while (!unlimited_ && device_bytes_ + bytes > limit()) {
    if (take_share(bytes)) {
      continue;
    }
    if (!asked && reach != Reach::cached) {
      asked = true;
      if (wait_for_share(lock, bytes, true)) {
        continue;
      }
    }
    if (device_bytes_ + bytes <= limit()) {
      continue;  // the lock was let go
    }
    const std::uint64_t missing = device_bytes_ + bytes - limit();
    if (trim_cache(missing, asynchronous_ ? Pages::to_system : Pages::for_reuse)) {
      continue;
    }
    if (reach == Reach::cached) {
      return Status(LMS_OUT_OF_MEMORY, {});
    }
    faulted_.release_ended(clock_.load(std::memory_order_relaxed));
    Block* victim = next_victim(missing, Cause::shortage);
    if (victim == nullptr && (copying_ > 0 || growing_)) {
      moved_.wait(lock);  // what is leaving makes room, what is arriving can leave again
      continue;
    }
    if (victim == nullptr && (reach >= Reach::use ? faulted_.release_others() : faulted_.release_idle())) {
      continue;
    }
    if (victim == nullptr && backend_->serves_faults()) {
      victim = blocks_.oldest_protected(strict_);  // rather those of the innermost than a failure
    }
    if (victim == nullptr && !insisted) {
      insisted = true;
      if (wait_for_share(lock, bytes, false)) {
        continue;
      }
    }
    Status status;
    if (victim != nullptr) {
      status = page_out(lock, victim, true);
      paged_out += status.ok() ? 1 : 0;
    } else if (strict_) {
      status = out_of_memory(bytes);
    } else if (reach >= Reach::use) {
      status = check_ram(bytes);
    }
    const bool refuses = strict_ || victim == nullptr;
    if (!status.ok() && (reach == Reach::demand || (reach == Reach::use && refuses))) {
      return status;
    }
    if (!status.ok() || victim == nullptr) {
      ++counts_.over_limit_requests;
      if (limit_kind_ == LMS_LIMIT_LEAST && status.ok()) {
        store_limit(std::min(limit() + missing, backend_->capacity()));
        return {};
      }
      if (missing > counts_.over_limit_bytes_peak) {
        counts_.over_limit_bytes_peak = missing;
        over_limit_operation_ = report::running_operation();
      }
      over_limit_.store(true, std::memory_order_relaxed);
      pass_share(bytes);
      return {};
    }
  }
  if (reach != Reach::cached) {
    ++(paged_out == 0   ? counts_.fresh_requests
       : paged_out == 1 ? counts_.one_out_requests
                        : counts_.several_out_requests);
  }
  return {};
}

// Pages out until what is mapped fits the limit again, or nothing more can leave; even under `strict` what is in use
// now may stay.
Status Pager::reclaim_to_limit(Lock* lock) {
  Status status;
  if (shares_ && sharer_ == nullptr) {
    rejoin_sharers();
  }
  trim_kept();
  while (status.ok() && !unlimited_ && device_bytes_ > limit()) {
    if (trim_cache(device_bytes_ - limit(), Pages::to_system)) {
      continue;
    }
    if (Block* victim = next_victim(device_bytes_ - limit(), Cause::shortage)) {
      status = page_out(lock, victim, false);
    } else if (!release_faulted()) {
      break;
    }
  }
  over_limit_.store(!unlimited_ && device_bytes_ > limit(), std::memory_order_relaxed);
  return status;
}

// Whether the store has the block's contents.
bool Pager::is_clean(const Block& block) {
  return (block.word.load(std::memory_order_acquire) & word::clean) != 0 && block.slot.store != nullptr;
}

// The block leaves: it is copied where its contents are not in the store already. False when it cannot.
bool Pager::begin_leaving(Block* block, bool even_protected) {
  std::uint64_t found = block->word.load(std::memory_order_acquire);
  do {
    if (!BlockTable::can_leave(*block, even_protected) || word::pins(found) > 0 ||
        word::state(found) != State::resident) {
      return false;
    }
  } while (!block->word.compare_exchange_weak(
      found, (found & ~(word::state_mask | word::prefetched)) | word::of(State::leaving), std::memory_order_acq_rel));
  return true;
}

// OK also when the block was pinned meanwhile and stayed.
Status Pager::page_out(Lock* lock, Block* block, bool even_protected) {
  if (!begin_leaving(block, even_protected)) {
    return {};
  }
  return asynchronous_ ? page_out_by_device(lock, block) : page_out_by_host(lock, Batch(block));
}

// What is measured varies from copy to copy, so only powers of two count, and those that are clearly others than
// before.
void Pager::note_store_speed() {
  const double read = copies_.store().read_cost();
  const double measured = read > 0 ? copies_.store().write_cost() / read : 1;
  const double change = std::log2(measured / write_cost_);
  if (std::abs(change) > pager_clear_change) {
    write_cost_ =
        std::exp2(std::max(-pager_most_doublings, std::min(pager_most_doublings, std::round(std::log2(measured)))));
  }
}

// False when the store has no room for the blocks; copies_.error() says why.
bool Pager::allocate_slots(const Batch& blocks) {
  note_store_speed();
  if (!copies_.allocate(blocks)) {
    return false;
  }
  counts_.store_bytes_peak = std::max(counts_.store_bytes_peak, copies_.bytes());
  return true;
}

// To page these blocks out has failed for the `attempt`th time. When a write to their slots was the reason, and there
// is a place where none has failed, gives the slots back and returns true. Others may be full, or fail as well, so this
// ends.
bool Pager::move_elsewhere(const Batch& blocks, std::size_t attempt) {
  const Slot slot = blocks.front()->slot;
  const int error_number = slot.segment->failed_write.load(std::memory_order_relaxed);
  if (error_number == 0 || !slot.store->write_failed(slot, error_number) || attempt >= slot.store->places()) {
    return false;
  }
  for (Block* block : blocks) {
    block->copy = Uses{};
    copies_.release(block);
  }
  return true;
}

// Makes room for `bytes` in the store, if it can be enlarged by as much as it should be. Host memory takes long to pin,
// and a disk to make a large file, so others go on meanwhile.
void Pager::grow_store(Lock* lock, std::uint64_t bytes) {
  while (!copies_.store().has_room(bytes)) {
    if (growing_) {
      moved_.wait(lock);
      continue;
    }
    growing_ = true;
    const Transit transit(this);
    Store& store = copies_.store();
    const Growth growth = store.next_growth(bytes);
    lock->unlock();
    std::unique_ptr<Segment> segment = store.make_segment(growth);
    lock->lock();
    growing_ = false;
    if (segment == nullptr) {
      break;  // a smaller one may do, and who allocates from it finds out why it cannot be had
    }
    store.add_segment(std::move(segment), growth.place);
  }
}

// The block is leaving; afterwards it is away, or resident as it was.
Status Pager::page_out_by_device(Lock* lock, Block* block) {
  const Transit transit(this);
  copies_.drain();
  grow_store(lock, block->bytes);
  Uses copy;
  Status status;
  bool again = false;
  std::size_t attempts = 0;
  do {
    if (!allocate_slots(Batch(block))) {
      ++counts_.store_failures;
      block->change_state(State::leaving, State::resident);
      return Status(LMS_STORE_FAILED, copies_.error());
    }
    status = Status();
    ++copying_;
    lock->unlock();
    if (!backend_->page_out(block->address, block->bytes, block->slot, block->uses(), &copy)) {
      status = device_failed("page a block out");
    }
    lock->lock();
    --copying_;
    again = !status.ok() && move_elsewhere(Batch(block), ++attempts);
  } while (again);
  if (!status.ok()) {
    ++counts_.store_failures;
    block->copy = Uses{};
    copies_.release(block);
    block->change_state(State::leaving, State::resident);
    return status;
  }
  block->copy = copy;
  counts_.out_bytes += block->bytes;
  ++counts_.out_blocks;
  block->word.fetch_and(~word::in_flight);
  device_bytes_ -= block->bytes;
  resident_bytes_.fetch_sub(block->bytes, std::memory_order_relaxed);
  count_away(*block);
  block->change_state(State::leaving, State::away);
  return {};
}

void Pager::count_away(const Block& block) {
  blocks_.remove_present(&block);
  away_bytes_ += block.bytes;
  counts_.away_bytes_peak = std::max(counts_.away_bytes_peak, away_bytes_);
}

// The same where the host copies by itself, and others may reach the blocks meanwhile; for several, if all have to be
// written: together. Not OK when one of them stayed for any other reason than that it was pinned.
Status Pager::page_out_by_host(Lock* lock, const Batch& blocks) {
  fault::stay_in_front();
  const bool clean = is_clean(*blocks.front());
  const Transit transit(this);
  const Status written = clean ? Status() : write_back(lock, blocks);
  Status status;
  for (Block* block : blocks) {
    const Status given = give_pages_back(block, clean, written);
    status = status.ok() ? given : status;
  }
  return status;
}

// Gives the blocks slots, and copies them.
Status Pager::write_back(Lock* lock, const Batch& blocks) {
  std::array<iovec, Batch::most> ranges;
  std::transform(blocks.begin(), blocks.end(), ranges.begin(),
                 [](const Block* block) { return iovec{block->address, block->bytes}; });
  for (std::size_t attempt = 1;; ++attempt) {
    grow_store(lock, blocks.bytes());
    if (!allocate_slots(blocks)) {
      return Status(LMS_STORE_FAILED, copies_.error());
    }
    for (const Block* block : blocks) {
      // From here on a write that nothing announced faults, and waits until the block has left.
      if (!backend_->protect(block->address, block->bytes, Access::read_only)) {
        return refused("protect pages", block->bytes, Refusal(*backend_));
      }
    }
    const Slot slot = blocks.front()->slot;
    ++copying_;
    lock->unlock();
    const bool copied = backend_->copy_out(ranges.data(), blocks.size(), slot);
    const int error_number = errno;
    lock->lock();
    --copying_;
    if (copied) {
      counts_.out_bytes += blocks.bytes();
      counts_.out_blocks += blocks.size();
      return {};
    }
    Status failed(LMS_STORE_FAILED, slot.store->failure("written", slot, blocks.bytes(), error_number));
    if (!move_elsewhere(blocks, attempt)) {
      return failed;
    }
  }
}

// The block is about to get pages: those that the host's backend keeps, or others, and then what that keeps and all
// blocks have together stays within the limit.
void Pager::count_device(const Block& block) {
  if (!asynchronous_) {
    backend_->set_aside(block.address, block.bytes);
  }
  device_bytes_ += block.bytes;
  trim_kept();
}

void Pager::trim_kept() {
  const std::uint64_t kept = kept_bytes();
  const std::uint64_t most = std::min(limit(), most_cached());
  if (kept > 0 && device_bytes_ + kept > most) {
    backend_->trim(device_bytes_ + kept - most);
  }
}

// Gives the pages of a block that has left back. What comes next wants as many, unless there are too many already, or
// other processes wait for them.
bool Pager::unmap_left(const Block& block) {
  return unlimited_ || shares_ || device_bytes_ + kept_bytes() > limit()
             ? backend_->unmap(block.address, block.bytes, Uses{})
             : backend_->unmap_for_reuse(block.address, block.bytes, Uses{});
}

// The block is leaving, and has been written, or is clean, or that failed.
Status Pager::give_pages_back(Block* block, bool clean, Status written) {
  Status status = std::move(written);
  if (status.ok() && word::pins(block->word.load(std::memory_order_acquire)) > 0) {
    // It was pinned again: it stays, with a copy that saves the next one.
    block->word.fetch_or(word::clean);
    block->change_state(State::leaving, State::resident);
  } else if (status.ok() && unmap_left(*block)) {
    if (clean) {
      counts_.clean_drop_bytes += block->bytes;
      ++counts_.clean_drop_blocks;
    }
    block->word.fetch_and(~word::clean);
    device_bytes_ -= block->bytes;
    resident_bytes_.fetch_sub(block->bytes, std::memory_order_relaxed);
    count_away(*block);
    block->change_state(State::leaving, State::away);
  } else {
    // Nothing is lost: the block stays as it was.
    if (status.ok()) {
      status = refused("give pages back", block->bytes, Refusal(*backend_));
    } else {
      ++counts_.store_failures;
    }
    if (!clean) {
      copies_.release(block);
      // A refusal leaves the block write-protected; the fault handler tries again at the next write.
      if (!backend_->protect(block->address, block->bytes, Access::read_write)) {
        block->word.fetch_or(word::clean);
      }
    }
    block->change_state(State::leaving, State::resident);
  }
  return status;
}

Status Pager::page_in(Lock* lock, Block* block, bool write, Reach reach) {
  write = write || !backend_->protects();  // a copy is worth nothing if it is not noticed when it is out of date
  block->change_state(State::away, State::arriving);
  const Transit transit(this);
  if (backend_->crowded()) {
    page_out_some(lock);  // before room is made: it lets the lock go
  }
  Status status = reclaim_for(lock, block->bytes, reach);
  bool arrived = false;
  if (status.ok()) {
    // First: the lock is let go, and the device may refuse.
    count_device(*block);
    const std::uint64_t resident = resident_bytes_.fetch_add(block->bytes, std::memory_order_relaxed) + block->bytes;
    const Uses saved = block->copy;
    Uses copy;
    Refusal refusal;
    bool again = false;
    do {
      bool refused_pages = false;
      ++copying_;
      lock->unlock();
      arrived = backend_->copy_in(block->address, block->bytes, block->slot,
                                  write ? Access::read_write : Access::read_only, saved, &copy, &refused_pages);
      const int error_number = errno;
      lock->lock();
      --copying_;
      if (!arrived && !refused_pages) {
        status = asynchronous_ ? device_failed("bring a block back")
                               : Status(LMS_READ_FAILED,
                                        block->slot.store->failure("read", block->slot, block->bytes, error_number));
      } else if (!arrived) {
        errno = error_number;
        refusal = Refusal(*backend_);
      }
      again = !arrived && refused_pages && reach != Reach::cached && reclaim_after_refusal(lock);
    } while (again);
    if (arrived) {
      pager_raise_to(&resident_bytes_peak_, resident);
      counts_.device_bytes_peak = std::max(counts_.device_bytes_peak, device_bytes_);
      block->copy = copy;
      // Every earlier use was over when it left; the copy is the first of the new ones.
      block->streams.store(copy.streams, std::memory_order_relaxed);
      block->until.store(copy.until, std::memory_order_relaxed);
      if (copy.streams != 0) {
        block->word.fetch_or(word::in_flight);
      }
    } else {
      device_bytes_ -= block->bytes;
      resident_bytes_.fetch_sub(block->bytes, std::memory_order_relaxed);
      ++counts_.store_failures;
      if (status.ok()) {
        status = refused("map pages", block->bytes, refusal);
      }
    }
  }
  if (arrived) {
    away_bytes_ -= block->bytes;
    counts_.in_bytes += block->bytes;
    ++counts_.in_blocks;
    block->returned = Thread::is_protected(*block);
    if (write) {
      copies_.release(block);
    } else {
      block->word.fetch_or(word::clean);
    }
    if (reach == Reach::cached) {
      block->word.fetch_or(word::prefetched);
      counts_.prefetch_bytes += block->bytes;
      ++counts_.prefetch_blocks;
    }
    blocks_.add_present(block);
    block->change_state(State::arriving, State::resident);
  } else {
    block->change_state(State::arriving, State::away);
  }
  return status;
}

// Pages a few blocks out although the limit does not ask for it.
void Pager::page_out_some(Lock* lock) {
  Status status;
  for (int count = 0; status.ok() && count < pager_some_blocks; ++count) {
    Block* victim = next_victim(page_bytes_, Cause::other);
    if (victim == nullptr) {
      break;
    }
    status = page_out(lock, victim, false);
  }
}

// The block is resident and clean, and will be written: its copy is out of date from now on.
Status Pager::make_writable(Block* block) {
  if (!backend_->protect(block->address, block->bytes, Access::read_write)) {
    return refused("make pages writable", block->bytes, Refusal(*backend_));
  }
  copies_.release(block);
  block->word.fetch_and(~word::clean);
  return {};
}

Status Pager::reclaim(std::uint64_t bytes, std::uint64_t* reclaimed) {
  Lock lock(lock_);
  *reclaimed = 0;
  while (trim_cache(UINT64_MAX, Pages::to_system)) {
  }
  release_faulted();
  Status status;
  while (status.ok() && *reclaimed < bytes) {
    Block* block = next_victim(bytes - *reclaimed, Cause::other);
    if (block == nullptr) {
      break;
    }
    status = page_out(&lock, block, false);
    if (block->state() == State::away) {
      *reclaimed += block->bytes;
      counts_.reclaimed_bytes += block->bytes;
    }
  }
  if (!asynchronous_) {
    backend_->trim(UINT64_MAX);
  }
  return status;
}

Status Pager::reclaim_for_others(std::uint64_t bytes) {
  Lock lock(lock_);
  while (trim_cache(UINT64_MAX, Pages::to_system)) {
  }
  std::uint64_t reclaimed = backend_->trim(UINT64_MAX);
  Status status;
  while (status.ok() && !unlimited_ && reclaimed < bytes) {
    Block* victim = next_victim(bytes - reclaimed, Cause::shortage);
    if (victim == nullptr) {
      break;
    }
    status = page_out(&lock, victim, false);
    reclaimed += backend_->trim(UINT64_MAX);
  }
  return status;
}

void Pager::trim_store() {
  std::vector<std::unique_ptr<Segment>> unused;  // destroyed after the lock
  Lock lock(lock_);
  unused = copies_.take_unused();
}

Status Pager::restore_all() {
  Lock lock(lock_);
  wait_for_share(&lock, away_bytes_, false);
  Status fits = check_ram(away_bytes_);
  if (!fits.ok()) {
    return fits;
  }
  unlimited_ = true;
  over_limit_.store(false, std::memory_order_relaxed);
  for (BlockId id = 0; id < end(); ++id) {
    Block* block = blocks_.at(id);
    Status status;
    for (bool again = true; again && status.ok();) {  // where the lock was let go
      moved_.wait(&lock, [block] { return block->state() != State::leaving && block->state() != State::arriving; });
      const std::uint64_t found = block->word.load(std::memory_order_acquire);
      again = false;
      if (word::state(found) == State::away) {
        status = page_in(&lock, block, true, Reach::demand);
        again = true;
      } else if (word::state(found) == State::resident && (found & word::in_flight) != 0) {
        status = order(&lock, block, host_stream);  // no stream will be ordered behind a copy,
        again = true;
      } else if (word::state(found) == State::resident && (found & word::clean) != 0) {
        status = make_writable(block);  // and no write announced
      }
    }
    if (!status.ok()) {
      unlimited_ = false;
      return status;
    }
  }
  return {};
}

Status Pager::device_failed(const char* what) const { return device_failed(what, backend_->failure()); }

Status Pager::device_failed(const char* what, const std::string& reason) {
  return Status(LMS_DEVICE_FAILED, std::string("the device failed to ") + what + ": " + reason);
}

// With the lock.
Status Pager::refused(const char* what, std::uint64_t bytes, const Refusal& refusal) const {
  if (!refusal.lacked_memory) {
    return device_failed(what, refusal.reason);
  }
  if (!asynchronous_) {
    return Status(LMS_OUT_OF_MEMORY, std::string("the system refuses to ") + what + " (" + std::to_string(bytes) +
                                         " bytes): " + refusal.reason);
  }
  return Status(LMS_OUT_OF_MEMORY, std::string("the device refuses to ") + what + " (" + report::request(bytes) +
                                       "): " + refusal.reason + ", with " +
                                       report::whereabouts(blocks_, resident_bytes_.load(std::memory_order_relaxed),
                                                           allocated_bytes_.load(std::memory_order_relaxed)) +
                                       "; make the largest operation smaller, or let others use less of the device");
}

Status Pager::out_of_memory(std::uint64_t bytes) const {
  return Status(LMS_OUT_OF_MEMORY,
                report::out_of_memory(blocks_, bytes, limit(), resident_bytes_.load(std::memory_order_relaxed),
                                      allocated_bytes_.load(std::memory_order_relaxed)) +
                    (limit_kind_ == LMS_LIMIT_AUTO
                         ? "; that limit is what is left now of " + RamView(root_).tightest(device_bytes_)
                         : std::string()) +
                    (sharer_ == nullptr ? std::string()
                                        : "; that limit is this process's share, now, of a budget of " +
                                              std::to_string(sharer_->budget()) + " bytes that " +
                                              std::to_string(sharer_->others() + 1) + " processes have together"));
}

// ------------------------------------------------------------------------------------------------ faults

bool Pager::serve_fault(const void* address) {
  static thread_local const void* last_spurious = nullptr;
  static thread_local int spurious = 0;
  Block* block = backend_->serves_faults() ? arena_->find(address) : nullptr;
  if (block == nullptr) {
    return false;
  }
  try {
    Lock lock(lock_);
    Status status;
    Use use = Use::read;
    while (true) {
      const std::uint64_t found = block->word.load(std::memory_order_acquire);
      const State state = word::state(found);
      if (state == State::unused) {
        return false;
      }
      if (state == State::leaving || state == State::arriving) {
        moved_.wait(&lock);
      } else if (state == State::away) {
        const PagerStall stall(&counts_.stall_ns);
        ++counts_.faults;
        clock_.fetch_add(1, std::memory_order_relaxed);
        faulted_.hold(block, clock_.load(std::memory_order_relaxed));
        status = page_in(&lock, block, false, Reach::unlimited);
        break;
      } else if ((found & word::clean) != 0) {
        ++counts_.faults;
        status = make_writable(block);  // a read would not have faulted
        use = Use::write;
        break;
      } else {
        // Another thread brought it in since; or this is no access that pages could satisfy.
        spurious = last_spurious == address ? spurious + 1 : 0;
        last_spurious = address;
        return spurious < pager_most_spurious_faults;
      }
    }
    lock.unlock();
    if (!status.ok()) {
      const std::string text = "lms: an access to a block that is away cannot be served: " + status.message + "\n";
      return write(STDERR_FILENO, text.data(), text.size()) < 0;  // always false: the handler before gets the fault
    }
    touch(block);
    note(block, use);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::size_t Pager::pin_for_call(const void* address, bool write, Pin* out) {
  // Like an access, a call has to be served: what a strict limit does not allow is brought in as for a fault.
  if (!pin(address, write, out).ok() && (!serve_fault(address) || !pin(address, write, out).ok())) {
    return 0;
  }
  return out->block == nullptr
             ? 0
             : static_cast<std::size_t>(out->block->address + out->block->bytes - static_cast<const char*>(address));
}

// Releases the pins of all blocks that were faulted in, but for those of operations that still run.
bool Pager::release_faulted() {
  const bool ended = faulted_.release_ended(clock_.load(std::memory_order_relaxed));
  return faulted_.release_others() || ended;
}

// ------------------------------------------------------------------------------------------------ looking ahead

void Pager::note_slow(Block* block, Use use) {
  const unsigned observers = observers_.load(std::memory_order_relaxed);
  const Event event{block->id, use, block->asked.load(std::memory_order_relaxed)};
  if ((observers & to_trace) != 0) {
    if (Trace* trace = trace_.load(std::memory_order_acquire)) {
      trace->use(event, Thread::current().index());
    }
  }
  if ((observers & to_policy) != 0 && log_.append(event) >= drain_at) {
    Lock lock(lock_, std::try_to_lock);
    if (lock.owns_lock()) {
      drain_events();
      look_ahead();
    }
  }
}

// True when there were any.
bool Pager::drain_events() {
  log_.drain(&drained_);
  for (const Event& event : drained_) {
    policy_->note(event);
  }
  const bool some = !drained_.empty();
  drained_.clear();
  return some;
}

void Pager::look_ahead() {
  wake(&in_worker_);
  wake(&out_worker_);
}

// Wakes a thread when the policy has something for the worker, and starts one if all are busy.
void Pager::wake(Worker* worker) {
  if (stopping_ || unlimited_ || (this->*worker->choose)() == no_block) {
    return;
  }
  // Without a thread everything moves on demand.
  if (worker->idle == 0 && worker->threads < copies_.store().concurrency() &&
      start_in_background([this, worker] { work(worker); })) {
    ++worker->threads;
  } else {
    worker->work.notify_one();
  }
}

void Pager::work(Worker* worker) {
  Lock lock(lock_);
  while (!stopping_) {
    const bool news = drain_events();
    const BlockId chosen = unlimited_ ? no_block : (this->*worker->choose)();
    if (chosen != no_block && worker->threads > 1) {
      worker->work.notify_one();  // while this block is copied another may be
    }
    const bool moved = chosen != no_block && (this->*worker->move)(&lock, blocks_.at(chosen));
    if (news || moved) {
      wake(worker == &in_worker_ ? &out_worker_ : &in_worker_);
    }
    if (!moved && !stopping_) {  // which it may be since the block was chosen
      ++worker->idle;
      worker->work.wait(&lock);
      --worker->idle;
    }
  }
  --worker->threads;
  moved_.notify_all();
}

BlockId Pager::next_to_leave() { return policy_->early_victim(*this); }

// None while there is no room for it: a thread would be woken in vain.
BlockId Pager::next_to_arrive() {
  const BlockId id = policy_->prefetch(*this);
  const bool has_room = shares_ || id == no_block || device_bytes_ + blocks_.at(id)->bytes <= limit() + cache_.bytes();
  return has_room ? id : no_block;
}

bool Pager::prefetch(Lock* lock, Block* block) {
  return state(block->id).away && page_in(lock, block, false, Reach::cached).ok();
}

// Whether the block is to be written together with others: a write to a disk costs something besides its bytes.
bool Pager::is_gathered(const Block& block) {
  return !asynchronous_ && block.bytes <= copies_.store().gathers() / 2 && !is_clean(block);
}

bool Pager::page_out_early(Lock* lock, Block* block) {
  if (!state(block->id).evictable || !begin_leaving(block, false)) {
    return false;
  }
  Batch blocks(block);
  while (is_gathered(*block) && blocks.size() < Batch::most) {
    const BlockId next = policy_->early_victim(*this);
    Block* other = next == no_block ? nullptr : blocks_.at(next);
    if (other == nullptr || !is_gathered(*other) || blocks.bytes() + other->bytes > copies_.store().gathers() ||
        !begin_leaving(other, false)) {
      break;
    }
    blocks.add(other);
  }
  const Status status = asynchronous_ ? page_out_by_device(lock, block) : page_out_by_host(lock, blocks);
  for (const Block* each : blocks) {
    counts_.early_out_bytes += each->state() == State::away ? each->bytes : 0;
  }
  if (status.ok() && asynchronous_) {
    grow_store(lock, block->bytes);  // for the next one, before it has to wait
  }
  return status.ok();
}

// ------------------------------------------------------------------------------------------------ reports

Statistics Pager::statistics() {
  Lock lock(lock_);
  drain_events();
  Statistics result = counts_;
  result.allocated_bytes = allocated_bytes_.load(std::memory_order_relaxed);
  result.allocated_bytes_peak = allocated_bytes_peak_.load(std::memory_order_relaxed);
  const std::uint64_t puts = cache_.puts();  // before the takes, of which there are more: never negative
  result.allocated_blocks = counts_.mapped_allocations + cache_.takes() - puts - freed_uncached_;
  result.resident_bytes = resident_bytes_.load(std::memory_order_relaxed);
  result.resident_bytes_peak = resident_bytes_peak_.load(std::memory_order_relaxed);
  result.cached_bytes = cache_.bytes();
  result.device_bytes = device_bytes_;
  result.kept_bytes = backend_->kept_bytes();
  result.away_bytes = away_bytes_;
  result.limit = limit();
  result.cached_allocations = cache_.takes();
  result.foreseen_uses = policy_->foreseen();
  result.departures = policy_->departures();
  result.store_bytes = copies_.bytes();
  result.sharers = sharer_ != nullptr ? sharer_->others() + 1 : 0;
  report::count_states(blocks_, &result);
  return result;
}

std::vector<ResidentRange> Pager::resident_ranges() {
  const Lock lock(lock_);
  return report::resident_ranges(blocks_);
}

void Pager::reset_peaks() {
  const Lock lock(lock_);
  most_used_ = std::max(most_used_, allocated_bytes_peak_.load(std::memory_order_relaxed));
  allocated_bytes_peak_.store(allocated_bytes_.load());
  resident_bytes_peak_.store(resident_bytes_.load());
  counts_.device_bytes_peak = device_bytes_;
  counts_.away_bytes_peak = away_bytes_;
  counts_.store_bytes_peak = copies_.bytes();
  counts_.over_limit_bytes_peak = 0;
  over_limit_operation_.clear();
}

std::string Pager::over_limit_operation() {
  const Lock lock(lock_);
  return over_limit_operation_;
}

Status Pager::start_trace(const std::string& path) {
  const Lock lock(lock_);
  if (trace_.load(std::memory_order_relaxed) != nullptr) {
    return Status(LMS_UNSUPPORTED, "a trace is being recorded; stop that one first");
  }
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) {
    return Status(LMS_INVALID_ARGUMENT, "the trace '" + path + "' cannot be written: " + std::strerror(errno));
  }
  // Kept when it is stopped: a thread may be about to write to it.
  traces_.push_back(std::make_unique<Trace>(file));
  Trace* trace = traces_.back().get();
  for (BlockId id = 0; id < end(); ++id) {
    const Block& block = *blocks_.at(id);
    if (block.state() != State::unused) {
      trace->use(Event{id, Use::allocate, block.asked.load(std::memory_order_relaxed)}, Thread::current().index());
    }
  }
  trace_.store(trace, std::memory_order_release);
  observers_.fetch_or(to_trace, std::memory_order_relaxed);
  return {};
}

Status Pager::stop_trace() {
  const Lock lock(lock_);
  Trace* trace = trace_.exchange(nullptr);
  observers_.fetch_and(~to_trace, std::memory_order_relaxed);
  if (trace == nullptr) {
    return Status(LMS_UNSUPPORTED, "no trace is being recorded");
  }
  if (!trace->close()) {
    return Status(LMS_STORE_FAILED, "the trace is incomplete: " + std::string(std::strerror(errno)));
  }
  return {};
}

// ------------------------------------------------------------------------------------------------ fork

void Pager::before_fork() {
  Lock lock(lock_);
  moved_.wait(&lock, [this] { return in_transit_ == 0; });
  lock.release();  // held across the fork, so that the child finds everything whole
  cache_.lock();
  log_.lock();
  page_.before_fork();
  if (Trace* trace = trace_.load(std::memory_order_relaxed)) {
    trace->before_fork();
  }
}

void Pager::after_fork(bool child) {
  if (child) {
    page_.after_fork_in_child();
  }
  Trace* trace = trace_.load(std::memory_order_relaxed);
  copies_.freeze();
  if (child) {
    // The threads that waited on these, and the workers, are not in the child; nor may it write the parent's trace.
    moved_.forget_waiters();
    for (Worker* worker : {&in_worker_, &out_worker_}) {
      worker->work.forget_waiters();
      worker->threads = worker->idle = 0;
    }
    if (sharer_ != nullptr) {
      sharer_->forget();  // the parent's
      sharer_.reset();
      ++serving_;
      shares_ = !asynchronous_;
      rejoin_at_ = 0;
      inherited_bytes_ = device_bytes_;
      limit_without_share_ = limit();
      giving_limit_ = UINT64_MAX;
      store_limit(std::min(limit(), device_bytes_));
      over_limit_.store(shares_, std::memory_order_relaxed);  // so that it joins when it uses a block
    } else if (limit_kind_ == LMS_LIMIT_AUTO) {
      inherited_bytes_ = device_bytes_;
    }
    watches_ram_ = false;
    ram_looked_ns_ = 0;
    trace_.store(nullptr, std::memory_order_relaxed);
    observers_.fetch_and(~to_trace, std::memory_order_relaxed);
    backend_->after_fork_in_child();
  }
  if (trace != nullptr) {
    trace->after_fork();
  }
  log_.unlock();
  cache_.unlock();
  lock_.unlock();
}

}  // namespace lms

// The pager: keeps the blocks of one device within its budget by moving their pages between device and host store.
//
// Hot paths (pin, unpin, allocate from the cache, free into it) take no pager-wide lock and are inline or short; what
// has to move pages is named _slow or sits behind the lock. Thread-safe. lms.h documents the operations.
#ifndef LMS_PAGER_H
#define LMS_PAGER_H

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api.h"
#include "arena.h"
#include "backend/backend.h"
#include "block.h"
#include "block_table.h"
#include "cache.h"
#include "condition.h"
#include "event_log.h"
#include "faulted_pins.h"
#include "host_copies.h"
#include "limit_kind.h"
#include "pin.h"
#include "policy/policies.h"
#include "policy/policy.h"
#include "ram.h"
#include "registry.h"
#include "report.h"
#include "share/sharer.h"
#include "statistics.h"
#include "statistics_page.h"
#include "status.h"
#include "thread.h"
#include "trace.h"

namespace lms {

struct Settings {
  std::uint64_t limit = 0;              // bytes
  FileStoreOptions store;
  std::string policy = default_policy;
  bool strict = false;                  // passing the limit is an error
  std::uint64_t address_space = 0;      // bytes to reserve; 0: as much as there is
  lms_limit_kind limit_kind = LMS_LIMIT_MANAGED;
  bool shared = false;  // the limit is a budget of several processes
  std::string share;  // on what terms; share_terms.h
  std::string root;  // for LMS_LIMIT_AUTO: a folder with other /proc and /sys, for tests
};

// The glue of another library may use it, so its symbols are exported.
class LMS_API Pager final : private BlockSource, private Registered {
 public:
  // A pager on the host backend, or on any, never destroyed: blocks and threads may outlive everything else. Null on
  // failure.
  static Pager* make(const Settings& settings, Status* status);
  static Pager* make(std::unique_ptr<Backend> backend, const Settings& settings, Status* status);

  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  // The members' alignment is beyond what C++14's new provides. Not inlined: GCC would take the pair for a mismatch.
  static void* operator new(std::size_t bytes);
  __attribute__((noinline)) static void operator delete(void* pager);

  Status configure(const Settings& settings);
  Status set_limit(std::uint64_t limit);
  std::uint64_t limit() const override { return limit_.load(std::memory_order_relaxed); }
  // Lasts, whatever the limit and the policy are then.
  void set_distances(const Distances& distances);
  void shutdown();

  Backend& backend() { return *backend_; }

  // Trims what else holds memory of the device (the framework's own cache) when the device has none left; true when
  // that gave some back. Called with the pager's lock held: it must not call the pager.
  using TrimOthers = bool (*)(void* context);
  void set_trim_others(TrimOthers trim, void* context);

  // Tells the bytes of the device that the framework's own allocator has reserved, which LMS_LIMIT_TOTAL bounds too.
  // Called with the pager's lock held, when a request may need pages: it must not call the pager.
  using CountOthers = std::uint64_t (*)(void* context);
  void set_count_others(CountOthers count, void* context);

  // `user` is the stream of the backend whose work uses the block first.
  Status allocate(std::uint64_t bytes, void** out, StreamId user = host_stream);
  void free(void* address);
  bool owns(const void* address) const;
  static Pager* owner(const void* address);  // null when it is no pager's

  // The whole range of the live block that contains the address; false when there is none.
  bool range(const void* address, void** begin, std::uint64_t* bytes) const;

  // The block is complete for what `user` does from now on.
  Status pin(const void* address, bool write, Pin* out, StreamId user = host_stream) {
    Block* block = arena_->find(address);
    if (block == nullptr) {
      *out = Pin{};
      return {};
    }
    const std::uint64_t found = block->word.fetch_add(word::pin, std::memory_order_acq_rel);
    if (word::state(found) != State::resident || word::pins(found) >= word::most_pins ||
        (found & (word::prefetched | word::in_flight)) != 0 || (write && (found & word::clean) != 0)) {
      return pin_slow(block, write, out, user);
    }
    touch(block);
    note(block, write ? Use::write : Use::read);
    *out = Pin{block, word::generation(found)};
    return {};
  }

  // `user` is the stream whose work used the block since the pin.
  void unpin(const Pin& pin, StreamId user = any_stream) {
    if (pin.block == nullptr) {
      return;
    }
    add_use(pin.block, user);
    pin.release();
    if (over_limit_.load(std::memory_order_relaxed) && !Thread::current().in_scope()) {
      reclaim_to_limit_slow();
    }
  }

  // Also tells, like unpin, which stream's work used the block.
  void mark_seen(const void* address, StreamId user = any_stream);

  // Work on that stream uses the block until it is freed, at most.
  void record_use(const void* address, StreamId user);

  // From now on the block keeps its pages for as long as it lives, for work that the pager never hears of.
  Status hold(const void* address);

  // `user` is the stream of the operation that ends.
  void begin_scope();
  void end_scope(StreamId user = host_stream);
  // The same in two steps, for one scope around several pagers: Thread::begin_scope() once, then this for each, and
  // Thread::end_scope() once, then this with its result.
  void scope_began();
  void scope_ended(bool outermost, StreamId user);

  // Gives at least `bytes` of memory back to the device, if there is as much that can leave, for others to take.
  Status reclaim_for_others(std::uint64_t bytes);

  // Gives host memory back to the system that has held no contents since the last call. What a program uses again and
  // again stays, although some call this in every iteration.
  void trim_store();

  Status reclaim(std::uint64_t bytes, std::uint64_t* reclaimed);
  Status restore_all();

  std::vector<ResidentRange> resident_ranges();
  Statistics statistics();
  void reset_peaks();
  // What ran when the limit was passed by most since then (report.h); empty where it never was, or nobody knows.
  std::string over_limit_operation();

  Status start_trace(const std::string& path);
  Status stop_trace();

 private:
  using Lock = std::unique_lock<std::mutex>;

  // Which blocks may leave for a request.
  enum class Reach : std::uint8_t {  // each reaches further than the one before, or asks for more
    cached,     // only cached pages: for what is ahead of need
    unlimited,  // any block that can leave, then past the limit: for a fault, which must be served
    use,        // any block that can leave, then past the limit, unless strict: for a block that an operation uses
    demand      // the same, but an error where blocks cannot leave because the store fails: for new memory
  };

  // Where a cached block's pages go: back to the system, or, if they are not in anybody's way, to what the backend
  // keeps.
  enum class Pages : std::uint8_t { to_system, for_reuse };

  // Why a block is to leave. Logging uses costs every pin a little, so it begins with the first shortage.
  enum class Cause : std::uint8_t {
    shortage,  // of memory: from now on the policy hears of every use, so that it can plan
    other  // the program asks for it, or mappings are short; memory is not, so no plan has to bring anything back
  };

  // Why the backend refused pages, read right after it did, on the same thread.
  struct Refusal {
    Refusal() = default;
    explicit Refusal(const Backend& backend) : reason(backend.failure()), lacked_memory(backend.lacked_memory()) {}

    std::string reason;
    bool lacked_memory = true;
  };

  Pager(std::unique_ptr<Backend> backend, std::unique_ptr<Arena> arena);

  std::size_t pin_for_call(const void* address, bool write, Pin* pin) override;
  void unpin_after_call(const Pin& pin) override { unpin(pin); }
  bool serve_fault(const void* address) override;
  void before_fork() override;
  void after_fork(bool child) override;

  // The policy's view; the lock is held.
  BlockId end() const override { return blocks_.end(); }
  BlockState state(BlockId id) const override { return blocks_.state(id); }
  const std::vector<BlockId>& present() const override { return blocks_.present(); }
  std::uint64_t occupied() const override { return resident_bytes_.load(std::memory_order_relaxed); }
  double write_cost() const override { return write_cost_; }
  std::uint64_t watermark() const override { return asynchronous_ ? limit() / watermark_part : 0; }

  Status apply(const Settings& settings);
  Block* take_larger(std::uint64_t bytes);
  bool part(Block* block, std::uint64_t bytes);
  bool join_cached();
  bool join(Block* first, Block* second);
  Status allocate_slow(std::uint64_t bytes, StreamId user, Block** out);
  bool mark_is_due(StreamId user);
  Status pin_slow(Block* block, bool write, Pin* out, StreamId user);
  void free_slow(Block* block);
  void reclaim_to_limit_slow();

  // While it lives something is in transit, and a fork waits. Needs the lock when it begins and ends.
  class Transit {
   public:
    explicit Transit(Pager* pager) : pager_(pager) { ++pager_->in_transit_; }
    Transit(const Transit&) = delete;
    Transit& operator=(const Transit&) = delete;
    ~Transit() {
      --pager_->in_transit_;
      pager_->moved_.notify_all();
    }

   private:
    Pager* const pager_;
  };

  // Everything below needs the lock; functions that take it may let it go while they copy. docs/internals.md says what
  // reclaim, trim, page out, write back, drop and release mean.
  Status reclaim_for(Lock* lock, std::uint64_t bytes, Reach reach);
  Status reclaim_to_limit(Lock* lock);
  bool reclaim_after_refusal(Lock* lock);
  bool trim_cache(std::uint64_t bytes, Pages pages);
  void trim_excess(std::uint64_t bytes);
  Block* next_victim(std::uint64_t bytes, Cause cause);
  Status page_out(Lock* lock, Block* block, bool even_protected);
  static bool begin_leaving(Block* block, bool even_protected);
  Status page_out_by_host(Lock* lock, const Batch& blocks);
  Status write_back(Lock* lock, const Batch& blocks);
  Status give_pages_back(Block* block, bool clean, Status written);
  Status page_out_by_device(Lock* lock, Block* block);
  void page_out_some(Lock* lock);
  void count_device(const Block& block);
  void trim_kept();
  std::uint64_t most_cached() const;
  bool unmap_left(const Block& block);
  std::uint64_t kept_bytes() { return asynchronous_ ? 0 : backend_->kept_bytes(); }
  bool allocate_slots(const Batch& blocks);
  void note_store_speed();
  bool move_elsewhere(const Batch& blocks, std::size_t attempt);
  void grow_store(Lock* lock, std::uint64_t bytes);
  void count_away(const Block& block);
  Status page_in(Lock* lock, Block* block, bool write, Reach reach);
  Status order(Lock* lock, Block* block, StreamId user);
  Status make_writable(Block* block);
  void release_ranges();
  Status refused(const char* what, std::uint64_t bytes, const Refusal& refusal) const;
  Status device_failed(const char* what) const;
  static Status device_failed(const char* what, const std::string& reason);
  Status check_limit(std::uint64_t limit) const;
  void take_limit(std::uint64_t limit, lms_limit_kind kind);
  void leave_room_for_others();
  void store_limit(std::uint64_t limit) {
    limit_.store(limit, std::memory_order_relaxed);
    counts_.limit = limit;
  }
  Status out_of_memory(std::uint64_t bytes) const;
  bool release_faulted();

  // pager_ram.cc: the limit that follows what there is of RAM.
  Status check_auto(const Settings& settings);
  void begin_auto_limit();
  void follow_ram();
  void look_at_ram();
  void watch_ram();
  Status check_ram(std::uint64_t bytes);
  std::vector<const char*> sample_pages(std::uint64_t most, std::uint64_t* bytes) const;

  // pager_share.cc: the budget that other processes have a part of.
  Status share(const Settings& settings);
  Status join_sharers(const Settings& settings, const std::string& directory);
  void leave_sharers();
  void rejoin_sharers();
  void follow_share();
  bool is_sharing();
  bool take_share(std::uint64_t bytes);
  bool wait_for_share(Lock* lock, std::uint64_t bytes, bool has_alternative);
  void pass_share(std::uint64_t bytes);
  void share_refused();
  void serve_sharers(const Bell& bell, std::uint64_t serving);
  void keep_to_share(Lock* lock);
  void give_to_sharers(Lock* lock);
  void note_allocated();
  void note_activity();
  std::uint64_t cold_bytes() const;
  std::uint64_t bytes_in_common();
  bool is_working();
  Standing standing();
  bool drain_events();

  // Threads that move what the policy chooses ahead of need: at least one for each direction, so that copies in and out
  // run beside each other, and what comes back does not wait until the device is done with what leaves.
  struct Worker {
    BlockId (Pager::*choose)();
    bool (Pager::*move)(Lock*, Block*);  // false when it did not
    Condition work;  // there is something to look at
    unsigned threads;
    unsigned idle;  // of them
  };
  void look_ahead();
  void wake(Worker* worker);
  void work(Worker* worker);
  BlockId next_to_leave();
  BlockId next_to_arrive();
  bool prefetch(Lock* lock, Block* block);
  bool page_out_early(Lock* lock, Block* block);
  bool is_gathered(const Block& block);
  static bool is_clean(const Block& block);

  // Thread-safe. Called while the block is pinned or being freed, before that ends.
  static void raise_to(std::atomic<std::uint64_t>* value, std::uint64_t least) {
    std::uint64_t old = value->load(std::memory_order_relaxed);
    while (old < least && !value->compare_exchange_weak(old, least, std::memory_order_release)) {
    }
  }
  void add_use(Block* block, StreamId user) {
    if (!asynchronous_) {
      return;
    }
    count_unmarked(user, block->bytes, 0);
    const std::uint64_t bit = stream_bit(user);
    if ((block->streams.load(std::memory_order_relaxed) & bit) != bit) {
      block->streams.fetch_or(bit, std::memory_order_release);
    }
    raise_to(&block->until, backend_->now());
  }

  // What the process needs of a shared budget, by what it did lately.
  struct Activity {
    static constexpr std::size_t seconds = 20;

    std::uint64_t clock = 0;  // of the pager, at the last look
    std::uint64_t busy_ns = 0;  // CLOCK_MONOTONIC, when it was last seen to work
    bool idle = false;
    std::uint64_t second_ns = 0;  // when the last second of the following began
    std::array<std::uint64_t, seconds> clocks{};  // of the pager, at the last seconds; oldest at `next`
    std::array<std::uint64_t, seconds> allocated{};  // most bytes in each
    std::size_t next = 0;
    std::uint64_t cold = 0;  // bytes not used since the oldest
  };

  // What a stream was given since it was marked. An estimate: two threads may overwrite each other's.
  struct Unmarked {
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint32_t> operations{0};
  };
  void count_unmarked(StreamId user, std::uint64_t bytes, std::uint32_t operations) {
    if (user > any_stream) {
      return;
    }
    Unmarked& unmarked = unmarked_[user];
    unmarked.bytes.store(unmarked.bytes.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
    unmarked.operations.store(unmarked.operations.load(std::memory_order_relaxed) + operations,
                              std::memory_order_relaxed);
  }

  void start_block(Block* block, StreamId user);
  void touch(Block* block) {
    // Blocks that one operation uses may share a stamp: the clock ticks once an operation.
    block->last_use.store(Thread::current().in_scope() ? clock_.load(std::memory_order_relaxed)
                                                       : clock_.fetch_add(1, std::memory_order_relaxed) + 1,
                          std::memory_order_relaxed);
    if (!block->seen.load(std::memory_order_relaxed)) {
      block->seen.store(true, std::memory_order_relaxed);
    }
  }

  static constexpr unsigned to_policy = 1;
  static constexpr unsigned to_trace = 2;
  void note(Block* block, Use use) {
    if (observers_.load(std::memory_order_relaxed) != 0) {
      note_slow(block, use);
    }
  }
  void note_slow(Block* block, Use use);

  // On a device copies in and out run beside each other. docs/predictions.md: with less room they wait for one another,
  // with more there is more to copy.
  static constexpr std::uint64_t watermark_part = 32;
  // A mark costs several calls of the driver; without one, what waits for a use waits for a little more than that. So
  // it is left when so many operations have ended without, or they used this part of the limit.
  static constexpr std::uint32_t mark_operations = 16;
  static constexpr std::uint64_t mark_part = 64;
  static constexpr std::size_t drain_at = 16;  // events that wait before a thread hands them to the policy

  const std::unique_ptr<Backend> backend_;
  const std::unique_ptr<Arena> arena_;
  const std::uint64_t page_bytes_;
  const bool asynchronous_;
  Cache cache_;
  EventLog log_;

  // Read on hot paths, hence apart from what changes often.
  std::atomic<unsigned> observers_{0};  // to_policy | to_trace
  std::atomic<std::uint64_t> limit_{0};
  std::atomic<bool> over_limit_{false};  // more is mapped than the limit allows: leave as soon as something can
  std::atomic<bool> caching_{true};
  std::atomic<Trace*> trace_{nullptr};

  std::array<Unmarked, any_stream + 1> unmarked_;  // by stream

  alignas(64) std::atomic<std::uint64_t> clock_{0};

  // Counters are where other processes can read them. What threads change without the lock:
  StatisticsPage page_;
  std::atomic<std::uint64_t>& allocated_bytes_{page_.values().allocated_bytes};
  std::atomic<std::uint64_t>& allocated_bytes_peak_{page_.values().allocated_bytes_peak};
  std::atomic<std::uint64_t>& resident_bytes_{page_.values().resident_bytes};
  std::atomic<std::uint64_t>& resident_bytes_peak_{page_.values().resident_bytes_peak};

  // Guarded by lock_.
  std::mutex lock_;
  Condition moved_;  // a block left or arrived
  Worker in_worker_{&Pager::next_to_arrive, &Pager::prefetch, {}, 0, 0};
  Worker out_worker_{&Pager::next_to_leave, &Pager::page_out_early, {}, 0, 0};
  bool stopping_ = false;
  bool unlimited_ = false;
  lms_limit_kind limit_kind_ = LMS_LIMIT_MANAGED;
  std::uint64_t total_limit_ = 0;  // of LMS_LIMIT_TOTAL, bytes
  bool strict_ = false;
  std::uint32_t in_transit_ = 0;  // blocks leaving, arriving or given up, and a store that grows: what a fork waits for
  std::uint32_t copying_ = 0;  // those whose copy or call is under way, and will end without anybody's help
  Statistics& counts_{page_.values().counts};  // the members that count; most states are computed when asked for
  std::uint64_t& device_bytes_{counts_.device_bytes};  // blocks with pages or about to get them, cached ones included
  std::uint64_t& away_bytes_{counts_.away_bytes};  // blocks without
  BlockTable blocks_;
  HostCopies copies_;
  double write_cost_ = 1;  // BlockSource::write_cost
  bool growing_ = false;  // a thread enlarges the store, without the lock
  FaultedPins faulted_;
  std::deque<Block*> unsettled_;  // freed ranges whose addresses may not be mapped again yet
  TrimOthers trim_others_ = nullptr;
  void* trim_others_context_ = nullptr;
  CountOthers count_others_ = nullptr;
  void* count_others_context_ = nullptr;
  std::unique_ptr<Policy> policy_;
  Distances distances_;
  std::vector<Event> drained_;
  std::vector<std::unique_ptr<Trace>> traces_;
  // Bytes that were allocated at once, at most: unlike the statistics' peak it does not start anew.
  std::uint64_t most_used_ = 0;
  std::uint64_t freed_uncached_ = 0;  // blocks that were freed without going to the cache
  std::string over_limit_operation_;  // what ran when counts_.over_limit_bytes_peak was counted
  bool shares_ = false;  // else the limit is this process's own
  std::unique_ptr<Sharer> sharer_;  // null while it could not join again
  Settings shared_;  // with which it joined
  std::string meeting_point_;
  std::uint64_t rejoin_at_ = 0;  // CLOCK_MONOTONIC ns, not before
  Activity activity_;
  std::uint64_t serving_ = 0;  // which thread serves the other sharers
  std::uint64_t limit_without_share_ = 0;
  std::uint64_t inherited_bytes_ = 0;  // of device_bytes_, from the parent, in whose share they are
  std::uint64_t own_limit_ = UINT64_MAX;  // that the program has set below its share
  std::uint64_t giving_limit_ = UINT64_MAX;  // until others have got what they have a claim to
  std::string root_;
  RamLimit ram_limit_;
  bool watches_ram_ = false;  // a thread does
  std::uint64_t ram_looked_ns_ = 0;  // CLOCK_MONOTONIC
  std::uint64_t common_looked_ns_ = 0;  // the same, for inherited_bytes_
  std::uint64_t no_share_until_ = 0;  // CLOCK_MONOTONIC ns: the last look found nothing to take
};

}  // namespace lms
#endif  // LMS_PAGER_H

// The pager: keeps the blocks of one device within its budget by moving their pages between device and host store.
//
// Hot paths (pin, unpin, allocate from the cache, free into it) take no pager-wide lock and are inline or short; what
// has to move pages is named _slow or sits behind the lock. Thread-safe. lms.h documents the operations.
#ifndef LMS_PAGER_H
#define LMS_PAGER_H

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
#include "backend.h"
#include "block.h"
#include "cache.h"
#include "condition.h"
#include "event_log.h"
#include "policy.h"
#include "statistics.h"
#include "status.h"
#include "store.h"
#include "thread.h"
#include "trace.h"

namespace lms {

struct Settings {
  std::uint64_t limit = 0;              // bytes
  std::string store;                    // a directory; empty for host memory
  std::string policy = "iteration";     // a name that make_policy knows
  bool strict = false;                  // passing the limit is an error
  std::uint64_t address_space = 0;      // bytes to reserve; 0: as much as there is
};

// A pin on one generation of a block; empty when block is null.
struct Pin {
  Block* block = nullptr;
  std::uint64_t generation = 0;
};

// The glue of another library may use it, so its symbols are exported.
class LMS_API Pager final : private BlockSource {
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
  void shutdown();

  Backend& backend() { return *backend_; }

  // Asks whoever else holds memory of the device (the framework's own cache) to give some back when the device has none
  // left; true when he did. Called with the pager's lock held: it must not call the pager.
  using Relief = bool (*)(void* context);
  void set_relief(Relief relief, void* context);

  // `user` is the stream of the backend whose work uses the block first.
  Status allocate(std::uint64_t bytes, void** out, StreamId user = host_stream);
  void free(void* address);
  bool owns(const void* address) const;

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
    drop_pin(pin);
    if (over_limit_.load(std::memory_order_relaxed) && !Thread::current().in_scope()) {
      return_to_limit();
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
  Status release(std::uint64_t bytes);

  Status reclaim(std::uint64_t bytes, std::uint64_t* reclaimed);
  Status restore_all();

  // The live blocks that have device pages.
  struct ResidentRange {
    char* address;
    std::uint64_t bytes;
  };
  std::vector<ResidentRange> resident_ranges();
  Statistics statistics();
  void reset_peaks();

  Status start_trace(const std::string& path);
  Status stop_trace();

  // Called from the fault handler: true when the access at `address` may be tried again.
  bool serve_fault(const void* address);

  void before_fork();
  void after_fork(bool child);

 private:
  using Lock = std::unique_lock<std::mutex>;

  // Which blocks may leave to make room.
  enum class Reach : std::uint8_t {
    cached,     // only cached pages: for what is ahead of need
    unlimited,  // any block that can leave, then past the limit: for a fault, which must be served
    demand      // any block that can leave, then past the limit, unless strict
  };

  Pager(std::unique_ptr<Backend> backend, std::unique_ptr<Arena> arena);

  // The policy's view; the lock is held.
  BlockId end() const override { return static_cast<BlockId>(block_count_); }
  BlockState state(BlockId id) const override;
  std::uint64_t occupied() const override { return resident_bytes_.load(std::memory_order_relaxed); }

  Status apply(const Settings& settings);
  Status allocate_slow(std::uint64_t bytes, StreamId user, Block** out);
  Status pin_slow(Block* block, bool write, Pin* out, StreamId user);
  void free_slow(Block* block);
  // Here, since an exported function that is not inline is called through the linkage table.
  static void drop_pin(const Pin& pin) {
    std::uint64_t found = pin.block->word.load(std::memory_order_relaxed);
    while (word::generation(found) == pin.generation && word::pins(found) > 0 &&
           !pin.block->word.compare_exchange_weak(found, found - word::pin, std::memory_order_acq_rel)) {
    }
  }
  void return_to_limit();

  // Everything below needs the lock; functions that take it may let it go while they copy.
  Status make_room(Lock* lock, std::uint64_t bytes, Reach reach);
  Status shrink(Lock* lock);
  Status page_out(Lock* lock, Block* block, bool even_protected);
  Status save_and_unmap(Lock* lock, Block* block, bool clean);
  Status evict(Lock* lock, Block* block, bool clean);
  std::uint64_t store_bytes() const;
  bool take_slot(Block* block);
  void count_away(const Block& block);
  Status page_in(Lock* lock, Block* block, bool write, Reach reach, StreamId user);
  bool relieve(Lock* lock);
  Status order(Block* block, StreamId user);
  Status make_writable(Block* block);
  void release_slot(Block* block);
  void release_drained();
  void forget_ranges();
  void page_out_some(Lock* lock);
  Block* oldest_protected() const;
  bool can_leave(const Block& block, bool even_protected) const;
  bool trim_cache(std::uint64_t bytes);
  Status refused(const char* what, std::uint64_t bytes) const;
  Status device_failed(const char* what) const;
  Status check_limit(std::uint64_t limit) const;
  Status out_of_memory(std::uint64_t bytes) const;
  Block* new_block();
  void recycle(Block* block);
  Block* block_at(BlockId id) const { return &chunks_[id / chunk_blocks][id % chunk_blocks]; }
  static void set_state(Block* block, State from, State to);
  void hold_faulted(Block* block);
  bool drop_faulted(std::uint64_t age);
  bool drop_idle_faulted();
  void drain_events();
  void look_ahead();
  void work();

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
    const std::uint64_t bit = stream_bit(user);
    if ((block->streams.load(std::memory_order_relaxed) & bit) != bit) {
      block->streams.fetch_or(bit, std::memory_order_release);
    }
    raise_to(&block->until, backend_->now());
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

  static constexpr std::size_t chunk_blocks = 1024;
  static constexpr std::size_t drain_at = 16;  // events that wait before somebody hands them to the policy

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

  alignas(64) std::atomic<std::uint64_t> clock_{0};
  alignas(64) std::atomic<std::uint64_t> allocated_bytes_{0};
  std::atomic<std::uint64_t> allocated_bytes_peak_{0};
  std::atomic<std::uint64_t> resident_bytes_{0};
  std::atomic<std::uint64_t> resident_bytes_peak_{0};

  // Guarded by lock_.
  std::mutex lock_;
  Condition moved_;  // a block left or arrived
  Condition work_;   // the worker has something to look at
  bool worker_runs_ = false;
  bool stopping_ = false;
  bool unlimited_ = false;
  bool strict_ = false;
  std::uint32_t in_transit_ = 0;      // blocks leaving or arriving
  std::uint32_t copying_ = 0;         // those whose copy is under way, and will end without anybody's help
  std::uint64_t device_bytes_ = 0;    // blocks with pages, cached ones included
  std::uint64_t away_bytes_ = 0;      // blocks without
  std::string store_directory_;
  std::unique_ptr<Store> store_;                // where writebacks go
  std::vector<std::unique_ptr<Store>> retired_;  // earlier ones that still hold contents
  struct Draining {
    Slot slot;
    std::uint64_t bytes;
    Uses copy;
  };
  std::deque<Draining> draining_;   // slots that nobody needs, once the copies that use them are over
  std::deque<Block*> unsettled_;    // freed ranges whose addresses may not be mapped again yet
  Relief relief_ = nullptr;
  void* relief_context_ = nullptr;
  std::unique_ptr<Policy> policy_;
  std::vector<Event> drained_;
  std::vector<Block*> chunks_;  // each of chunk_blocks, at stable addresses
  std::size_t block_count_ = 0;
  std::vector<Block*> free_blocks_;
  struct Faulted {
    Pin pin;
    const Thread* thread;
    std::uint64_t when;  // clock_
  };
  std::deque<Faulted> faulted_;  // recently faulted in, kept for a while so that the access can be completed
  std::vector<std::unique_ptr<Trace>> traces_;
  std::uint64_t freed_uncached_ = 0;  // blocks that were freed without going to the cache
  Statistics counts_;            // the members that count; states are computed when asked for
};

}  // namespace lms
#endif  // LMS_PAGER_H

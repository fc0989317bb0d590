// A block: an address range of whole pages, one per large allocation. Its address never changes; its pages come and go.
#ifndef LMS_BLOCK_H
#define LMS_BLOCK_H

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "event.h"
#include "store.h"

namespace lms {

class Thread;

enum class State : std::uint8_t {
  unused,  // no block lives here: freed, perhaps cached with its pages
  resident,  // has device pages
  leaving,  // being copied to the host store; readable meanwhile
  away,  // no device pages; its contents are in the host store
  arriving  // being copied back
};

// The state that has to change in one step, in one 64-bit word:
//   bits 0..19 pins | 20..23 state | 24 write-protected | 25 prefetched | 26 in flight | 27 held | 32..63 generation
// A pin adds 1 without a lock and then looks at the state it found: while that was `resident`, no one can page the
// block out any more, since leaving starts by exchanging the word of an unpinned block.
namespace word {
constexpr std::uint64_t pin = 1;
constexpr std::uint64_t pin_mask = (1ULL << 20) - 1;
constexpr std::uint64_t most_pins = pin_mask / 2;  // far from the state's bits, however many threads pin at once
constexpr int state_shift = 20;
constexpr std::uint64_t state_mask = 0xfULL << state_shift;
// Clean: the host store has the same contents. Write-protected, so that a write that nothing announced is noticed.
constexpr std::uint64_t clean = 1ULL << 24;
constexpr std::uint64_t prefetched = 1ULL << 25;  // brought in ahead of need, and not used since
// Resident as far as the host is concerned, but the device may not have all of it yet: a stream that did not wait for
// the copy has to.
constexpr std::uint64_t in_flight = 1ULL << 26;
constexpr std::uint64_t held = 1ULL << 27;  // stays for as long as it lives
constexpr int generation_shift = 32;

inline constexpr std::uint64_t of(State state) { return static_cast<std::uint64_t>(state) << state_shift; }
inline constexpr State state(std::uint64_t value) { return static_cast<State>((value & state_mask) >> state_shift); }
inline constexpr std::uint64_t pins(std::uint64_t value) { return value & pin_mask; }
inline constexpr std::uint64_t generation(std::uint64_t value) { return value >> generation_shift; }
}  // namespace word

// Each has cache lines of its own: threads that pin different blocks must not slow each other down.
struct alignas(64) Block {
  std::atomic<std::uint64_t> word{0};
  std::atomic<std::uint64_t> last_use{0};
  std::atomic<bool> seen{false};  // an operation had it as a tensor's storage: it may be paged out
  std::atomic<const Thread*> owner{nullptr};  // the thread and the scope that allocated it; see thread.h
  std::atomic<std::uint64_t> scope{0};
  std::uint64_t inner_scope = 0;  // the innermost; written while nobody else knows the block
  bool returned = false;  // it left and came back while that scope protected it; guarded by the pager's lock
  // The device's uses of the pages (see backend.h): bits are added while the block is pinned, and the stamp only grows.
  std::atomic<std::uint64_t> streams{0};
  std::atomic<std::uint64_t> until{0};
  char* address = nullptr;  // fixed while the block or its cached pages exist
  std::uint64_t bytes = 0;  // whole pages
  std::atomic<std::uint64_t> asked{0};  // of them; the rest nobody has asked for
  StreamId home = host_stream;  // the stream that it was allocated for
  BlockId id = no_block;
  Slot slot;  // host copy; guarded by the pager's lock
  Uses copy;  // the copy to or from the slot that is, or was, under way; guarded by the pager's lock
  std::size_t position = 0;  // among the blocks that have pages; guarded by the pager's lock
  Block* older = nullptr;  // neighbours in a free list; guarded by that list's lock
  Block* newer = nullptr;

  Uses uses() const { return Uses{streams.load(std::memory_order_acquire), until.load(std::memory_order_acquire)}; }
  State state() const { return word::state(word.load(std::memory_order_acquire)); }

  // Not a store: pins may be added meanwhile.
  void change_state(State from, State to) {
    if (to > from) {
      word.fetch_add(word::of(to) - word::of(from), std::memory_order_acq_rel);
    } else {
      word.fetch_sub(word::of(from) - word::of(to), std::memory_order_acq_rel);
    }
  }
};

}  // namespace lms
#endif  // LMS_BLOCK_H

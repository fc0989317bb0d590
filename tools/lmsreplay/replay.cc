// Plays a trace of block events to a policy of the pager, under a limit, and counts what it moves; with a link and a
// clock, also how long the program waits for it. Compiled at run time together with the policies (simulator.py).
//
// Rules, as the pager has them: a block that an operation uses is pinned until that operation ends; one that is
// allocated inside an operation is protected until the outermost operation on its thread ends; freed memory is
// available at once; a clean block leaves without a copy; the policy hears of uses from the first shortage on, and is
// asked for a victim before it hears of the use that needs the room. Every block counts as seen once it is no longer
// protected (a trace does not say which blocks never become a tensor's storage).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "policy/policies.h"
#include "policy/policy.h"

namespace {

using lms::BlockId;
using lms::no_block;

enum Kind : std::uint8_t { kind_begin, kind_end, kind_allocate, kind_read, kind_write, kind_free };

struct Input {
  std::int64_t events;
  const std::uint8_t* kind;
  const std::int32_t* thread;
  const std::int64_t* block;  // trace's numbers
  const std::int64_t* bytes;
  const double* compute;           // seconds of computation after each event
  const std::int64_t* iteration;   // by event, -1 before the first
  const std::int64_t* next_use;  // by event: the next event that reads or writes its block; `events` when there is none
  const std::uint8_t* evict;  // by event: whether a given schedule evicts its block in the gap after it; may be null
  std::uint64_t limit;
  double bandwidth;  // bytes per second in each direction; 0: copies take no time
  std::int32_t ahead;  // whether the policy's early victims and prefetches are carried out
};

struct Output {
  std::int64_t* in;  // bytes by iteration
  std::int64_t* out;
  double* seconds;  // by iteration
  double* stall;  // by iteration: seconds in which the program waited
  std::uint64_t* occupied;  // bytes by event, may be null
  std::uint64_t most;  // bytes occupied, at most
  std::uint64_t over;  // requests that could not be met under the limit
  std::uint64_t foreseen;
  std::uint64_t departures;
  std::uint64_t wrong;  // blocks named by the policy that could not be moved
};

enum class Residency : std::uint8_t { none, resident, leaving, away, arriving };

struct Block {
  std::int64_t number = -1;  // in the trace
  std::uint64_t bytes = 0;
  std::uint64_t last_use = 0;
  std::int64_t last_event = -1;
  Residency residency = Residency::none;
  unsigned pins = 0;
  bool is_protected = false;
  bool clean = false;
  double done = 0;  // when the copy under way ends
};

struct Operation {
  std::vector<std::pair<BlockId, std::int64_t>> pinned;
};

struct Thread {
  std::vector<Operation> operations;
  std::vector<std::pair<BlockId, std::int64_t>> allocated;
};

// A policy that knows the trace: Belady's rule, or a given schedule.
class OfflinePolicy : public lms::Policy {
 public:
  OfflinePolicy(const Input& input, const std::vector<Block>& blocks) : input_(input), blocks_(blocks) {}
  void note(const lms::Event&) override {}
  BlockId victim(const lms::BlockSource& source, std::uint64_t) override {
    BlockId best = no_block;
    std::int64_t best_next = -1;
    bool best_planned = false;
    for (BlockId id = 0; id < source.end(); ++id) {
      if (!source.state(id).evictable) {
        continue;
      }
      const std::int64_t event = blocks_[id].last_event;
      const bool planned = input_.evict != nullptr && event >= 0 && input_.evict[event] != 0;
      const std::int64_t next = event < 0 ? input_.events : input_.next_use[event];
      if (best == no_block || planned > best_planned || (planned == best_planned && next > best_next)) {
        best = id;
        best_next = next;
        best_planned = planned;
      }
    }
    return best;
  }

 private:
  const Input& input_;
  const std::vector<Block>& blocks_;
};

class Replay : public lms::BlockSource {
 public:
  Replay(const Input& input, const char* policy, Output* output) : input_(input), output_(output) {
    policy_ = lms::make_policy(policy);
    if (policy_ == nullptr) {
      policy_.reset(new OfflinePolicy(input_, blocks_));
    }
  }

  BlockId end() const override { return static_cast<BlockId>(blocks_.size()); }
  lms::BlockState state(BlockId id) const override {
    const Block& block = blocks_[id];
    return lms::BlockState{block.bytes, block.last_use, can_leave(block), block.residency == Residency::away,
                           block.clean};
  }
  const std::vector<BlockId>& present() const override { return ids_of_all_; }
  std::uint64_t limit() const override { return input_.limit; }
  std::uint64_t occupied() const override { return occupied_; }

  void run() {
    for (std::int64_t event = 0; event < input_.events; ++event) {
      event_ = event;
      play(event);
      if (output_->occupied != nullptr) {
        output_->occupied[event] = occupied_;
      }
      output_->most = std::max(output_->most, occupied_);
      if (input_.ahead != 0 && input_.kind[event] >= kind_allocate) {
        look_ahead();
      }
      if (input_.bandwidth > 0) {
        pass(input_.compute[event], false);
      }
    }
    output_->foreseen = policy_->foreseen();
    output_->departures = policy_->departures();
  }

 private:
  static bool can_leave(const Block& block) {
    return block.residency == Residency::resident && block.pins == 0 && !block.is_protected;
  }

  void play(std::int64_t event) {
    Thread& thread = thread_of(event);
    switch (input_.kind[event]) {
      case kind_begin:
        thread.operations.emplace_back();
        ++clock_;
        break;
      case kind_end:
        end_operation(&thread);
        break;
      case kind_allocate:
        allocate(event, &thread);
        break;
      case kind_free:
        release(event);
        break;
      default:
        use(event, &thread);
    }
  }

  Thread& thread_of(std::int64_t event) {
    const std::size_t index = static_cast<std::size_t>(input_.thread[event]);
    if (index >= threads_.size()) {
      threads_.resize(index + 1);
    }
    return threads_[index];
  }

  void end_operation(Thread* thread) {
    if (thread->operations.empty()) {
      return;  // it began before the trace
    }
    for (const auto& pinned : thread->operations.back().pinned) {
      if (blocks_[pinned.first].number == pinned.second) {
        --blocks_[pinned.first].pins;
      }
    }
    thread->operations.pop_back();
    if (!thread->operations.empty()) {
      return;
    }
    for (const auto& allocated : thread->allocated) {
      if (blocks_[allocated.first].number == allocated.second) {
        blocks_[allocated.first].is_protected = false;
      }
    }
    thread->allocated.clear();
  }

  void allocate(std::int64_t event, Thread* thread) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(input_.bytes[event]);
    make_room(bytes);
    BlockId id;
    if (free_ids_.empty()) {
      id = end();
      blocks_.emplace_back();
      ids_of_all_.push_back(id);
    } else {
      id = free_ids_.back();
      free_ids_.pop_back();
    }
    Block& block = blocks_[id];
    block = Block();
    block.number = input_.block[event];
    block.bytes = bytes;
    block.residency = Residency::resident;
    block.last_use = clock_;
    block.last_event = event;
    if (static_cast<std::size_t>(block.number) >= ids_.size()) {
      ids_.resize(static_cast<std::size_t>(block.number) + 1);
    }
    ids_[static_cast<std::size_t>(block.number)] = id;
    occupied_ += bytes;
    if (!thread->operations.empty()) {
      block.is_protected = true;
      thread->allocated.emplace_back(id, block.number);
    }
    tell(id, lms::Use::allocate);
  }

  void release(std::int64_t event) {
    const BlockId id = ids_[static_cast<std::size_t>(input_.block[event])];
    Block& block = blocks_[id];
    if (block.residency == Residency::leaving || block.residency == Residency::arriving) {
      settle(id);
    }
    if (block.residency == Residency::resident) {
      occupied_ -= block.bytes;
    }
    block.residency = Residency::none;
    block.number = -1;
    block.pins = 0;
    tell(id, lms::Use::free);
    free_ids_.push_back(id);
  }

  void use(std::int64_t event, Thread* thread) {
    const BlockId id = ids_[static_cast<std::size_t>(input_.block[event])];
    ++blocks_[id].pins;
    const std::int64_t number = blocks_[id].number;
    if (!thread->operations.empty()) {
      thread->operations.back().pinned.emplace_back(id, number);
    }
    if (blocks_[id].residency == Residency::leaving || blocks_[id].residency == Residency::arriving) {
      settle(id);
    }
    if (blocks_[id].residency == Residency::away) {
      make_room(blocks_[id].bytes);
      start_in(id);
      settle(id);
    }
    Block& block = blocks_[id];
    block.last_use = thread->operations.empty() ? ++clock_ : clock_;
    block.last_event = event;
    if (input_.kind[event] == kind_write) {
      block.clean = false;
    }
    if (thread->operations.empty()) {
      --block.pins;
    }
    tell(id, input_.kind[event] == kind_write ? lms::Use::write : lms::Use::read);
  }

  void tell(BlockId id, lms::Use use) {
    if (told_) {
      policy_->note(lms::Event{id, use, blocks_[id].bytes});
    }
  }

  void make_room(std::uint64_t bytes) {
    while (occupied_ + bytes > input_.limit) {
      told_ = true;
      // What is leaving already makes room without another copy.
      if (!leaving_.empty()) {
        settle(leaving_.front());
        continue;
      }
      const BlockId id = policy_->victim(*this, occupied_ + bytes - input_.limit);
      if (id == no_block || id >= end() || !can_leave(blocks_[id])) {
        if (id != no_block) {
          ++output_->wrong;
        }
        ++output_->over;
        return;
      }
      start_out(id);
      if (blocks_[id].residency == Residency::leaving) {
        settle(id);
      }
    }
  }

  void start_out(BlockId id) {
    Block& block = blocks_[id];
    if (block.clean) {
      block.residency = Residency::away;
      occupied_ -= block.bytes;
      return;
    }
    count(output_->out, block.bytes);
    block.residency = Residency::leaving;
    out_free_ = std::max(out_free_, now_) + copy_time(block.bytes);
    block.done = out_free_;
    leaving_.push_back(id);
    if (input_.bandwidth <= 0) {
      finish_out();
    }
  }

  void start_in(BlockId id) {
    Block& block = blocks_[id];
    count(output_->in, block.bytes);
    block.residency = Residency::arriving;
    occupied_ += block.bytes;
    in_free_ = std::max(in_free_, now_) + copy_time(block.bytes);
    block.done = in_free_;
    arriving_.push_back(id);
    if (input_.bandwidth <= 0) {
      finish_in();
    }
  }

  void finish_out() {
    Block& block = blocks_[leaving_.front()];
    leaving_.pop_front();
    block.clean = true;
    block.residency = Residency::away;
    occupied_ -= block.bytes;
  }

  void finish_in() {
    Block& block = blocks_[arriving_.front()];
    arriving_.pop_front();
    block.clean = true;
    block.residency = Residency::resident;
  }

  double copy_time(std::uint64_t bytes) const {
    return input_.bandwidth > 0 ? static_cast<double>(bytes) / input_.bandwidth : 0;
  }

  // The program waits until the copy of this block has ended.
  void settle(BlockId id) {
    while (blocks_[id].residency == Residency::leaving || blocks_[id].residency == Residency::arriving) {
      pass(std::max(0.0, blocks_[id].done - now_), true);
    }
  }

  // Time passes; copies end, and the next ones begin, when they do.
  void pass(double seconds, bool waiting) {
    const double until = now_ + seconds;
    while (!leaving_.empty() || !arriving_.empty()) {
      const double out = leaving_.empty() ? until + 1 : blocks_[leaving_.front()].done;
      const double in = arriving_.empty() ? until + 1 : blocks_[arriving_.front()].done;
      if (std::min(out, in) > until) {
        break;
      }
      advance(std::min(out, in), waiting);
      if (out <= in) {
        finish_out();
      } else {
        finish_in();
      }
      if (input_.ahead != 0) {
        look_ahead();
      }
    }
    advance(until, waiting);
  }

  void advance(double to, bool waiting) {
    if (to <= now_) {
      return;
    }
    const std::int64_t iteration = input_.iteration[event_];
    if (iteration >= 0) {
      output_->seconds[iteration] += to - now_;
      if (waiting) {
        output_->stall[iteration] += to - now_;
      }
    }
    now_ = to;
  }

  // The background worker: at most one copy under way in each direction.
  void look_ahead() {
    if (!told_) {
      return;
    }
    while (arriving_.empty()) {
      const BlockId id = policy_->prefetch(*this);
      if (id == no_block) {
        break;
      }
      if (id >= end() || blocks_[id].residency != Residency::away) {
        ++output_->wrong;
        break;
      }
      if (occupied_ + blocks_[id].bytes > input_.limit) {
        break;
      }
      start_in(id);
    }
    while (leaving_.empty()) {
      const BlockId id = policy_->early_victim(*this);
      if (id == no_block) {
        break;
      }
      if (id >= end() || !can_leave(blocks_[id])) {
        ++output_->wrong;
        break;
      }
      start_out(id);
    }
  }

  void count(std::int64_t* by_iteration, std::uint64_t bytes) {
    const std::int64_t iteration = input_.iteration[event_];
    if (iteration >= 0) {
      by_iteration[iteration] += static_cast<std::int64_t>(bytes);
    }
  }

  const Input& input_;
  Output* output_;
  std::unique_ptr<lms::Policy> policy_;
  std::vector<Block> blocks_;  // by id
  std::vector<BlockId> ids_of_all_;
  std::vector<BlockId> free_ids_;
  std::vector<BlockId> ids_;  // by number in the trace
  std::vector<Thread> threads_;
  std::deque<BlockId> leaving_;  // in order of their ends
  std::deque<BlockId> arriving_;
  std::uint64_t occupied_ = 0;
  std::uint64_t clock_ = 0;
  std::int64_t event_ = 0;
  bool told_ = false;
  double now_ = 0;
  double out_free_ = 0;  // when the link is free
  double in_free_ = 0;
};

}  // namespace

extern "C" const char* lmsreplay_policy_name(std::size_t index) { return lms::policy_name(index); }

extern "C" void lmsreplay_run(const Input* input, const char* policy, Output* output) {
  Replay(*input, policy, output).run();
}

// Drives a policy with a random program and checks what must hold whatever the program does: a victim can leave, a
// prefetched block is away, what left again before it was used is not prefetched for ever, and the least-recently-used
// policy names the block that a plain search over all finds.
//
//   policy_stress POLICY SEED EVENTS PERIOD
//
// PERIOD 0: no pattern. Otherwise the program repeats itself after about PERIOD events, except that now and then events
// are inserted or left out, and that the limit changes.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "policy/policies.h"
#include "policy/policy.h"

namespace {

using lms::BlockId;
using lms::no_block;

struct Block {
  lms::BlockState state{};
  bool alive = false;
  unsigned pins = 0;
  unsigned prefetches = 0;  // since it was used
};

class Program : public lms::BlockSource {
 public:
  Program(const std::string& policy, std::uint64_t seed, std::uint64_t period)
      : policy_(lms::make_policy(policy)), exact_(policy == "lru"), period_(period), random_(seed) {}

  BlockId end() const override { return static_cast<BlockId>(blocks_.size()); }
  lms::BlockState state(BlockId id) const override { return blocks_.at(id).state; }
  const std::vector<BlockId>& present() const override { return ids_; }
  std::uint64_t limit() const override { return limit_; }
  std::uint64_t occupied() const override { return occupied_; }

  void run(std::uint64_t events) {
    std::vector<Action> script = write_script(period_ != 0 ? period_ : 500);
    std::uint64_t done = 0;
    while (done < events) {
      if (period_ == 0) {
        script = write_script(500);
      }
      if (random_() % 8 == 0) {
        limit_ = 4096 * (100 + random_() % 400);
      }
      for (const Action& action : script) {
        ++done;
        if (random_() % 700 == 0) {
          disturb();
        }
        if (random_() % 900 == 0 && action.use != lms::Use::allocate && action.use != lms::Use::free) {
          continue;
        }
        play(action);
        look_ahead();
      }
    }
    std::printf("events %llu victims %llu prefetches %llu foreseen %llu departures %llu\n",
                static_cast<unsigned long long>(done), static_cast<unsigned long long>(victims_),
                static_cast<unsigned long long>(prefetches_), static_cast<unsigned long long>(policy_->foreseen()),
                static_cast<unsigned long long>(policy_->departures()));
  }

 private:
  static void fail(const char* what) {
    std::printf("FAILED: %s\n", what);
    std::exit(1);
  }

  // What an iteration does: slots below kept_slots hold blocks for ever, the others from an allocation to a free.
  struct Action {
    lms::Use use;
    std::size_t slot;
    std::uint64_t bytes;
    bool last_of_operation;
  };
  static constexpr std::size_t kept_slots = 24;

  std::vector<Action> write_script(std::uint64_t length) {
    std::vector<Action> script;
    std::vector<std::size_t> open;
    std::size_t next_slot = kept_slots;
    while (script.size() + open.size() < length) {
      const std::uint64_t choice = random_() % 8;
      const std::uint64_t bytes = 4096 * (1 + random_() % 24);
      const bool last = random_() % 3 == 0;
      if (choice < 2) {
        open.push_back(next_slot);
        script.push_back(Action{lms::Use::allocate, next_slot++, bytes, last});
      } else if (choice == 2 && !open.empty()) {
        const std::size_t index = random_() % open.size();
        script.push_back(Action{lms::Use::free, open[index], 0, last});
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(index));
      } else {
        const bool kept = open.empty() || choice < 5;
        const std::size_t slot = kept ? random_() % kept_slots : open[random_() % open.size()];
        script.push_back(Action{choice == 7 ? lms::Use::write : lms::Use::read, slot, bytes, last});
      }
    }
    for (const std::size_t slot : open) {
      script.push_back(Action{lms::Use::free, slot, 0, true});
    }
    return script;
  }

  void play(const Action& action) {
    if (action.slot >= slots_.size()) {
      slots_.resize(action.slot + 1, no_block);
    }
    BlockId& id = slots_[action.slot];
    if (action.use == lms::Use::free) {
      release(id);
      id = no_block;
    } else if (action.use == lms::Use::allocate || id == no_block) {
      id = allocate(action.bytes);
    } else {
      use(id, action.use == lms::Use::write);
    }
    if (action.last_of_operation) {
      end_operation();
    }
  }

  // Something that is not part of the iteration.
  void disturb() {
    const BlockId id = live_.empty() ? no_block : live_[random_() % live_.size()];
    if (id != no_block && random_() % 2 == 0) {
      if (random_() % 2 == 0) {
        blocks_[id].pins += 1;  // kept for longer than an operation
      }
      use(id, false);
    } else {
      for (const BlockId other : live_) {
        blocks_[other].pins = 0;
      }
      end_operation();
      release(allocate(4096 * (1 + random_() % 24)));
    }
  }

  void refresh() {
    for (const BlockId id : live_) {
      Block& block = blocks_[id];
      block.state.evictable = !block.state.away && block.pins == 0;
    }
  }

  void end_operation() {
    for (const BlockId id : used_) {
      if (blocks_[id].alive && blocks_[id].pins > 0) {
        --blocks_[id].pins;
      }
    }
    used_.clear();
    ++clock_;
    refresh();
  }

  void make_room(std::uint64_t bytes) {
    while (occupied_ + bytes > limit_) {
      told_ = true;
      const BlockId id = policy_->victim(*this, occupied_ + bytes - limit_);
      std::uint64_t oldest = UINT64_MAX;
      for (const BlockId other : live_) {
        if (blocks_[other].state.evictable) {
          oldest = std::min(oldest, blocks_[other].state.last_use);
        }
      }
      if (id == no_block) {
        if (oldest != UINT64_MAX) {
          fail("no victim although a block could leave");
        }
        return;
      }
      if (id >= end() || !blocks_[id].state.evictable) {
        fail("a victim that cannot leave");
      }
      if (exact_ && blocks_[id].state.last_use != oldest) {
        fail("not the least recently used");
      }
      ++victims_;
      if (random_() % 8 == 0) {  // pinned in the meantime
        blocks_[id].pins += 1;
        blocks_[id].state.evictable = false;
        continue;
      }
      page_out(id);
    }
  }

  void page_out(BlockId id) {
    Block& block = blocks_[id];
    block.state.evictable = false;
    block.state.away = block.state.clean = true;
    occupied_ -= block.state.bytes;
  }

  void page_in(BlockId id) {
    Block& block = blocks_[id];
    block.state.away = false;
    block.state.evictable = block.pins == 0;
    occupied_ += block.state.bytes;
  }

  // There is less room than the policy knows: what it brings in, something has to leave for.
  void squeeze() {
    for (unsigned i = 0; i < 100; ++i) {
      const BlockId wanted = policy_->prefetch(*this);
      if (wanted == no_block) {
        return;
      }
      page_in(wanted);
      if (++blocks_[wanted].prefetches > 32) {
        fail("a block that was prefetched again and again");
      }
      const BlockId unwanted = policy_->victim(*this, blocks_[wanted].state.bytes);
      if (unwanted != no_block) {
        page_out(unwanted);
      }
    }
  }

  void look_ahead() {
    if (!told_) {
      return;
    }
    if (random_() % 200 == 0) {
      squeeze();
    }
    for (unsigned i = 0; i < 4; ++i) {
      const BlockId wanted = policy_->prefetch(*this);
      if (wanted == no_block) {
        break;
      }
      if (wanted >= end() || !blocks_[wanted].state.away) {
        fail("a prefetch of a block that is not away");
      }
      if (occupied_ + blocks_[wanted].state.bytes > limit_) {
        break;
      }
      page_in(wanted);
      ++prefetches_;
    }
    const BlockId unwanted = policy_->early_victim(*this);
    if (unwanted == no_block) {
      return;
    }
    if (unwanted >= end() || !blocks_[unwanted].state.evictable) {
      fail("an early victim that cannot leave");
    }
    page_out(unwanted);
  }

  void tell(BlockId id, lms::Use use) {
    if (told_) {
      policy_->note(lms::Event{id, use, blocks_[id].state.bytes});
    }
  }

  BlockId allocate(std::uint64_t bytes) {
    make_room(bytes);
    BlockId id = end();
    if (unused_.empty()) {
      ids_.push_back(end());
      blocks_.emplace_back();
    } else {
      id = unused_.back();
      unused_.pop_back();
    }
    blocks_[id] = Block();
    blocks_[id].alive = true;
    blocks_[id].pins = 1;
    blocks_[id].state.bytes = bytes;
    blocks_[id].state.last_use = clock_;
    occupied_ += bytes;
    live_.push_back(id);
    used_.push_back(id);
    tell(id, lms::Use::allocate);
    return id;
  }

  void use(BlockId id, bool write) {
    blocks_[id].pins += 1;
    blocks_[id].state.evictable = false;
    if (blocks_[id].state.away) {
      make_room(blocks_[id].state.bytes);
      page_in(id);
    }
    if (write) {
      blocks_[id].state.clean = false;
    }
    blocks_[id].state.last_use = clock_;
    blocks_[id].prefetches = 0;
    used_.push_back(id);
    tell(id, write ? lms::Use::write : lms::Use::read);
  }

  void release(BlockId id) {
    live_.erase(std::find(live_.begin(), live_.end(), id));
    if (!blocks_[id].state.away) {
      occupied_ -= blocks_[id].state.bytes;
    }
    blocks_[id].alive = false;
    blocks_[id].state.evictable = blocks_[id].state.away = false;
    tell(id, lms::Use::free);
    unused_.push_back(id);
  }

  std::unique_ptr<lms::Policy> policy_;
  const bool exact_;
  const std::uint64_t period_;
  std::mt19937_64 random_;
  std::vector<Block> blocks_;
  std::vector<BlockId> ids_;
  std::vector<BlockId> live_;
  std::vector<BlockId> slots_;
  std::vector<BlockId> unused_;
  std::vector<BlockId> used_;
  std::uint64_t limit_ = 4096 * 300;
  std::uint64_t occupied_ = 0;
  std::uint64_t clock_ = 1;
  std::uint64_t victims_ = 0;
  std::uint64_t prefetches_ = 0;
  bool told_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    return 2;
  }
  Program(argv[1], std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[4], nullptr, 10))
      .run(std::strtoull(argv[3], nullptr, 10));
  return 0;
}

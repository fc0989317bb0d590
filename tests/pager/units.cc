// The parts that stand alone: Ranges, Arena, Cache, Store, EvictionPlan, IterationPolicy.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <thread>

#include "arena.h"
#include "cache.h"
#include "check.h"
#include "disk/file_store.h"
#include "policy/eviction_plan.h"
#include "policy/iteration_policy.h"
#include "ranges.h"
#include "store.h"

using check::kib;
using check::mib;
using check::Random;
using lms::Arena;
using lms::Block;
using lms::BlockId;
using lms::Cache;
using lms::EvictionPlan;
using lms::IterationPolicy;
using lms::Ranges;
using lms::Slot;
using lms::Store;
using lms::Use;

CASE(ranges_fit_and_join) {
  Ranges ranges(100);
  CHECK_EQ(ranges.total(), 100);
  CHECK(ranges.all_free());
  CHECK_EQ(ranges.take(101), Ranges::none);
  CHECK_EQ(ranges.take(40), 0);
  CHECK_EQ(ranges.take(20), 40);
  CHECK_EQ(ranges.take(40), 60);
  CHECK_EQ(ranges.take(1), Ranges::none);
  CHECK(!ranges.all_free());
  ranges.give(0, 40);
  ranges.give(60, 40);
  CHECK_EQ(ranges.take(41), Ranges::none);  // the two do not touch
  ranges.give(40, 20);
  CHECK(ranges.all_free());
  CHECK_EQ(ranges.take(100), 0);
}

CASE(ranges_best_fit) {
  Ranges ranges(100);
  CHECK_EQ(ranges.take(30), 0);
  CHECK_EQ(ranges.take(10), 30);
  CHECK_EQ(ranges.take(10), 40);
  ranges.give(0, 30);
  ranges.give(40, 10);  // joins the 50 at the end
  CHECK_EQ(ranges.take(25), 0);
  CHECK_EQ(ranges.take(5), 25);
  CHECK_EQ(ranges.take(60), 40);
}

CASE(ranges_at_random) {
  // Against a map of taken units.
  constexpr std::uint64_t total = 512;
  Ranges ranges(total);
  std::vector<bool> taken(total, false);
  std::map<std::uint64_t, std::uint64_t> held;
  Random random(check::seed());
  const auto longest_free = [&] {
    std::uint64_t longest = 0;
    std::uint64_t run = 0;
    for (const bool unit : taken) {
      run = unit ? 0 : run + 1;
      longest = std::max(longest, run);
    }
    return longest;
  };
  for (std::uint64_t step = 0; step < check::steps(100000); ++step) {
    if (random.chance(55)) {
      const std::uint64_t bytes = 1 + random.below(40);
      const std::uint64_t offset = ranges.take(bytes);
      CHECK((offset == Ranges::none) == (longest_free() < bytes));
      if (offset == Ranges::none) {
        continue;
      }
      CHECK(offset + bytes <= total);
      for (std::uint64_t unit = offset; unit < offset + bytes; ++unit) {
        CHECK(!taken[unit]);
        taken[unit] = true;
      }
      held[offset] = bytes;
    } else if (!held.empty()) {
      auto found = held.lower_bound(random.below(total));
      found = found == held.end() ? held.begin() : found;
      ranges.give(found->first, found->second);
      std::fill_n(taken.begin() + static_cast<std::ptrdiff_t>(found->first), found->second, false);
      held.erase(found);
    }
    CHECK(ranges.all_free() == held.empty());
  }
}

namespace {

// Address space for an arena: nothing is ever touched there.
char* address_space(std::uint64_t bytes) {
  void* memory = mmap(nullptr, bytes + Arena::large_block, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return static_cast<char*>(memory) + (Arena::large_block - address % Arena::large_block) % Arena::large_block;
}

}  // namespace

CASE(arena_finds_blocks) {
  constexpr std::uint64_t span = 16 * mib;
  char* base = address_space(span);
  const std::unique_ptr<Arena> arena = Arena::make(base, span);
  CHECK(arena != nullptr);
  CHECK(arena->find(base) == nullptr);
  Block first;
  first.bytes = 4 * kib;
  Block second;
  second.bytes = 3 * Arena::granule + 4 * kib;
  Block large;
  large.bytes = Arena::large_block + 4 * kib;
  for (Block* block : {&first, &second, &large}) {
    CHECK(arena->place(block));
    CHECK(block->address >= base && block->address + Arena::footprint(block->bytes) <= base + span);
    for (std::uint64_t offset = 0; offset < block->bytes; offset += 4096) {
      CHECK(arena->find(block->address + offset) == block);
    }
    CHECK(arena->find(block->address + block->bytes - 1) == block);
    CHECK(arena->find(block->address + block->bytes) == nullptr);  // the rest of its footprint
  }
  CHECK((first.address - base) % Arena::granule == 0);
  CHECK((large.address - base) % Arena::large_block == 0);
  CHECK(arena->find(base - 1) == nullptr);
  CHECK(arena->find(base + span) == nullptr);
  CHECK(arena->find(nullptr) == nullptr);
  CHECK(arena->find(reinterpret_cast<const void*>(UINTPTR_MAX)) == nullptr);
  arena->remove(&first);
  CHECK(arena->find(first.address) == nullptr);
  CHECK(arena->find(second.address) == &second);
  arena->remove(&second);
  arena->remove(&large);
  CHECK(arena->find(large.address) == nullptr);
}

CASE(arena_fills_up) {
  constexpr std::uint64_t span = 8 * mib;
  const std::unique_ptr<Arena> arena = Arena::make(address_space(span), span);
  for (const std::uint64_t bytes : {4 * kib, Arena::granule, Arena::large_block}) {
    std::vector<Block> blocks(2 * span / Arena::granule);
    std::uint64_t placed = 0;
    for (Block& block : blocks) {
      block.bytes = bytes;
      if (!arena->place(&block)) {
        break;
      }
      ++placed;
    }
    CHECK(placed * Arena::footprint(bytes) >= span / 2);
    CHECK(placed * Arena::footprint(bytes) <= span);
    for (std::uint64_t i = 0; i < placed; ++i) {
      CHECK(arena->find(blocks[i].address) == &blocks[i]);
      for (std::uint64_t j = 0; j < i && placed < 64; ++j) {
        CHECK(blocks[i].address != blocks[j].address);
      }
    }
    for (std::uint64_t i = 0; i < placed; ++i) {
      arena->remove(&blocks[i]);
    }
  }
}

CASE(cache_keeps_sizes_apart) {
  Cache cache;
  Block blocks[6];
  for (std::uint64_t i = 0; i < 6; ++i) {
    blocks[i].bytes = i < 3 ? 4 * kib : 8 * kib;
    blocks[i].last_use.store(10 - i);
    cache.put(&blocks[i], static_cast<std::uint32_t>(i));  // shards of several threads
  }
  CHECK_EQ(cache.bytes(), 36 * kib);
  CHECK(cache.take(12 * kib, 0) == nullptr);
  CHECK(cache.take(4 * kib, 1) == &blocks[1]);  // the thread's own first
  CHECK(cache.take(8 * kib, 5) == &blocks[5]);
  CHECK(cache.take_oldest() == &blocks[4]);  // freed longest ago
  CHECK(cache.take_oldest() == &blocks[3]);
  CHECK(cache.take(8 * kib, 0) == nullptr);
  CHECK(cache.take(4 * kib, 7) != nullptr);  // another thread's when there is no own
  CHECK(cache.take_oldest() != nullptr);
  CHECK(cache.take_oldest() == nullptr);
  CHECK_EQ(cache.bytes(), 0);
}

CASE(cache_newest_first) {
  Cache cache;
  Block blocks[4];
  for (std::uint64_t i = 0; i < 4; ++i) {
    blocks[i].bytes = 4 * kib;
    blocks[i].last_use.store(i);
    cache.put(&blocks[i], 3);
  }
  CHECK(cache.take(4 * kib, 3) == &blocks[3]);
  CHECK(cache.take_oldest() == &blocks[0]);
  CHECK(cache.take(4 * kib, 3) == &blocks[2]);
  cache.put(&blocks[0], 3);
  CHECK(cache.take(4 * kib, 3) == &blocks[0]);
  CHECK(cache.take(4 * kib, 3) == &blocks[1]);
  CHECK(cache.take(4 * kib, 3) == nullptr);
}

CASE(cache_on_many_threads) {
  // Every block is taken by one thread at a time.
  Cache cache;
  constexpr std::uint64_t count = 32;
  std::vector<Block> blocks(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    blocks[i].bytes = (1 + i % 4) * 4 * kib;
    cache.put(&blocks[i], static_cast<std::uint32_t>(i));
  }
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      Random random(check::seed() + thread);
      for (std::uint64_t step = 0; step < check::steps(100000); ++step) {
        Block* block = random.chance(10) ? cache.take_oldest() : cache.take((1 + random.below(4)) * 4 * kib, thread);
        if (block != nullptr) {
          block->id += 1;  // a plain member: two owners at a time would be a race
          block->last_use.store(step);
          cache.put(block, thread);
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::uint64_t found = 0;
  while (cache.take_oldest() != nullptr) {
    ++found;
  }
  CHECK_EQ(found, count);
  CHECK_EQ(cache.bytes(), 0);
}

namespace {

void store_contents(Store* store) {
  struct Kept {
    Slot slot;
    std::uint64_t bytes;
    std::uint64_t seed;
  };
  Random random(check::seed());
  std::vector<Kept> kept;
  std::vector<char> buffer(256 * kib);
  std::uint64_t used = 0;
  for (std::uint64_t step = 0; step < check::steps(4000); ++step) {
    if (kept.size() < 300 && random.chance(60)) {
      Kept one = {Slot{}, (1 + random.below(64)) * 4 * kib, random.next()};
      CHECK(store->allocate(one.bytes, &one.slot));
      CHECK(one.slot.store == store);
      check::fill(buffer.data(), one.bytes, one.seed);
      CHECK(one.slot.segment->write(one.slot.offset, buffer.data(), one.bytes));
      used += one.bytes;
      kept.push_back(one);
    } else if (!kept.empty()) {
      const std::size_t index = random.below(kept.size());
      const Kept one = kept[index];
      CHECK(one.slot.segment->read(one.slot.offset, buffer.data(), one.bytes));
      CHECK(check::holds(buffer.data(), one.bytes, one.seed));
      if (random.chance(70)) {
        store->release(one.slot, one.bytes);
        used -= one.bytes;
        kept[index] = kept.back();
        kept.pop_back();
      }
    }
    if (step % 1000 == 999) {
      store->freeze();  // as after a fork
    }
    CHECK_EQ(store->used_bytes(), used);
  }
  for (const Kept& one : kept) {
    CHECK(one.slot.segment->read(one.slot.offset, buffer.data(), one.bytes));
    CHECK(check::holds(buffer.data(), one.bytes, one.seed));
    store->release(one.slot, one.bytes);
  }
  CHECK_EQ(store->used_bytes(), 0);
}

}  // namespace

namespace {

lms::FileStoreOptions in(const std::vector<std::string>& directories) {
  lms::FileStoreOptions options;
  options.directories = directories;
  return options;
}

}  // namespace

CASE(memory_store) { store_contents(lms::make_memory_store().get()); }

CASE(file_store) {
  std::string error;
  store_contents(lms::make_file_store(in({check::directory()}), &error).get());
  CHECK(error.empty());
}

CASE(file_store_writes_nothing_shared) {
  // After a fork a slot from before it is read, never written: parent and child hold the same file.
  std::string error;
  const std::unique_ptr<Store> store = lms::make_file_store(in({check::directory()}), &error);
  Slot before;
  CHECK(store->allocate(4 * kib, &before));
  Slot freed;
  CHECK(store->allocate(4 * kib, &freed));
  store->freeze();
  store->release(freed, 4 * kib);
  Slot after;
  CHECK(store->allocate(4 * kib, &after));
  CHECK(after.segment != before.segment);
  store->release(after, 4 * kib);
  store->release(before, 4 * kib);
}

CASE(file_store_of_a_wrong_directory) {
  std::string error;
  CHECK(lms::make_file_store(in({"no/such/directory"}), &error) == nullptr);
  CHECK(check::contains(error.c_str(), "no/such/directory"));
}

namespace {

// Adds `bytes` to every moment that the gap spans.
void add(const EvictionPlan::Gap& gap, std::int64_t bytes, std::vector<std::int64_t>* moments) {
  for (std::uint32_t i = 0; i < gap.length; ++i) {
    (*moments)[(gap.begin + i) % moments->size()] += bytes;
  }
}

// A plan covers each moment's excess that gaps can cover, says what remains, and has no gap without need.
void check_plan(const std::vector<std::int64_t>& excess, const std::vector<std::uint64_t>& written,
                std::vector<EvictionPlan::Gap> gaps, std::uint64_t work) {
  std::vector<std::int64_t> remains = excess;
  EvictionPlan::solve(&remains, written, &gaps, work);
  std::vector<std::int64_t> with_the_chosen = excess;
  std::vector<std::int64_t> with_all = excess;
  for (const EvictionPlan::Gap& gap : gaps) {
    const std::int64_t bytes = -static_cast<std::int64_t>(gap.bytes);
    add(gap, gap.chosen ? bytes : 0, &with_the_chosen);
    add(gap, bytes, &with_all);
  }
  CHECK(with_the_chosen == remains);
  for (std::size_t moment = 0; moment < excess.size(); ++moment) {
    CHECK(remains[moment] <= std::max<std::int64_t>(with_all[moment], 0));
  }
  for (const EvictionPlan::Gap& gap : gaps) {
    if (gap.chosen) {
      bool needed = false;
      for (std::uint32_t i = 0; i < gap.length; ++i) {
        needed = needed || remains[(gap.begin + i) % remains.size()] + static_cast<std::int64_t>(gap.bytes) > 0;
      }
      CHECK(needed);
    }
  }
}

}  // namespace

CASE(plan_takes_the_cheapest_gap) {
  // Two moments are over by 10 bytes. A gap over both, read again, or two that die; and one that is elsewhere.
  std::vector<std::int64_t> excess = {-5, 10, 10, -5};
  std::vector<EvictionPlan::Gap> gaps = {
      {1, 2, 10, 10, 0, false}, {1, 1, 10, 0, 1, false}, {2, 1, 10, 0, 2, false}, {3, 2, 10, 0, 3, false}};
  EvictionPlan::solve(&excess, {100, 1, 1, 1}, &gaps, 1000);
  CHECK(!gaps[0].chosen && gaps[1].chosen && gaps[2].chosen && !gaps[3].chosen);
  CHECK((excess == std::vector<std::int64_t>{-5, 0, 0, -5}));
}

CASE(plans_at_random) {
  Random random(check::seed());
  for (int round = 0; round < 300; ++round) {
    const std::uint32_t moments = 1 + static_cast<std::uint32_t>(random.below(300));
    std::vector<std::int64_t> excess(moments, 0);
    std::vector<EvictionPlan::Gap> gaps(random.below(200));
    std::vector<std::uint64_t> written(gaps.size() + 1);
    for (EvictionPlan::Gap& gap : gaps) {
      const std::uint64_t bytes = (1 + random.below(16)) * 4096;
      gap = {static_cast<std::uint32_t>(random.below(moments)),
             1 + static_cast<std::uint32_t>(random.below(random.chance(10) ? moments : (moments + 7) / 8)),
             bytes,
             random.chance(80) ? bytes : 0,
             static_cast<std::uint32_t>(random.below(written.size())),
             false};
      written[gap.version] = random.below(8) * 4096;
      add(gap, static_cast<std::int64_t>(bytes), &excess);
    }
    // From a limit that all fits to one that nothing does.
    const std::int64_t most = *std::max_element(excess.begin(), excess.end());
    const std::int64_t limit = most / 100 * static_cast<std::int64_t>(random.below(110)) - 4096;
    for (std::int64_t& bytes : excess) {
      bytes += static_cast<std::int64_t>(random.below(3)) * 4096 - limit;
    }
    for (const std::uint64_t work : {std::uint64_t{0}, std::uint64_t{3000}, UINT64_MAX}) {
      check_plan(excess, written, gaps, work);
    }
  }
}

CASE(of_gaps_that_bring_the_same_the_longest) {
  for (const bool first : {false, true}) {
    std::vector<std::int64_t> excess(12, 0);
    excess[5] = 4096;
    std::vector<EvictionPlan::Gap> gaps{{4, 3, 4096, 4096, 0, false}, {4, 3, 4096, 4096, 1, false}};
    gaps[first ? 0 : 1].begin = 1;
    gaps[first ? 0 : 1].length = 8;
    EvictionPlan::solve(&excess, {4096, 4096}, &gaps, UINT64_MAX);
    CHECK_EQ(gaps[0].chosen, first);
    CHECK_EQ(gaps[1].chosen, !first);
  }
}

namespace {

// Nothing can be evicted; there is only a limit, for which a plan is made.
class NoBlocks : public lms::BlockSource {
 public:
  BlockId end() const override { return 0; }
  lms::BlockState state(BlockId /*id*/) const override { return {}; }
  const std::vector<BlockId>& present() const override { return present_; }
  std::uint64_t limit() const override { return 4096; }
  std::uint64_t occupied() const override { return 0; }

 private:
  std::vector<BlockId> present_;
};

// Training, use by use.
class Program {
 public:
  void note(BlockId block, Use use, std::uint64_t pages) {
    policy.note(lms::Event{block, use, pages * 4096});
    policy.early_victim(blocks_);
  }
  // Uses of the blocks 0 to 3, which live on, from one place of an iteration to another.
  void go_on(int from, int to) {
    Random random(1);
    for (int place = 0; place < to; ++place) {
      const BlockId block = static_cast<BlockId>(random.below(4));
      const Use use = random.chance(50) ? Use::read : Use::write;
      if (place >= from) {
        note(block, use, block + 1);
      }
    }
  }

  IterationPolicy policy;

 private:
  NoBlocks blocks_;
};

}  // namespace

// Blocks of one size take each other's places, in the end that of a block which no step used last.
CASE(successions_that_turn_out_otherwise) {
  Program program;
  const auto die = [&](BlockId block) {
    program.note(block, Use::read, 9);
    program.note(block, Use::free, 9);
  };
  for (BlockId block = 0; block < 4; ++block) {
    program.note(block, Use::allocate, block + 1);
  }
  for (BlockId old = 10; old < 14; ++old) {
    program.note(old, Use::allocate, 9);
  }
  BlockId old = 10;
  for (BlockId iteration = 0; iteration < 3; ++iteration) {
    const BlockId first = 20 + iteration;
    const BlockId second = 30 + iteration;
    program.note(4, Use::allocate, 600);
    program.go_on(0, 40);
    program.note(first, Use::allocate, 9);
    program.go_on(40, 60);
    program.note(second, Use::allocate, 9);
    program.go_on(60, 80);
    die(iteration == 2 ? 21 : old++);  // the first of the iteration before, which lived longer than foreseen
    program.go_on(80, 100);
    if (iteration == 2) {  // a departure
      program.note(first, Use::free, 9);
      program.note(first, Use::allocate, 9);
    }
    program.go_on(100, 140);
    die(iteration == 0 ? first : iteration == 1 ? old++ : second);
    program.go_on(140, 160);
    if (iteration < 2) {
      die(second);
      program.go_on(160, 180);
      program.note(4, Use::free, 600);
    }
  }
  CHECK_EQ(program.policy.departures(), 1);
  CHECK(program.policy.foreseen() > 250);  // of about 370 since the first iteration
}

namespace {

// Sixteen blocks that are read and written in turn, as an optimizer's, and then one of eight times their size that
// lives for a moment, as an activation.
class Turns : public lms::BlockSource {
 public:
  static constexpr BlockId count = 16;
  static constexpr BlockId large = count;
  static constexpr std::uint64_t bytes = 4096;

  double cost = 1;  // of writing a byte

  Turns(std::uint64_t limit_blocks, std::uint64_t free_blocks)
      : limit_(limit_blocks * bytes), watermark_(free_blocks * bytes) {
    for (BlockId block = 0; block < count; ++block) {
      policy.note(lms::Event{block, Use::allocate, bytes});
    }
  }

  BlockId end() const override { return count + 1; }
  lms::BlockState state(BlockId id) const override {
    return id == large ? lms::BlockState{8 * bytes, 0, false, false, false}
                       : lms::BlockState{bytes, 0, !away_[id], away_[id], false};
  }
  const std::vector<BlockId>& present() const override { return present_; }
  std::uint64_t limit() const override { return limit_; }
  std::uint64_t watermark() const override { return watermark_; }
  double write_cost() const override { return cost; }
  std::uint64_t occupied() const override {
    const auto here = std::count(std::begin(away_), std::end(away_), false);
    return (static_cast<std::uint64_t>(here) + (lives_ ? 8 : 0)) * bytes;
  }

  void read(BlockId block) {
    away_[block] = false;
    make_room();
    policy.note(lms::Event{block, Use::read, bytes});
  }
  void use(BlockId block) {
    read(block);
    policy.note(lms::Event{block, Use::write, bytes});
  }
  // What comes back ahead of need, in that order.
  std::vector<BlockId> bring_in_early() {
    std::vector<BlockId> came;
    for (BlockId block = policy.prefetch(*this); block != lms::no_block && occupied() + bytes <= limit_;
         block = policy.prefetch(*this)) {
      away_[block] = false;
      came.push_back(block);
    }
    return came;
  }
  // What leaves ahead of need, in that order.
  std::vector<BlockId> page_out_early() {
    std::vector<BlockId> left;
    for (BlockId block = policy.early_victim(*this); block != lms::no_block; block = policy.early_victim(*this)) {
      away_[block] = true;
      left.push_back(block);
    }
    return left;
  }
  void use_large() {
    lives_ = true;
    make_room();
    for (const Use use : {Use::allocate, Use::read, Use::write, Use::free}) {
      policy.note(lms::Event{large, use, 8 * bytes});
    }
    lives_ = false;
  }
  void go_round() {
    for (BlockId block = 0; block < count; ++block) {
      use(block);
    }
    use_large();
  }

  IterationPolicy policy;

 private:
  void make_room() {
    while (occupied() > limit_) {
      away_[policy.victim(*this, bytes)] = true;
    }
  }

  const std::uint64_t limit_;
  const std::uint64_t watermark_;
  bool lives_ = false;
  bool away_[count] = {};
  const std::vector<BlockId> present_{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
};

}  // namespace

// A device works behind the host's back: what was used first is over first.
CASE(what_was_used_first_leaves_first) {
  Turns turns(/*limit_blocks=*/16, /*free_blocks=*/0);
  for (int round = 0; round < 6; ++round) {
    turns.go_round();
  }
  for (BlockId block = 0; block < Turns::count; ++block) {  // the host runs ahead, and nothing leaves meanwhile
    turns.use(block);
  }
  const std::vector<BlockId> left = turns.page_out_early();
  CHECK_EQ(left.size(), 8);
  CHECK(std::is_sorted(left.begin(), left.end()));
}

CASE(a_plan_leaves_as_much_free_as_the_watermark_says) {
  for (const std::uint64_t free_blocks : {0, 1, 3}) {
    Turns turns(/*limit_blocks=*/16, free_blocks);
    for (int round = 0; round < 6; ++round) {
      turns.go_round();
    }
    for (BlockId block = 0; block < Turns::count; ++block) {
      turns.use(block);
    }
    CHECK_EQ(turns.page_out_early().size(), 8 + free_blocks);
  }
}

// Twice in each round seven blocks have to be away. Seven that are only read cost a read each time; of eight that are
// written, seven cost a read and a write, once.
CASE(a_plan_knows_what_writing_costs) {
  constexpr BlockId only_read = 7;
  for (const double cost : {0.125, 8.0}) {
    Turns turns(/*limit_blocks=*/17, /*free_blocks=*/0);
    turns.cost = cost;
    const auto read_and_go_on = [&turns] {
      for (BlockId block = 0; block < only_read; ++block) {
        turns.read(block);
      }
      turns.use(only_read);  // so that this is an operation of its own
    };
    const auto write = [&turns] {
      for (BlockId block = only_read + 1; block < Turns::count; ++block) {
        turns.use(block);
      }
    };
    for (int round = 0; round < 8; ++round) {
      read_and_go_on();
      write();
      turns.use_large();
      read_and_go_on();
      turns.use_large();
    }
    read_and_go_on();
    write();
    const std::vector<BlockId> left = turns.page_out_early();
    CHECK_EQ(left.size(), 7);
    for (const BlockId block : left) {
      CHECK_EQ(block > only_read, cost < 1);
    }
  }
}

CASE(bounds_of_what_leaves) {
  for (const std::uint64_t least : {0, 8, 100}) {
    for (const bool early : {true, false}) {
      Turns turns(/*limit_blocks=*/16, /*free_blocks=*/0);
      lms::Distances distances;
      distances.out_least = least;
      distances.early_out = early;
      turns.policy.set_distances(distances);
      for (int round = 0; round < 6; ++round) {
        turns.go_round();  // where nothing may leave, what has to does
      }
      for (BlockId block = 0; block < Turns::count; ++block) {
        turns.use(block);
      }
      CHECK_EQ(turns.page_out_early().size(), early && least < 16 ? 8 : 0);
    }
  }
}

CASE(bounds_of_what_comes_back) {
  const auto came = [](std::uint64_t least, std::uint64_t most, bool before_large) {
    Turns turns(/*limit_blocks=*/16, /*free_blocks=*/0);
    for (int round = 0; round < 6; ++round) {
      turns.go_round();
    }
    lms::Distances distances;
    distances.in_least = least;
    distances.in_most = most;
    turns.policy.set_distances(distances);
    for (BlockId block = 0; block < Turns::count; ++block) {
      turns.use(block);
    }
    turns.page_out_early();
    if (!before_large) {
      turns.use_large();
    }
    return turns.bring_in_early();
  };
  const std::vector<BlockId> any = came(0, UINT64_MAX, false);
  CHECK(any.size() > 4);
  CHECK(std::is_sorted(any.begin(), any.end()));
  CHECK(came(0, 0, false).empty());
  CHECK(came(0, 3, false) == std::vector<BlockId>(any.begin(), any.begin() + 4));
  CHECK(came(0, UINT64_MAX, true).empty());  // the large one is going to need the room
  CHECK_EQ(came(100, UINT64_MAX, true).size(), 8);
  const std::vector<BlockId> soon = came(3, UINT64_MAX, true);
  CHECK(!soon.empty() && soon.size() < 4);
  CHECK(std::equal(soon.begin(), soon.end(), any.begin()));
}

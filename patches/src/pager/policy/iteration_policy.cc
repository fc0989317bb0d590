#include "iteration_policy.h"

#include <algorithm>

#include "eviction_plan.h"

namespace lms {
namespace {

constexpr std::uint32_t iteration_no_step = UINT32_MAX;
constexpr std::size_t iteration_history_first = std::size_t{1} << 14;
constexpr std::size_t iteration_history_most = std::size_t{1} << 18;
constexpr unsigned iteration_gram = 8;                // uses in a gram
constexpr std::uint64_t iteration_compared = 16;  // uses compared with a place of the cycle before it is followed again
constexpr std::uint64_t iteration_near = 64;  // steps from the departure within which a gram is enough for that, and
                                              // uses after it before it may be elsewhere
constexpr std::uint64_t iteration_patience = 64;  // uses for which only the cycle is looked for after a departure,
constexpr std::uint64_t iteration_patience_part = 16;  // and at least this part of it
constexpr std::uint64_t iteration_agree = 24;  // uses that must agree before a cycle is adopted
constexpr std::uint64_t iteration_agree_alone = 96;  // the same without a long-lived block among them
constexpr std::uint64_t iteration_agree_most = 256;  // more are not compared
constexpr unsigned iteration_places = 192;  // earlier places tried at a time
constexpr unsigned iteration_strikes = 24;  // uses by unexpected blocks that make a departure
constexpr std::uint64_t iteration_fresh = 64;  // uses for which an order of candidates serves
constexpr std::uint64_t iteration_settled = 32;  // uses that a cycle must foresee before it is worth a plan,
constexpr std::uint64_t iteration_settled_part = 8;  // and at least this part of it: a plan takes time by its length
constexpr std::uint32_t iteration_short_gap = 6;  // groups
constexpr std::int64_t iteration_credit = 32;  // per event
constexpr std::int64_t iteration_credit_most = std::int64_t{1} << 20;
constexpr std::uint64_t iteration_plan_work = 4000000;

std::uint64_t iteration_mix(std::uint64_t x) {
  x ^= x >> 31;
  x *= 0x9e3779b97f4a7c15U;
  return x ^ (x >> 29);
}

bool iteration_is_use(Use use) { return use == Use::read || use == Use::write; }

}  // namespace

void IterationPolicy::note(const Event& event) {
  if (event.block == no_block) {
    return;
  }
  lru_.note(event);
  remember(event);
  if (following_ && !follow(event)) {
    following_ = false;
    ++departures_;
    departed_ = now_;
    if (now_ - joined_ > patience()) {
      lost_ = now_;
    }
  }
  Track& block = track(event.block);
  if (event.use == Use::free) {
    forget(event.block);
    block = Track{0, iteration_no_step, false, false, false, 0};
  } else {
    if (event.use == Use::allocate) {
      block.birth = now_;
    }
    block.alive = true;
  }
  if (following_) {
    renew();
  } else if (!rejoin() && gave_up()) {
    learn();
  }
}

// ------------------------------------------------------------------------------------------------ history

IterationPolicy::Position& IterationPolicy::gram_head(std::uint64_t gram) {
  return gram_heads_[iteration_mix(gram) & (gram_heads_.size() - 1)];
}

IterationPolicy::Track& IterationPolicy::track(BlockId block) {
  if (block >= tracks_.size()) {
    tracks_.resize(std::size_t{block} + 1, Track{0, iteration_no_step, false, false, false, 0});
  }
  return tracks_[block];
}

void IterationPolicy::remember(const Event& event) {
  if (now_ + 1 >= history_.size() && history_.size() < iteration_history_most) {
    history_.resize(std::max(iteration_history_first, history_.size() * 2));
    gram_heads_.assign(history_.size(), 0);
    for (Position position = 1; position <= now_; ++position) {  // the ring has not wrapped yet
      Position& head = gram_head(record(position).gram);
      record(position).before = head;
      head = position;
    }
  }
  const Record& last = record(now_);
  const std::uint64_t allocated = last.allocated + (event.use == Use::allocate ? event.bytes : 0);
  const std::uint64_t freed = last.freed + (event.use == Use::free ? event.bytes : 0);
  ++now_;
  gram_ = gram_ << 8 | (iteration_mix(event.bytes * 4 + static_cast<std::uint64_t>(event.use) + 1) & 255);
  Position& head = gram_head(gram_);
  record(now_) = Record{event, gram_, head, allocated, freed};
  head = now_;
  track(event.block);  // those that only died since memory ran short for the first time have one, too
  credit_ = std::min(credit_ + iteration_credit, iteration_credit_most);
}

// How many of the last uses equal those `length` before.
IterationPolicy::Match IterationPolicy::match(Position length) {
  Match result{length, 0, false};
  const Position most = std::min(iteration_agree_most, now_ - oldest() + 1 - length);
  for (; result.uses < most; ++result.uses) {
    const Position position = now_ - result.uses;
    const Event& newer = record(position).event;
    const Event& older = record(position - length).event;
    if (newer.use != older.use || newer.bytes != older.bytes) {
      break;
    }
    if (!iteration_is_use(newer.use)) {
      continue;
    }
    const Track& block = track(older.block);
    const bool lives = block.alive && block.birth <= position - length;
    if (newer.block == older.block) {
      result.same_block = result.same_block || lives;
    } else if (lives) {
      break;  // what was used there and still lives should have been used here
    }
  }
  credit_ -= static_cast<std::int64_t>(result.uses) + 1;
  return result;
}

bool IterationPolicy::balanced(Position length) {
  const std::uint64_t allocated = record(now_).allocated - record(now_ - length).allocated;
  const std::uint64_t freed = record(now_).freed - record(now_ - length).freed;
  return (allocated > freed ? allocated - freed : freed - allocated) * 32 <= allocated;
}

bool IterationPolicy::is_iteration(const Match& found) {
  return found.uses >= (found.same_block ? iteration_agree : iteration_agree_alone) &&
         found.length >= iteration_agree && balanced(found.length);
}

// Looks for the length of an iteration among the places where the last uses occurred before.
void IterationPolicy::learn() {
  Match best{0, 0, false};
  Position place = record(now_).before;
  for (unsigned tried = 0; place > oldest() && place < now_ && tried < iteration_places; ++tried) {
    const Match found = match(now_ - place);
    if (found.uses > best.uses && is_iteration(found)) {
      best = found;
    }
    if (best.uses == iteration_agree_most) {
      break;
    }
    const Position before = record(place).before;
    if (before >= place) {
      break;
    }
    place = before;
  }
  if (best.length != 0) {
    adopt(best.length);
    joined_ = now_;
    foreseen_before_ = foreseen_;
  }
}

// Some programs change the order of what they do, for some time or once and for all: after a departure the uses since
// the same step was followed before become the cycle.
void IterationPolicy::renew() {
  const Position length = now_ - followed_;
  const Position change = length > cycle_.size() ? length - cycle_.size() : cycle_.size() - length;
  if (departed_ <= adopted_ || followed_ <= oldest() || now_ < renew_at_ || now_ - joined_ <= patience() ||
      change > cycle_.size() / iteration_settled_part || credit_ < iteration_places) {
    return;
  }
  if (is_iteration(match(length))) {
    adopt(length);
  }
  renew_at_ = now_ + cycle_.size() / 2;
}

// ------------------------------------------------------------------------------------------------ cycle

IterationPolicy::Step& IterationPolicy::step_head(std::uint64_t gram) {
  return step_heads_[iteration_mix(gram) & (step_heads_.size() - 1)];
}

// When a step comes next, if the program goes on as foreseen.
IterationPolicy::Position IterationPolicy::position_of(Step step) const {
  return now_ + 1 + (step >= cursor_ ? step - cursor_ : step + cycle_.size() - cursor_);
}

// The step that comes at a position still to come.
IterationPolicy::Step IterationPolicy::step_at(Position position) const {
  return static_cast<Step>((cursor_ + (position - now_ - 1)) % cycle_.size());
}

// Makes the last `length` uses the cycle, and follows it.
void IterationPolicy::adopt(Position length) {
  const Position begin = now_ - length + 1;
  std::size_t heads = 256;
  while (heads < length) {
    heads *= 2;
  }
  step_heads_.assign(heads, iteration_no_step);
  cycle_.clear();
  for (Position position = begin; position <= now_; ++position) {
    const Record& old = record(position);
    Step& head = step_head(old.gram);
    cycle_.push_back(CycleStep{old.event.bytes, position, iteration_no_step, iteration_no_step, head, 0, no_block,
                               no_block, old.event.use, false});
    head = static_cast<Step>(position - begin);
  }
  for (Track& block : tracks_) {
    block.last = iteration_no_step;
  }
  join_lives(begin);
  form_groups();
  cursor_ = 0;
  strikes_ = 0;
  following_ = true;
  adopted_ = now_;
  credit_ -= static_cast<std::int64_t>(length);
  planned_ = relinked_ = false;
  sorted_at_ = 0;
}

// Finds, for every step, the next step that uses the same block. A block that outlives the end of the cycle goes on at
// its beginning: in the same block's first step, or, if it was born inside, in that of its predecessor, the block that
// died in the cycle and whose last use lies as long before the beginning as this one's before the end.
void IterationPolicy::join_lives(Position begin) {
  std::vector<Life> heads;
  std::vector<Life> tails;
  find_lives(begin, &heads, &tails);
  // Exact predecessors first; the rest by size, the latest to the latest, or to the one used first, since what was
  // saved last is used first on the way back.
  for (const bool exact : {true, false}) {
    match_lives(exact, &heads, &tails);
  }
  for (Step step = 0; step < cycle_.size(); ++step) {
    if (cycle_[step].next != iteration_no_step) {
      cycle_[cycle_[step].next].previous = step;
    }
  }
  for (BlockId id = 0; id < tracks_.size(); ++id) {
    const Step last = tracks_[id].last;
    if (last != iteration_no_step && cycle_[last].next != iteration_no_step) {
      cycle_[cycle_[last].next].expected = id;
    }
  }
}

// Joins the steps of each life inside the cycle. `heads` get the lives that began before it and died in it, `tails`
// those that began in it and live on.
void IterationPolicy::find_lives(Position begin, std::vector<Life>* heads, std::vector<Life>* tails) {
  struct Scan {
    Step next = iteration_no_step;
    Step tail = iteration_no_step;  // the last step, of a block that outlives the cycle
    bool born = false;  // what comes before belongs to another block with that id
    Position used = 0;
  };
  const Position length = cycle_.size();
  std::vector<Scan> scans(tracks_.size());
  for (Step step = static_cast<Step>(length); step-- > 0;) {
    const Event& event = record(begin + step).event;
    Scan& scan = scans[event.block];
    if (event.use == Use::free) {
      scan.next = step;
      scan.tail = iteration_no_step;
      continue;
    }
    cycle_[step].next = scan.next;
    if (scan.next == iteration_no_step && !scan.born) {
      scan.tail = step;
      track(event.block).last = step;
    }
    scan.next = step;
    if (event.use == Use::allocate) {
      if (scan.tail != iteration_no_step) {
        tails->push_back(Life{event.bytes, begin + scan.tail, scan.tail});
      }
      scan.next = scan.tail = iteration_no_step;
      scan.born = true;
    }
  }
  for (Position position = begin; position-- > std::max(oldest(), begin > length ? begin - length : 0);) {
    Scan& scan = scans[record(position).event.block];
    if (scan.used == 0) {
      scan.used = position;
    }
  }
  for (BlockId id = 0; id < scans.size(); ++id) {
    const Scan& scan = scans[id];
    if (scan.next == iteration_no_step) {
      continue;
    }
    if (scan.tail == iteration_no_step) {
      heads->push_back(Life{cycle_[scan.next].bytes, scan.used == 0 ? 0 : scan.used + length, scan.next});
      continue;
    }
    cycle_[scan.tail].next = scan.next;
    for (Step step = scan.next;; step = cycle_[step].next) {
      cycle_[step].block = id;
      if (step == scan.tail) {
        break;
      }
    }
  }
}

// Joins the end of each life in `tails` with the beginning of one in `heads` of the same size; `exact`: only where the
// predecessor's last use agrees. Takes out of both what it joined.
void IterationPolicy::match_lives(bool exact, std::vector<Life>* heads, std::vector<Life>* tails) {
  const auto later = [](const Life& a, const Life& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.used != b.used ? a.used > b.used : a.step < b.step;
  };
  std::sort(heads->begin(), heads->end(), later);
  std::sort(tails->begin(), tails->end(), later);
  std::vector<Life> other_heads;
  std::vector<Life> other_tails;
  auto tail = tails->cbegin();
  for (const Life& head : *heads) {
    const auto before = [&](const Life& life) {
      return life.bytes > head.bytes || (exact && life.bytes == head.bytes && life.used > head.used);
    };
    while (tail != tails->cend() && before(*tail)) {
      other_tails.push_back(*tail++);
    }
    if (tail != tails->cend() && tail->bytes == head.bytes && (!exact || tail->used == head.used)) {
      cycle_[(tail++)->step].next = head.step;
    } else {
      other_heads.push_back(head);
    }
  }
  other_tails.insert(other_tails.end(), tail, tails->cend());
  heads->swap(other_heads);
  tails->swap(other_tails);
}

// The policy does not see where operations begin and end, but an operation uses its inputs before it allocates and
// frees; a block that is used twice in a row is used by two operations; and what an operation writes comes first among
// its inputs, so that a write after reads, with another write before them, begins the next one. Frees of blocks that
// the operation before did not use are a group of their own.
void IterationPolicy::form_groups() {
  const Step no_group = iteration_no_step;
  std::vector<std::uint32_t> used_in(cycle_.size(), no_group);  // by step: the group in which its block was used before
  std::uint32_t group = 0;
  bool frees = false;  // the group is one of frees
  bool has_write = false;
  Use before = Use::read;
  for (Step step = 0; step < cycle_.size(); ++step) {
    const Use use = cycle_[step].use;
    const bool in_group = used_in[step] == group;
    bool starts = frees && use != Use::free;
    if (iteration_is_use(use)) {
      starts =
          starts || !iteration_is_use(before) || in_group || (use == Use::write && before == Use::read && has_write);
    } else if (use == Use::free) {
      starts = !frees && !in_group;
    }
    if (starts && step > 0) {
      ++group;
    }
    if (starts) {
      has_write = false;
      frees = use == Use::free;
    }
    has_write = has_write || use == Use::write;
    before = use;
    cycle_[step].group = group;
    const Step next = cycle_[step].next;
    if (next != iteration_no_step && next > step) {
      used_in[next] = group;
    }
  }
}

// True when the program did what the step at the cursor foresees; the cursor moves on then.
bool IterationPolicy::follow(const Event& event) {
  const CycleStep& step = cycle_[cursor_];
  if (step.use != event.use || step.bytes != event.bytes) {
    return false;
  }
  BlockId used = event.block;
  if (event.use != Use::allocate && due_at(step) != event.block) {
    strikes_ += step.block != no_block ? 4 : 1;
    if (strikes_ > iteration_strikes) {
      return false;
    }
    if (step.block != no_block && is_fixed(event.block)) {
      used = step.block;  // they have changed places, and each is needed next where it always is
    } else {
      exchange(event.block);
    }
  } else if (strikes_ > 0 && cursor_ % 8 == 0) {
    --strikes_;
  }
  const Step done = cursor_;
  followed_ = cycle_[done].followed;
  cycle_[done].followed = now_;
  cursor_ = after(cursor_);
  if (cursor_ == 0 && relinked_) {
    planned_ = relinked_ = false;
  }
  if (used == event.block || tracks_[used].alive) {
    bind(used, done);
  }
  ++foreseen_;
  return true;
}

// `step` is the last that used the block.
void IterationPolicy::bind(BlockId block, Step step) {
  Track& used = track(block);
  used.last = step;
  used.fetched = used.stays = false;
  used.rests = 0;
  const Step next = cycle_[step].next;
  if (next != iteration_no_step) {
    cycle_[next].expected = block;
  }
  if (planned_ && cycle_[step].leaves) {
    open(span_of(block));
  }
}

// The step at the cursor uses `block` instead of the one that was expected: of blocks that were born in the last
// iteration and live on, it is not certain which one is whose successor. They exchange what is foreseen for them.
void IterationPolicy::exchange(BlockId block) {
  CycleStep& here = cycle_[cursor_];
  const BlockId other = here.expected;
  const Step last = track(block).last;
  unbind(block);
  if (here.block != no_block || last == iteration_no_step || cycle_[last].block != no_block) {
    return;
  }
  const Step other_last = here.previous;
  const Step next = cycle_[last].next;
  if (next == cursor_) {
    return;
  }
  relinked_ = true;
  cycle_[last].next = cursor_;
  here.previous = last;
  if (other_last != iteration_no_step) {
    cycle_[other_last].next = next;
  }
  if (next == iteration_no_step) {
    return;
  }
  cycle_[next].previous = other_last;
  // `other` may have been foreseen by a step that nothing leads to any more, and be a new block with that id since.
  if (other == no_block || other_last == iteration_no_step || tracks_[other].last != other_last) {
    return;
  }
  cycle_[next].expected = other;
  if (!planned_) {
    return;
  }
  if (cycle_[other_last].leaves) {
    open(span_of(other));
  }
  knows_absent_ = false;
}

bool IterationPolicy::is_fixed(BlockId block) {
  const Step last = track(block).last;
  return last != iteration_no_step && cycle_[last].block == block;
}

// The block is gone, also one that has lived through the whole cycle.
void IterationPolicy::forget(BlockId block) {
  if (is_fixed(block)) {
    for (Step step = track(block).last; cycle_[step].block == block; step = cycle_[step].next) {
      cycle_[step].block = no_block;
    }
  }
  unbind(block);
}

void IterationPolicy::unbind(BlockId block) {
  Track& dead = track(block);
  if (dead.last == iteration_no_step) {
    return;
  }
  const Step next = cycle_[dead.last].next;
  if (next != iteration_no_step && cycle_[next].expected == block) {
    cycle_[next].expected = no_block;
  }
  dead.last = iteration_no_step;
}

IterationPolicy::Position IterationPolicy::patience() const {
  return std::max<Position>(iteration_patience, cycle_.size() / iteration_patience_part);
}

// Whether to look for another cycle, and not for this one alone: soon where the program has never kept to it for long.
bool IterationPolicy::gave_up() const {
  const bool proven = !cycle_.empty() && foreseen_ - foreseen_before_ >= cycle_.size() / 4;
  return credit_ >= iteration_places && (!proven || now_ - lost_ > patience());
}

// After a departure: true when the last uses are those that end at a step of the cycle, which is followed from there.
// At first only what is near the departure counts: what repeats itself in an iteration looks the same elsewhere.
bool IterationPolicy::rejoin() {
  if (cycle_.empty() || now_ < oldest() + iteration_gram || credit_ < iteration_places) {
    return false;
  }
  ends_.clear();
  for (Step end = step_head(gram_); end != iteration_no_step; end = cycle_[end].same_gram) {
    ends_.push_back(end);
  }
  credit_ -= static_cast<std::int64_t>(ends_.size());
  // The next one after the cursor first.
  std::reverse(ends_.begin(), ends_.end());
  std::rotate(ends_.begin(), std::lower_bound(ends_.begin(), ends_.end(), cursor_), ends_.end());
  const Position length = cycle_.size();
  const Position reach = iteration_near + (now_ - departed_);
  const Step near = best_end(iteration_gram, [this, length, reach](Step end) {
    const Position ahead = end >= cursor_ ? end - cursor_ : end + length - cursor_;
    return std::min(ahead, length - ahead) < reach;
  });
  const Step found = near != iteration_no_step || now_ - departed_ < iteration_near
                         ? near
                         : best_end(iteration_compared, [](Step) { return true; });
  if (found == iteration_no_step) {
    return false;
  }
  rejoin_after(found);
  return true;
}

// Of the steps in ends_ that `serves` is true of, the one with which the last uses agree best, and `least` at least.
template <typename Serves>
IterationPolicy::Step IterationPolicy::best_end(Position least, Serves serves) {
  const Position length = cycle_.size();
  Step best = iteration_no_step;
  unsigned best_evidence = 0;
  unsigned tried = 0;
  for (const Step end : ends_) {
    if (!serves(end)) {
      continue;
    }
    if (++tried > iteration_places) {
      break;
    }
    unsigned evidence = 0;
    unsigned uses = 0;
    Step step = end;
    for (; uses < std::min(iteration_agree_most, length); ++uses) {
      if (now_ - uses < oldest()) {
        break;
      }
      const Event& event = record(now_ - uses).event;
      const CycleStep& then = cycle_[step];
      if (event.use != then.use || event.bytes != then.bytes) {
        break;
      }
      if (then.block != no_block && then.block != event.block) {
        break;
      }
      evidence += 1 + (then.expected == event.block ? 4 : 0);
      step = step == 0 ? static_cast<Step>(length) - 1 : step - 1;
    }
    credit_ -= uses + 1;
    if (uses >= std::min(least, length) && evidence > best_evidence) {
      best = end;
      best_evidence = evidence;
    }
  }
  return best;
}

// Follows the cycle from after that step on.
void IterationPolicy::rejoin_after(Step step) {
  const Step length = static_cast<Step>(cycle_.size());
  const Step departed = cursor_;
  cursor_ = after(step);
  const Step ahead = cursor_ >= departed ? cursor_ - departed : cursor_ + length - departed;
  if (ahead <= length / 2) {
    skip(departed, cursor_);
    credit_ -= ahead;
  } else {
    take_back(cursor_, departed);
    credit_ -= length - ahead;
  }
  for (unsigned i = iteration_gram; i-- > 0;) {
    const Event& event = record(now_ - i).event;
    if (event.use == Use::free || !track(event.block).alive) {
      continue;
    }
    unbind(event.block);
    bind(event.block, step >= i ? step - i : step + length - i);
  }
  strikes_ = 0;
  following_ = true;
  joined_ = now_;
  knows_absent_ = false;
  sorted_at_ = 0;
}

// Blocks that should have been used from `begin` up to before `end` are expected at their next steps.
void IterationPolicy::skip(Step begin, Step end) {
  for (Step skipped = begin; skipped != end; skipped = after(skipped)) {
    const BlockId block = due_at(cycle_[skipped]);
    cycle_[skipped].expected = no_block;
    if (block != no_block && tracks_[block].alive) {
      bind(block, skipped);
    }
  }
}

// The program comes to these steps once more. Blocks that were used there, and before, are expected there again.
void IterationPolicy::take_back(Step begin, Step end) {
  const Step last = static_cast<Step>(cycle_.size()) - 1;
  for (Step step = end; step != begin;) {
    step = step == 0 ? last : step - 1;
    const Step previous = cycle_[step].previous;
    const Step next = cycle_[step].next;
    const BlockId block = next == iteration_no_step ? no_block : due_at(cycle_[next]);
    if (previous != iteration_no_step && block != no_block && tracks_[block].last == step) {
      unbind(block);
      bind(block, previous);
    }
  }
}

// ------------------------------------------------------------------------------------------------ plan

void IterationPolicy::ensure_plan(const BlockSource& blocks) {
  const Position settled = std::max<Position>(iteration_settled, cycle_.size() / iteration_settled_part);
  const std::uint64_t limit = blocks.limit() - std::min(blocks.limit(), blocks.watermark());
  const double write_cost = blocks.write_cost();
  if (planned_ ? planned_limit_ == limit && planned_write_cost_ == write_cost : now_ - joined_ < settled) {
    return;
  }
  make_plan(limit, write_cost);
}

// The bytes that live in each group, at most, while nothing is away. Also, by step: the bytes of the contents that it
// writes, and which step wrote those that it leaves; what no step writes stays clean once it was evicted.
std::vector<std::int64_t> IterationPolicy::find_live(std::vector<std::uint64_t>* written,
                                                     std::vector<Step>* version) const {
  const Step length = static_cast<Step>(cycle_.size());
  written->assign(std::size_t{length} + 1, 0);
  version->assign(length, length);
  std::vector<std::int64_t> change(std::size_t{length} + 1, 0);
  for (Step step = 0; step < length; ++step) {
    const CycleStep& used = cycle_[step];
    if (used.next == iteration_no_step) {
      continue;
    }
    const std::int64_t bytes = static_cast<std::int64_t>(used.bytes);
    change[step] += bytes;
    change[used.next] -= bytes;
    if (used.next <= step) {
      change[0] += bytes;
    }
    if (used.use != Use::write && used.use != Use::allocate) {
      continue;
    }
    (*written)[step] = used.bytes;
    (*version)[step] = step;
    for (Step then = used.next; then != step && then != iteration_no_step && cycle_[then].use == Use::read;
         then = cycle_[then].next) {
      (*version)[then] = step;
    }
  }
  std::vector<std::int64_t> live(std::size_t{cycle_.back().group} + 1, 0);
  std::int64_t now = 0;
  for (Step step = 0; step < length; ++step) {
    std::int64_t& most = live[cycle_[step].group];
    if (cycle_[step].use == Use::free) {
      most = std::max(most, now);  // what is freed was there until then
    }
    now += change[step];
    most = std::max(most, now);
  }
  return live;
}

void IterationPolicy::make_plan(std::uint64_t limit, double write_cost) {
  const Step length = static_cast<Step>(cycle_.size());
  const std::uint32_t groups = cycle_.back().group + 1;
  std::vector<std::uint64_t> written;
  std::vector<Step> version;
  std::vector<std::int64_t> excess = find_live(&written, &version);
  for (std::uint64_t& bytes : written) {
    bytes = static_cast<std::uint64_t>(static_cast<double>(bytes) * write_cost);
  }
  std::vector<EvictionPlan::Gap> gaps;
  std::vector<Step> gap_step;
  for (Step step = 0; step < length; ++step) {
    cycle_[step].leaves = false;
    const Step next = cycle_[step].next;
    if (next == iteration_no_step) {
      continue;
    }
    const std::uint32_t begin = cycle_[step].group + 1;
    // A block that is freed without another use may be away in the group that frees it; but if that is soon, it is
    // probably part of an operation that is still under way.
    const bool dies = cycle_[next].use == Use::free;
    const std::uint32_t end = cycle_[next].group + (next > step ? 0 : groups) + (dies ? 1 : 0);
    const std::uint64_t shortest = std::max<std::uint64_t>(dies ? iteration_short_gap : 1, distances_.out_least);
    if (end < begin + shortest) {
      continue;
    }
    const std::uint64_t read = dies ? 0 : cycle_[step].bytes;
    gaps.push_back(EvictionPlan::Gap{begin % groups, end - begin, cycle_[step].bytes, read, version[step], false});
    gap_step.push_back(step);
  }
  for (std::int64_t& bytes : excess) {
    bytes -= static_cast<std::int64_t>(limit);
  }
  EvictionPlan::solve(&excess, written, &gaps, iteration_plan_work);
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    cycle_[gap_step[i]].leaves = gaps[i].chosen;
  }
  resident_.clear();
  for (const std::int64_t bytes : excess) {
    resident_.push_back(static_cast<std::uint64_t>(bytes + static_cast<std::int64_t>(limit)));
  }
  planned_ = true;
  planned_limit_ = limit;
  planned_write_cost_ = write_cost;
  openings_.clear();
  due_.clear();
  stays_.clear();
  knows_absent_ = false;
  std::vector<Span> spans;
  for (BlockId id = 0; id < tracks_.size(); ++id) {
    tracks_[id].stays = tracks_[id].fetched = false;
    const Span span = span_of(id);
    if (span.next != 0 && cycle_[span.last].leaves) {
      spans.push_back(span);
    }
  }
  const auto ahead = [this](const Span& span) {  // of the cursor, which comes to a step after all those before it
    return span.last >= cursor_ ? span.last - cursor_ : span.last + cycle_.size() - cursor_;
  };
  std::sort(spans.begin(), spans.end(), [&ahead](const Span& a, const Span& b) { return ahead(a) < ahead(b); });
  for (const Span& span : spans) {
    open(span);
  }
}

// The span in which the block is not used, as far as is foreseen; `next` is 0 when nothing is.
IterationPolicy::Span IterationPolicy::span_of(BlockId block) const {
  const Step last = block < tracks_.size() ? tracks_[block].last : iteration_no_step;
  const Step next = last != iteration_no_step ? cycle_[last].next : iteration_no_step;
  return Span{next != iteration_no_step ? position_of(next) : 0, block, last};
}

bool IterationPolicy::is_current(const Span& span) const {
  return tracks_[span.block].last == span.last && span.next > now_;
}

void IterationPolicy::push(std::vector<Span>* heap, const Span& span, SpanOrder order) {
  if (heap->size() > 2 * tracks_.size() + 64) {  // most are out of date
    heap->erase(std::remove_if(heap->begin(), heap->end(), [this](const Span& old) { return !is_current(old); }),
                heap->end());
    std::make_heap(heap->begin(), heap->end(), order);
  }
  heap->push_back(span);
  std::push_heap(heap->begin(), heap->end(), order);
}

// The block is resident although the plan has it away until its next use.
void IterationPolicy::stay(const Span& span, std::uint64_t bytes) {
  tracks_[span.block].stays = true;
  const Stay stay{span.next, bytes, span.block};
  stays_.insert(std::upper_bound(stays_.begin(), stays_.end(), stay,
                                 [](const Stay& a, const Stay& b) { return a.next < b.next; }),
                stay);
}

// From now on the plan lets the block go that was used at the span's beginning.
void IterationPolicy::open(const Span& span) {
  push(&openings_, span, later_last);
  if (due_.size() > 2 * tracks_.size() + 64) {
    due_.erase(std::remove_if(due_.begin(), due_.end(), [this](const Span& old) { return !is_current(old); }),
               due_.end());
  }
  due_.push_back(span);
}

// Whether the plan still lets the block go.
bool IterationPolicy::is_open(const Span& opening, const BlockSource& blocks) const {
  return is_current(opening) && !tracks_[opening.block].stays && opening.block < blocks.end();
}

// Of the blocks that the plan lets go and that can leave now, the one that is needed last.
BlockId IterationPolicy::next_open(const BlockSource& blocks) {
  BlockId found = no_block;
  held_.clear();
  while (!openings_.empty() && found == no_block) {
    const Span opening = openings_.front();
    std::pop_heap(openings_.begin(), openings_.end(), later_last);
    openings_.pop_back();
    if (!is_open(opening, blocks)) {
      continue;
    }
    const BlockState state = blocks.state(opening.block);
    if (state.away) {
      continue;
    }
    held_.push_back(opening);
    if (state.evictable) {
      found = opening.block;
    }
  }
  for (const Span& opening : held_) {
    push(&openings_, opening, later_last);
  }
  return found;
}

// Of the same blocks, but those only that have to leave some time before their next use, the one that was used first;
// the others stay.
BlockId IterationPolicy::next_due(const BlockSource& blocks) {
  BlockId found = no_block;
  held_.clear();
  while (!due_.empty() && found == no_block) {
    const Span opening = due_.front();
    due_.pop_front();
    if (!is_open(opening, blocks)) {
      continue;
    }
    const BlockState state = blocks.state(opening.block);
    if (state.away) {
      continue;
    }
    if (state.evictable && fits_until(opening.next, state.bytes)) {
      stay(opening, state.bytes);
      continue;
    }
    held_.push_back(opening);
    if (state.evictable) {
      found = opening.block;
    }
  }
  due_.insert(due_.begin(), held_.begin(), held_.end());
  return found;
}

// Belady's rule, weighed by what the eviction costs: for what the plan did not foresee.
void IterationPolicy::sort_candidates(const BlockSource& blocks) {
  candidates_.clear();
  next_candidate_ = 0;
  sorted_at_ = now_;
  const double length = static_cast<double>(cycle_.size());
  for (const BlockId id : blocks.present()) {
    const BlockState state = blocks.state(id);
    if (!state.evictable) {
      continue;
    }
    const Step last = id < tracks_.size() ? tracks_[id].last : iteration_no_step;
    double distance = length;
    double cost = state.clean ? 1 : 1 + planned_write_cost_;
    if (last != iteration_no_step) {
      const Step next = cycle_[last].next;
      distance = next == iteration_no_step ? 2 * length : static_cast<double>(position_of(next) - now_);
      if (next != iteration_no_step && cycle_[next].use == Use::free) {
        cost -= 1;
      }
    }
    candidates_.push_back(Candidate{distance / (cost + 0.01), id, last});
  }
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.block < b.block;
  });
}

BlockId IterationPolicy::farthest(const BlockSource& blocks) {
  for (bool sorted = false;; sorted = true) {
    if (sorted || sorted_at_ == 0 || now_ - sorted_at_ > iteration_fresh) {
      sort_candidates(blocks);
    }
    for (; next_candidate_ < candidates_.size(); ++next_candidate_) {
      const Candidate& candidate = candidates_[next_candidate_];
      const Step last = candidate.block < tracks_.size() ? tracks_[candidate.block].last : iteration_no_step;
      if (last == candidate.last && candidate.block < blocks.end() && blocks.state(candidate.block).evictable) {
        return candidate.block;
      }
    }
    if (sorted) {
      return no_block;
    }
  }
}

BlockId IterationPolicy::victim(const BlockSource& blocks, std::uint64_t bytes) {
  if (!following_) {
    knows_absent_ = false;
    return lru_.victim(blocks, bytes);
  }
  ensure_plan(blocks);
  BlockId id = planned_ ? next_open(blocks) : no_block;
  if (id == no_block) {
    id = farthest(blocks);
  }
  if (id != no_block) {
    leave(id);
  }
  return id;
}

BlockId IterationPolicy::early_victim(const BlockSource& blocks) {
  if (!following_ || !distances_.early_out) {
    return no_block;
  }
  ensure_plan(blocks);
  if (!planned_) {
    return no_block;
  }
  const BlockId id = next_due(blocks);
  if (id != no_block) {
    leave(id);
  }
  return id;
}

void IterationPolicy::leave(BlockId id) {
  const Span span = span_of(id);
  if (span.next == 0) {
    return;
  }
  if (tracks_[id].fetched) {
    // There was no room for it after all: half of the time from now on it stays away, so that this comes to an end.
    tracks_[id].fetched = false;
    tracks_[id].rests = now_ + (span.next - now_ + 1) / 2;
  }
  if (tracks_[id].stays) {
    tracks_[id].stays = false;
    stays_.erase(std::remove_if(stays_.begin(), stays_.end(), [id](const Stay& stay) { return stay.block == id; }),
                 stays_.end());
  }
  if (iteration_is_use(cycle_[cycle_[span.last].next].use)) {
    push(&absent_, span, sooner_last);
  }
}

// The most bytes that are resident under the plan in the steps from `begin` up to before `end`.
std::uint64_t IterationPolicy::most_resident(Step begin, Step end) const {
  std::uint64_t most = 0;
  const std::uint32_t last = cycle_[end == 0 ? cycle_.size() - 1 : end - 1].group;
  for (std::uint32_t group = cycle_[begin].group;; ++group) {
    if (group == resident_.size()) {
      group = 0;
    }
    most = std::max(most, resident_[group]);
    if (group == last) {
      return most;
    }
  }
}

// Whether a block that the plan has away until `next` may be resident from now on, next to all that is planned and all
// that stays besides.
bool IterationPolicy::fits_until(Position next, std::uint64_t bytes) {
  while (!stays_.empty() && stays_.front().next <= now_) {
    stays_.pop_front();
  }
  std::uint64_t extra = bytes;
  for (const Stay& stay : stays_) {
    extra += stay.bytes;
  }
  Position from = now_ + 1;
  for (const Stay& stay : stays_) {
    const Position to = std::min(stay.next, next);
    if (to > from && most_resident(step_at(from), step_at(to)) + extra > planned_limit_) {
      return false;
    }
    from = std::max(from, to);
    extra -= stay.bytes;
  }
  return next <= from || most_resident(step_at(from), step_at(next)) + extra <= planned_limit_;
}

// Up to the one that comes at that position.
std::uint64_t IterationPolicy::operations_until(Position next) const {
  const Step step = step_at(next);
  const std::uint64_t wrapped = step < cursor_ ? std::uint64_t{cycle_.back().group} + 1 : 0;
  return wrapped + cycle_[step].group - cycle_[cursor_].group;
}

BlockId IterationPolicy::prefetch(const BlockSource& blocks) {
  if (!following_ || distances_.in_most == 0) {
    return no_block;
  }
  ensure_plan(blocks);
  if (!planned_) {
    return no_block;
  }
  if (!knows_absent_) {
    find_absent(blocks);
  }
  BlockId found = no_block;
  held_.clear();
  while (!absent_.empty() && found == no_block) {
    const Span span = absent_.front();
    std::pop_heap(absent_.begin(), absent_.end(), sooner_last);
    absent_.pop_back();
    if (!is_current(span) || span.block >= blocks.end()) {
      continue;
    }
    const BlockState state = blocks.state(span.block);
    const bool planned = cycle_[span.last].leaves;
    if (!state.away && tracks_[span.block].fetched) {
      if (planned && !tracks_[span.block].stays) {
        stay(span, state.bytes);
      }
      continue;
    }
    held_.push_back(span);
    if (!state.away || now_ < tracks_[span.block].rests) {
      continue;  // on its way out, or back in vain
    }
    const std::uint64_t ahead = operations_until(span.next);
    if (ahead > distances_.in_most) {
      break;
    }
    if (planned && (distances_.in_least == 0 || ahead > distances_.in_least) && !fits_until(span.next, state.bytes)) {
      break;
    }
    tracks_[span.block].fetched = true;
    found = span.block;
  }
  for (const Span& span : held_) {
    push(&absent_, span, sooner_last);
  }
  return found;
}

// Blocks may have left while the program was not followed.
void IterationPolicy::find_absent(const BlockSource& blocks) {
  absent_.clear();
  for (BlockId id = 0; id < tracks_.size() && id < blocks.end(); ++id) {
    const Span span = span_of(id);
    if (span.next == 0 || !iteration_is_use(cycle_[cycle_[span.last].next].use)) {
      continue;
    }
    if (blocks.state(id).away) {
      push(&absent_, span, sooner_last);
    }
  }
  knows_absent_ = true;
}

}  // namespace lms

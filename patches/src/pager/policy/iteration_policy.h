// Iteration-aware: training repeats itself, so the policy learns the sequence of uses in one iteration, follows the
// program along it, and decides with knowledge of the future.
//
// Learning needs no hint. Every use goes into a history. Where the last few uses, seen as (kind, bytes), occurred
// before, the distance to that place may be the length of an iteration. Of these candidates the one is adopted as the
// cycle before which most uses agree, provided that long-lived blocks appear in the same places and that as many bytes
// were freed as were allocated in between, which tells an iteration from the layers or time steps that repeat inside
// it. A block that lives shorter than an iteration is another one each time: a step of the cycle knows its block by the
// step at which it was used last.
//
// A plan (eviction_plan.h), made once for a cycle and a limit, says after which steps a block leaves. Blocks that the
// plan lets go leave ahead of need, those that were used first before the others: a device is done with them first.
// Where that is too late they are the victims, the one that is needed last before the others. They are brought back as
// soon as the plan leaves room for them.
//
// A use that is not the foreseen one is a departure: victims are the least recently used at once, until the last few
// uses match a place of the cycle again. A program that has kept to its cycle gets some time for that before another
// cycle is looked for. When it has come back, its last iteration becomes the cycle.
#ifndef LMS_ITERATION_POLICY_H
#define LMS_ITERATION_POLICY_H

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "lru_policy.h"
#include "policy.h"

namespace lms {

class IterationPolicy : public Policy {
 public:
  void note(const Event& event) override;
  BlockId victim(const BlockSource& blocks, std::uint64_t bytes) override;
  BlockId early_victim(const BlockSource& blocks) override;
  BlockId prefetch(const BlockSource& blocks) override;
  void set_distances(const Distances& distances) override {
    distances_ = distances;
    planned_ = false;
  }
  bool follows() const override { return following_; }
  std::uint64_t foreseen() const override { return foreseen_; }
  std::uint64_t departures() const override { return departures_; }

 private:
  using Position = std::uint64_t;  // of an event since the policy began, from 1; 0 means none
  using Step = std::uint32_t;  // of the cycle

  struct Record {  // an event of the history
    Event event;
    std::uint64_t gram;  // the last uses up to this one, a byte each
    Position before;  // where the same gram ended before
    std::uint64_t allocated;  // bytes since the history began
    std::uint64_t freed;
  };
  struct CycleStep {
    std::uint64_t bytes;
    Position followed;  // where the program came to it last
    Step next;  // where the same block is used next
    Step previous;  // where it was used before
    Step same_gram;  // the step before this one with the same gram
    std::uint32_t group;  // steps of one operation, about: what one of them uses stays until the last
    BlockId block;  // that lives through the whole cycle; no_block for others
    BlockId expected;  // the block that this step should use; no_block while unknown
    Use use;
    bool leaves;  // planned: the block is away until it is used next
  };
  struct Track {  // of a live block
    Position birth;  // 0: before the history began
    Step last;  // the step that used it last; no_step when unknown
    bool alive;
    bool fetched;  // chosen for prefetching since it was used last
    bool stays;  // listed in stays_
    Position rests;  // it left again, unused: not prefetched before that
  };
  struct Span {  // in which a block is not used
    Position next;  // its next use
    BlockId block;
    Step last;  // the step that used it last
  };
  struct Stay {  // a block that is resident although the plan has it away until its next use
    Position next;
    std::uint64_t bytes;
    BlockId block;
  };
  struct Candidate {
    double score;
    BlockId block;
    Step last;
  };
  struct Life {  // of a block, which the end of the cycle cuts
    std::uint64_t bytes;
    Position used;  // the predecessor's last use, an iteration later
    Step step;  // the last step of a block that lives on, or the first of one that died
  };
  struct Match {
    Position length;  // of the cycle; 0 for none
    Position uses;  // that agree
    bool same_block;  // a long-lived block was among them
  };

  // History.
  Record& record(Position position) { return history_[position & (history_.size() - 1)]; }
  Position& gram_head(std::uint64_t gram);
  Position oldest() const { return now_ < history_.size() ? 1 : now_ - history_.size() + 1; }
  Track& track(BlockId block);
  void remember(const Event& event);
  Match match(Position length);
  bool balanced(Position length);
  bool is_iteration(const Match& found);
  void learn();
  void renew();

  // Cycle.
  Step& step_head(std::uint64_t gram);
  Step after(Step step) const { return step + 1 == cycle_.size() ? 0 : step + 1; }
  Position position_of(Step step) const;
  Step step_at(Position position) const;
  void adopt(Position length);
  void join_lives(Position begin);
  void find_lives(Position begin, std::vector<Life>* heads, std::vector<Life>* tails);
  void match_lives(bool exact, std::vector<Life>* heads, std::vector<Life>* tails);
  void form_groups();
  static BlockId due_at(const CycleStep& step) { return step.block != no_block ? step.block : step.expected; }
  bool is_fixed(BlockId block);
  bool follow(const Event& event);
  void bind(BlockId block, Step step);
  void exchange(BlockId block);
  void forget(BlockId block);
  void unbind(BlockId block);
  Position patience() const;
  bool gave_up() const;
  bool rejoin();
  template <typename Serves>
  Step best_end(Position least, Serves serves);
  void rejoin_after(Step step);
  void skip(Step begin, Step end);
  void take_back(Step begin, Step end);

  // Plan.
  void ensure_plan(const BlockSource& blocks);
  std::vector<std::int64_t> find_live(std::vector<std::uint64_t>* written, std::vector<Step>* version) const;
  void make_plan(std::uint64_t limit, double write_cost);
  using SpanOrder = bool (*)(const Span&, const Span&);
  static bool later_last(const Span& a, const Span& b) {  // a heap with the latest next use on top
    return a.next != b.next ? a.next < b.next : a.block < b.block;
  }
  static bool sooner_last(const Span& a, const Span& b) {  // with the soonest
    return a.next != b.next ? a.next > b.next : a.block > b.block;
  }
  Span span_of(BlockId block) const;
  bool is_current(const Span& span) const;
  void push(std::vector<Span>* heap, const Span& span, SpanOrder order);
  void open(const Span& span);
  void stay(const Span& span, std::uint64_t bytes);
  void leave(BlockId id);
  bool is_open(const Span& opening, const BlockSource& blocks) const;
  BlockId next_open(const BlockSource& blocks);
  BlockId next_due(const BlockSource& blocks);
  BlockId farthest(const BlockSource& blocks);
  void sort_candidates(const BlockSource& blocks);
  std::uint64_t operations_until(Position next) const;
  std::uint64_t most_resident(Step begin, Step end) const;
  bool fits_until(Position next, std::uint64_t bytes);
  void find_absent(const BlockSource& blocks);

  std::vector<Record> history_;  // ring; its size is a power of two
  std::vector<Position> gram_heads_;  // by hash: where that gram ended last
  Position now_ = 0;  // position of the last event
  std::uint64_t gram_ = 0;  // of the last event
  std::int64_t credit_ = 0;  // elementary operations that may go into learning now
  std::vector<Track> tracks_;  // by block

  std::vector<CycleStep> cycle_;
  std::vector<Step> ends_;  // of the last gram in the cycle, during a search
  std::vector<Step> step_heads_;  // by hash: the last step of the cycle with that gram
  Step cursor_ = 0;  // the step that is foreseen next, or where the program departed
  bool following_ = false;
  unsigned strikes_ = 0;  // uses by another block than expected, forgiven one by one
  Position joined_ = 0;  // where following began
  Position departed_ = 0;  // where it ended
  Position lost_ = 0;  // the same, after having followed for some time
  Position adopted_ = 0;  // where the cycle was adopted, or renewed
  Position renew_at_ = 0;  // not before
  Position followed_ = 0;  // where the last step was followed before
  std::uint64_t foreseen_before_ = 0;  // before the cycle was learned

  bool relinked_ = false;  // the plan rests on successions that turned out otherwise

  bool planned_ = false;
  std::uint64_t planned_limit_ = 0;
  double planned_write_cost_ = 1;
  std::vector<std::uint64_t> resident_;  // by group: bytes resident under the plan, at most
  std::vector<Span> openings_;  // a heap of what the plan lets go; entries may be out of date
  std::deque<Span> due_;  // the same in the order of last use
  std::vector<Span> absent_;  // a heap of what has left and is used again; entries may be out of date
  bool knows_absent_ = false;  // absent_ is complete
  std::deque<Stay> stays_;  // by next use
  std::vector<Span> held_;  // taken off a heap during a search

  std::vector<Candidate> candidates_;  // without an opening: best first
  std::size_t next_candidate_ = 0;
  Position sorted_at_ = 0;

  Distances distances_;
  LruPolicy lru_;
  std::uint64_t foreseen_ = 0;
  std::uint64_t departures_ = 0;
};

}  // namespace lms
#endif  // LMS_ITERATION_POLICY_H

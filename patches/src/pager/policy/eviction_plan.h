// Which blocks are away when, in an iteration that repeats itself: the cheapest choice of gaps such that what is
// resident fits the limit at every moment.
//
// A gap is a span in which a block is not used. Evicting a block in a gap costs its bytes in, if it is used again
// afterwards, and its bytes out, unless its contents were written out in an earlier gap already. Choosing gaps that
// cover the excess over the limit is a covering problem. It is solved greedily: at the moment of the largest excess,
// take the gap that brings most per byte moved, where a gap brings what it takes off that excess, times the number of
// moments with an excess that it spans; at the end, drop what turned out to be unnecessary. Of gaps that bring the same
// the longest is taken: outside of the moments with an excess there is time to copy, out and in beside each other.
#ifndef LMS_EVICTION_PLAN_H
#define LMS_EVICTION_PLAN_H

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lms {

class EvictionPlan {
 public:
  struct Gap {
    std::uint32_t begin;  // its first moment
    std::uint32_t length;  // in moments; it goes on at moment 0 after the last one
    std::uint64_t bytes;  // of the block
    std::uint64_t read;  // bytes that its end costs
    std::uint32_t version;  // of the contents
    bool chosen;
  };

  // Sets `chosen` in every gap. excess: by moment, the bytes over the limit while nothing is away; afterwards those
  // that remain (positive where no choice of gaps would do). written: by version, what its first eviction costs, in
  // bytes read. work: about how many elementary operations to spend on choosing well.
  static void solve(std::vector<std::int64_t>* excess, const std::vector<std::uint64_t>& written,
                    std::vector<Gap>* gaps, std::uint64_t work) {
    std::vector<Gap> best;
    std::vector<std::int64_t> best_excess;
    std::uint64_t best_cost = 0;
    // How much the length of a gap should count differs from program to program.
    for (const double power : {1.0, 0.5, 2.0}) {
      std::vector<Gap> trial(*gaps);
      std::vector<std::int64_t> left(*excess);
      EvictionPlan plan(&left, written, &trial, power);
      const bool in_time = plan.choose(work / 3);
      plan.drop_unnecessary();
      const std::uint64_t cost = plan.cost();
      if (best_excess.empty() || cost < best_cost) {
        best.swap(trial);
        best_excess.swap(left);
        best_cost = cost;
      }
      if (!in_time) {
        break;  // a large program: one plan has to do
      }
    }
    gaps->swap(best);
    excess->swap(best_excess);
  }

 private:
  static constexpr double length_weight = 1.0 / 16;  // what a gap as long as the iteration gains by its length
  static constexpr std::uint64_t scored_work = 16;  // elementary operations for a score, about

  struct Scored {
    double score;
    std::size_t gap;
  };
  struct Excess {
    std::int64_t bytes;
    std::size_t moment;

    bool operator<(const Excess& other) const {  // the largest on top of a heap, of equals the first
      return bytes != other.bytes ? bytes < other.bytes : moment > other.moment;
    }
  };

  // How many of a set of moments come before one: a binary indexed tree (Fenwick 1994).
  class Counts {
   public:
    explicit Counts(std::size_t moments) : sums_(moments + 1, 0) {}

    void add(std::size_t moment, std::int32_t count) {
      for (std::size_t i = moment + 1; i < sums_.size(); i += i & (~i + 1)) {
        sums_[i] += count;
      }
    }
    std::int32_t before(std::size_t moment) const {
      std::int32_t count = 0;
      for (std::size_t i = moment; i > 0; i &= i - 1) {
        count += sums_[i];
      }
      return count;
    }

   private:
    std::vector<std::int32_t> sums_;
  };

  EvictionPlan(std::vector<std::int64_t>* excess, const std::vector<std::uint64_t>& written, std::vector<Gap>* gaps,
               double power)
      : excess_(*excess),
        written_(written),
        gaps_(*gaps),
        power_(power),
        unpaid_(written),
        open_(excess->size(), false),
        counts_(excess->size()) {}

  std::size_t moments() const { return excess_.size(); }

  bool spans(const Gap& gap, std::size_t moment) const {
    const std::size_t offset = moment >= gap.begin ? moment - gap.begin : moment + moments() - gap.begin;
    return offset < gap.length;
  }

  template <typename Action>
  void for_each_moment(const Gap& gap, Action action) {
    const std::size_t end = std::size_t{gap.begin} + gap.length;
    for (std::size_t i = gap.begin; i < std::min(end, moments()); ++i) {
      action(&excess_[i]);
    }
    for (std::size_t i = 0; i + moments() < end; ++i) {
      action(&excess_[i]);
    }
  }

  // Moments next to each other share a list of the gaps that span some of them.
  static constexpr std::size_t part_moments = 64;

  std::vector<std::vector<std::size_t>> gaps_by_part() const {
    std::vector<std::vector<std::size_t>> parts(moments() / part_moments + 1);
    for (std::size_t index = 0; index < gaps_.size(); ++index) {
      const std::size_t first = gaps_[index].begin / part_moments;
      const std::size_t end = std::size_t{gaps_[index].begin} + gaps_[index].length;
      for (std::size_t part = first; part * part_moments < std::min(end, moments()); ++part) {
        parts[part].push_back(index);
      }
      for (std::size_t part = 0; part < first && part * part_moments + moments() < end; ++part) {
        parts[part].push_back(index);
      }
    }
    return parts;
  }

  void take(std::size_t index) {
    Gap& gap = gaps_[index];
    gap.chosen = true;
    unpaid_[gap.version] = 0;
    const std::int64_t bytes = static_cast<std::int64_t>(gap.bytes);
    for_each_moment(gap, [&](std::int64_t* excess) {
      *excess -= bytes;
      if (*excess <= 0) {
        close(static_cast<std::size_t>(excess - excess_.data()));
      }
    });
  }

  // Nothing is to be done, or can be, about the excess of a moment.
  void close(std::size_t moment) {
    if (open_[moment]) {
      open_[moment] = false;
      counts_.add(moment, -1);
    }
  }

  double score(const Gap& gap, std::int64_t worst) const {
    const std::size_t end = std::size_t{gap.begin} + gap.length;
    std::int32_t helped = counts_.before(std::min(end, moments())) - counts_.before(gap.begin);
    if (end > moments()) {
      helped += counts_.before(end - moments());
    }
    const double taken = static_cast<double>(std::min(static_cast<std::int64_t>(gap.bytes), worst));
    const double spanned = power_ == 1.0 ? helped : std::pow(helped, power_);
    const double longer = 1 + length_weight * gap.length / static_cast<double>(moments());
    return spanned * longer * taken / static_cast<double>(gap.read + unpaid_[gap.version] + 1);
  }

  // True when the work allowed was enough to score the gaps anew after every choice.
  bool choose(std::uint64_t work) {
    std::uint64_t spent = 0;
    std::vector<Scored> scored;
    std::vector<Excess> heap;
    for (std::size_t moment = 0; moment < moments(); ++moment) {
      if (excess_[moment] > 0) {
        open_[moment] = true;
        counts_.add(moment, 1);
        heap.push_back(Excess{excess_[moment], moment});
      }
    }
    std::make_heap(heap.begin(), heap.end());
    for (Gap& gap : gaps_) {
      gap.chosen = false;
    }
    const std::vector<std::vector<std::size_t>> parts = gaps_by_part();
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end());
      const Excess worst = heap.back();
      heap.pop_back();
      if (!open_[worst.moment]) {
        continue;
      }
      if (excess_[worst.moment] == worst.bytes) {
        const std::vector<std::size_t>& near = parts[worst.moment / part_moments];
        scored.clear();
        for (const std::size_t index : near) {
          if (!gaps_[index].chosen && spans(gaps_[index], worst.moment)) {
            scored.push_back(Scored{score(gaps_[index], worst.bytes), index});
          }
        }
        spent += near.size() + scored_work * scored.size();
        if (scored.empty()) {
          close(worst.moment);
          continue;
        }
        spent += take_best(&scored, worst.moment, spent < work);
      }
      // Excesses only get smaller, so one that is out of date comes too early, never too late.
      heap.push_back(Excess{excess_[worst.moment], worst.moment});
      std::push_heap(heap.begin(), heap.end());
    }
    return spent < work;
  }

  // Takes the best, or, to save work, the best in order until the moment is covered. Returns the work.
  std::uint64_t take_best(std::vector<Scored>* scored, std::size_t moment, bool only_one) {
    const auto better = [](const Scored& a, const Scored& b) {
      return a.score != b.score ? a.score > b.score : a.gap < b.gap;
    };
    if (only_one) {
      const std::size_t best = std::min_element(scored->begin(), scored->end(), better)->gap;
      take(best);
      return gaps_[best].length;
    }
    std::sort(scored->begin(), scored->end(), better);
    for (const Scored& next : *scored) {
      if (excess_[moment] <= 0) {
        break;
      }
      take(next.gap);
    }
    return 0;  // it is past the allowance anyway
  }

  std::uint64_t cost() const {
    std::vector<bool> paid(written_.size(), false);
    std::uint64_t bytes = 0;
    for (const Gap& gap : gaps_) {
      if (!gap.chosen) {
        continue;
      }
      bytes += gap.read + (paid[gap.version] ? 0 : written_[gap.version]);
      paid[gap.version] = true;
    }
    return bytes;
  }

  void drop_unnecessary() {
    std::vector<std::size_t> chosen;
    for (std::size_t i = 0; i < gaps_.size(); ++i) {
      if (gaps_[i].chosen) {
        chosen.push_back(i);
      }
    }
    std::sort(chosen.begin(), chosen.end(), [this](std::size_t a, std::size_t b) {
      const std::uint64_t cost_a = gaps_[a].read + written_[gaps_[a].version];
      const std::uint64_t cost_b = gaps_[b].read + written_[gaps_[b].version];
      return cost_a != cost_b ? cost_a > cost_b : a < b;
    });
    for (const std::size_t index : chosen) {
      Gap& gap = gaps_[index];
      const std::int64_t bytes = static_cast<std::int64_t>(gap.bytes);
      bool needed = false;
      for_each_moment(gap, [&](const std::int64_t* excess) { needed = needed || *excess + bytes > 0; });
      if (needed) {
        continue;
      }
      gap.chosen = false;
      for_each_moment(gap, [bytes](std::int64_t* excess) { *excess += bytes; });
    }
  }

  std::vector<std::int64_t>& excess_;
  const std::vector<std::uint64_t>& written_;
  std::vector<Gap>& gaps_;
  const double power_;  // of a gap's length in its score
  std::vector<std::uint64_t> unpaid_;  // written_, 0 once a gap of that version is chosen
  std::vector<bool> open_;  // by moment: there is an excess, and a gap may help
  Counts counts_;  // of those moments
};

}  // namespace lms
#endif  // LMS_EVICTION_PLAN_H

// Sharers of one budget, without pagers: what they do in any order, one step at a time.
#include <signal.h>

#include <algorithm>
#include <memory>

#include "check.h"
#include "processes.h"
#include "share/bell.h"
#include "share/sharer.h"

using check::mib;
using check::Random;
using lms::fair_shares;
using lms::Sharer;
using lms::ShareTerms;
using lms::Standing;

namespace {

constexpr std::uint64_t budget = 100 * mib;

// A sharer, and what its pager would hold. It needs `demand`, takes memory in pieces, and pages out at once.
class Member {
 public:
  Member(std::uint64_t demand, const ShareTerms& terms)
      : demand(demand), claim_{terms.weight, terms.minimum, terms.priority, demand} {
    lms::Status status;
    sharer_ = Sharer::join(check::meeting_point(), "cpu", terms, budget, standing(), &status);
    if (sharer_ == nullptr) {
      CHECK_FAIL("join: %s", status.message.c_str());
    }
  }

  // Asks for a piece more, if it could use one. It then waits: each further step is a look whether it has it.
  void ask(std::uint64_t piece) {
    const std::uint64_t total = std::min(demand, held + piece);
    if (sharer_->take(total, standing())) {
      held = total;
    } else if (!sharer_->expects(0)) {
      sharer_->give_up();
    }
  }

  // Gives a part of what it owes, as its thread does when it is rung or looks by itself.
  void serve() {
    const std::uint64_t owed = sharer_->owed(standing());
    if (owed > 0) {
      const std::uint64_t has = std::max(sharer_->allowed(), held);
      const std::uint64_t goal = has - std::min(owed, 3 * mib);
      held = std::min(held, goal);
      sharer_->lower(goal, standing(), true);
    }
  }

  std::uint64_t has() const { return std::max(sharer_->allowed(), held); }
  lms::Claim claim() const {
    lms::Claim claim = claim_;
    claim.demand = demand;
    return claim;
  }

  std::uint64_t demand;
  std::uint64_t held = 0;

 private:
  Standing standing() const {
    Standing now;
    now.held = held;
    now.demand = demand;
    return now;
  }

  lms::Claim claim_;
  std::unique_ptr<Sharer> sharer_;
};

using Members = std::vector<std::unique_ptr<Member>>;

std::uint64_t total(const Members& members) {
  std::uint64_t sum = 0;
  for (const auto& member : members) {
    sum += member->has();
  }
  return sum;
}

std::unique_ptr<Member> make(Random* random, std::uint64_t* minima) {
  ShareTerms terms;
  terms.name = "steps";
  terms.weight = static_cast<double>(1 + random->below(4));
  terms.minimum = random->chance(30) ? random->below((budget - *minima) / 2 + 1) : 0;
  terms.priority = static_cast<std::int64_t>(random->below(2));
  *minima += terms.minimum;
  return std::make_unique<Member>(random->below(2 * budget), terms);
}

// Everyone has its share, or could not use it.
bool settled(const Members& members) {
  std::vector<lms::Claim> claims;
  for (const auto& member : members) {
    claims.push_back(member->claim());
  }
  const std::vector<std::uint64_t> shares = fair_shares(budget, claims);
  for (std::size_t index = 0; index < members.size(); ++index) {
    if (members[index]->has() + 64 < shares[index]) {  // bytes that are lost to rounding
      return false;
    }
  }
  return true;
}

}  // namespace

CASE(any_order_of_steps_ends_in_fair_shares) {
  Random random(check::seed());
  for (std::uint64_t round = 0; round < check::steps(400); ++round) {
    Members members;
    std::uint64_t minima = 0;
    for (std::uint64_t count = 2 + random.below(3); count > 0; --count) {
      members.push_back(make(&random, &minima));
    }
    // Needs change, some ask, some give, in any order; at no moment do they have more than there is.
    for (std::uint64_t step = 0; step < 100; ++step) {
      Member& member = *members[random.below(members.size())];
      const std::uint64_t what = random.below(10);
      if (what == 0) {
        member.demand = random.below(2 * budget);
        member.held = std::min(member.held, member.demand);
      } else if (what < 6) {
        member.ask(random.below(20 * mib));
      } else {
        member.serve();
      }
      CHECK(total(members) <= budget);
    }
    // From now on needs stay, and all go on, each in its turn but in an order that differs: it settles soon.
    std::uint64_t turns = 0;
    for (; !settled(members); ++turns) {
      std::vector<std::size_t> order;
      for (std::size_t index = 0; index < 2 * members.size(); ++index) {
        order.insert(order.begin() + static_cast<std::ptrdiff_t>(random.below(order.size() + 1)), index);
      }
      for (const std::size_t index : order) {
        Member& member = *members[index / 2];
        index % 2 == 0 ? member.ask(5 * mib) : member.serve();
        CHECK(total(members) <= budget);
      }
      CHECK(turns < 200);
    }
  }
}

CASE(two_that_ask_each_other) {
  // All orders of four steps of each, from every division of the budget: one always has its share in the end, whoever
  // asks first, and nobody waits for somebody who waits.
  ShareTerms terms;
  terms.name = "two";
  for (std::uint64_t first = 0; first <= budget; first += 25 * mib) {
    for (unsigned order = 0; order < 256; ++order) {
      Members members;
      for (int who = 0; who < 2; ++who) {
        members.push_back(std::make_unique<Member>(budget, terms));
        members.back()->demand = who == 0 ? first : budget - first;
        members.back()->ask(budget);
        members.back()->demand = budget;
      }
      for (unsigned step = 0; step < 8; ++step) {
        Member& member = *members[order >> step & 1];
        step % 2 == 0 ? member.ask(60 * mib) : member.serve();
        CHECK(total(members) <= budget);
      }
      std::uint64_t turns = 0;
      for (; !settled(members); ++turns) {
        for (const auto& member : members) {
          member->ask(10 * mib);
        }
        for (const auto& member : members) {
          member->serve();
        }
        CHECK(total(members) <= budget);
        CHECK(turns < 100);
      }
    }
  }
}

CASE(who_leaves_leaves_its_share) {
  Random random(check::seed());
  Members members;
  std::uint64_t minima = 0;
  for (std::uint64_t step = 0; step < check::steps(20000); ++step) {
    const std::uint64_t what = random.below(100);
    if (what < 3 && members.size() < 6) {
      minima = budget;  // none may have one
      members.push_back(make(&random, &minima));
    } else if (what < 5 && !members.empty()) {
      members.erase(members.begin() + static_cast<std::ptrdiff_t>(random.below(members.size())));
    } else if (!members.empty()) {
      Member& member = *members[random.below(members.size())];
      what % 2 == 0 ? member.ask(random.below(20 * mib)) : member.serve();
    }
    CHECK(total(members) <= budget);
  }
  members.clear();
  members.push_back(make(&random, &minima));
  members.back()->demand = budget;
  members.back()->ask(budget);
  CHECK_EQ(members.back()->held, budget);
}

// As when a sharer is killed while another rings: nobody reads any more what is about to be written.
CASE(a_bell_that_is_closed_as_it_is_rung_kills_nobody) {
  const std::string path = check::directory() + "/bell";
  const pid_t ringer = check::process([&path] {
    signal(SIGPIPE, SIG_DFL);  // Python ignores it
    while (check::board()->phase.load() == 0) {
      lms::Bell::ring(path, ShareTerms());
      check::board()->steps[0].fetch_add(1);
    }
  });
  for (std::uint64_t count = check::steps(50000); count > 0; --count) {
    CHECK(lms::Bell::make(path, ShareTerms()) != nullptr);  // and closed at once
  }
  check::board()->phase.store(1);
  check::expect_success(ringer);
  CHECK(check::board()->steps[0].load() > 0);
}

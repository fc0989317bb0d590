// One process's part in a budget that it shares: how much it may hold, what it may take, whom it may ask for more, and
// what it owes to others. Sizes are in bytes.
//
// All sharers compute the same shares from the same ledger (fair_shares.h). One takes what is free and nobody has a
// better claim to. Where it holds less than its share somebody holds more: it rings, and the other pages out and lowers
// what it may hold. Nobody has to: who does not answer is not waited for again until it shows a sign of life.
//
// Not thread-safe; the pager's lock guards it.
#ifndef LMS_SHARER_H
#define LMS_SHARER_H

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../status.h"
#include "fair_shares.h"
#include "ledger.h"
#include "share_terms.h"

namespace lms {

// What the pager says of itself.
struct Standing {
  std::uint64_t held = 0;  // of the device's memory
  std::uint64_t demand = 0;  // what it could use
  std::uint64_t resident = 0;
  std::uint64_t allocated = 0;
  std::uint64_t away = 0;
  std::uint64_t in_bytes = 0;
  std::uint64_t out_bytes = 0;
  std::uint64_t wait_ns = 0;
  std::uint64_t page = 0;
};

class Sharer {
 public:
  // A budget that follows what the device has.
  static constexpr std::uint64_t automatic = UINT64_MAX;

  // Joins the budget of that name for the device (Backend::identity). `bytes`: the budget, or `automatic`; then
  // set_free has to follow. LMS_INVALID_ARGUMENT: others share a budget of another size by that name, or the minima of
  // all are more than it. Ledger::join says what else there is.
  // `directory`: of the meeting point.
  static std::unique_ptr<Sharer> join(const std::string& directory, const std::string& device, const ShareTerms& terms,
                                      std::uint64_t bytes, const Standing& standing, Status* status);

  // Gives everything up.
  ~Sharer();
  Sharer(const Sharer&) = delete;
  Sharer& operator=(const Sharer&) = delete;

  std::uint64_t allowed() const { return record_.allowed; }
  std::uint64_t minimum() const { return record_.minimum; }
  std::uint64_t budget() const { return budget_.bytes; }
  std::uint64_t others() const { return others_; }  // how many there were at the last look

  // Takes what it may, so that `total` may be held. True when it may now. Rings whoever holds what it has a claim to.
  bool take(std::uint64_t total, const Standing& standing);

  // Whether somebody who was rung may still give something. `patience_ns`: how long one may take to answer.
  bool expects(std::uint64_t patience_ns);

  // Does not wait again for those who did not answer, until they show a sign of life.
  void give_up();

  // Who did not answer is asked again at the next take().
  void ask_anew();

  // Tells the others where it stands.
  void tell(const Standing& standing);

  // How much less it should hold now, since others have a claim to it. Tells the others where it stands, and that it is
  // giving if that is more than 0.
  std::uint64_t owed(const Standing& standing);

  // From now on it holds at most that much; others hear of it.
  void lower(std::uint64_t allowed, const Standing& standing, bool giving);

  // The device has so many bytes free now. Changes a budget that is automatic; changes nothing else.
  void set_free(std::uint64_t free, const Standing& standing);

  bool is_lost() const { return ledger_->is_lost(); }
  const std::shared_ptr<Bell>& bell() const { return ledger_->bell(); }

  // In a forked child.
  void forget() { ledger_->forget(); }

 private:
  // A look at the ledger, which stays locked while it lives. False when it could not be had.
  class Look {
   public:
    Look(Sharer* sharer, const Standing& standing);
    Look(const Look&) = delete;
    Look& operator=(const Look&) = delete;
    ~Look();

    explicit operator bool() const { return locked_; }
    std::uint64_t mine() const { return shares.back(); }
    // By how much less a sharer has than its share.
    std::uint64_t lacks(std::size_t index) const;
    std::uint64_t has_over(std::size_t index) const;
    std::uint64_t lacked_by_others() const;
    std::uint64_t taken() const;  // that somebody holds or may hold

    std::vector<Ledger::Entry> entries;  // the others
    std::vector<std::uint64_t> shares;  // theirs, in the same order, and its own

   private:
    Sharer* sharer_;
    bool locked_;
  };

  // Whom it has rung, until what it lacks is there.
  struct Asked {
    std::uint64_t token = 0;
    std::uint64_t beat = 0;  // when it was rung
    std::uint64_t muted = 0;  // the beat at which it did not answer
    bool owes = false;
    bool giving = false;
    bool answered = false;
  };

  Sharer(std::unique_ptr<Ledger> ledger, const ShareTerms& terms, ShareBudget budget);
  void update(const Standing& standing);
  void ask(const Look& look, bool again);
  bool answers(const Ledger::Entry& entry) const;
  bool write() { return ledger_->write(record_); }

  std::unique_ptr<Ledger> ledger_;
  ShareBudget budget_;
  ShareRecord record_{};
  std::uint64_t others_ = 0;
  bool asking_ = false;
  std::uint64_t asked_at_ = 0;  // CLOCK_MONOTONIC, ns
  std::array<Asked, Ledger::most_sharers> asked_;
};

}  // namespace lms
#endif  // LMS_SHARER_H

#include "sharer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "meeting_point.h"
#include "monotonic.h"

namespace lms {

namespace {

// Who has shown no sign of life for so long is not waited for. Sharers look ten times as often.
constexpr std::uint64_t sharer_mute_ns = 500'000'000;
// Of a budget that follows the device, this part stays free for what is no managed tensor.
constexpr std::uint64_t sharer_spare_part = 20;
// Who needs more is likely to need a little more than that soon: a part of the budget, up to a bound. So programs that
// grow do not look into the ledger for every tensor, and who gives does not stop after each.
constexpr std::uint64_t sharer_step_part = 64;
constexpr std::uint64_t sharer_largest_step = 256 << 20;

std::uint64_t sharer_less(std::uint64_t a, std::uint64_t b) { return a - std::min(a, b); }

std::uint64_t sharer_has(const ShareRecord& record) { return std::max(record.allowed, record.held); }

std::array<char, 32> sharer_command() {
  std::array<char, 32> name{};
  const int file = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    const ssize_t bytes = read(file, name.data(), name.size() - 1);
    close(file);
    name[static_cast<std::size_t>(std::max<ssize_t>(bytes, 1) - 1)] = '\0';  // in place of the line's end
  }
  return name;
}

Status sharer_other_budget(const std::string& name, std::uint64_t theirs, std::uint64_t ours, std::uint64_t pid) {
  const auto text = [](std::uint64_t bytes) {
    return bytes == Sharer::automatic ? std::string("what the device has") : std::to_string(bytes) + " bytes";
  };
  return Status(LMS_INVALID_ARGUMENT, "share: '" + name + "' is a budget of " + text(theirs) +
                                          ", by the word of process " + std::to_string(pid) + ", and not of " +
                                          text(ours) + "; give the same limit, or another name");
}

}  // namespace

// ------------------------------------------------------------------------------------------------ a look

Sharer::Look::Look(Sharer* sharer, const Standing& standing) : sharer_(sharer), locked_(sharer->ledger_->lock()) {
  if (!locked_) {
    return;
  }
  entries = sharer->ledger_->others();
  if (sharer->budget_.automatic != 0) {  // any other is what this process was given, whatever the file says
    const ShareBudget budget = sharer->ledger_->budget();
    if (budget.bytes != 0 && budget.automatic != 0) {
      sharer->budget_ = budget;
    }
  }
  sharer->others_ = entries.size();
  sharer->update(standing);
  std::vector<Claim> claims;
  claims.reserve(entries.size() + 1);
  for (const Ledger::Entry& entry : entries) {
    claims.push_back(Claim{entry.record.weight, entry.record.minimum, entry.record.priority, entry.record.demand});
  }
  const ShareRecord& own = sharer->record_;
  claims.push_back(Claim{own.weight, own.minimum, own.priority, own.demand});
  shares = fair_shares(sharer->budget_.bytes, claims);
}

Sharer::Look::~Look() {
  if (locked_) {
    sharer_->ledger_->unlock();
  }
}

std::uint64_t Sharer::Look::lacks(std::size_t index) const {
  return sharer_less(shares[index], sharer_has(entries[index].record));
}

std::uint64_t Sharer::Look::has_over(std::size_t index) const {
  return sharer_less(sharer_has(entries[index].record), shares[index]);
}

std::uint64_t Sharer::Look::lacked_by_others() const {
  std::uint64_t sum = 0;
  for (std::size_t index = 0; index < entries.size(); ++index) {
    sum += lacks(index);
  }
  return sum;
}

std::uint64_t Sharer::Look::taken() const {
  std::uint64_t taken = sharer_has(sharer_->record_);
  for (const Ledger::Entry& entry : entries) {
    taken += sharer_has(entry.record);
  }
  return taken;
}

// ------------------------------------------------------------------------------------------------ joining

std::unique_ptr<Sharer> Sharer::join(const std::string& directory, const std::string& device, const ShareTerms& terms,
                                     std::uint64_t bytes, const Standing& standing, Status* status) {
  *status = meeting_point::prepare(directory, terms);
  if (!status->ok()) {
    return nullptr;
  }
  const std::string name = terms.name.empty() ? device : device + "-" + terms.name;
  std::unique_ptr<Ledger> ledger = Ledger::join(directory, name, terms, status);
  if (ledger == nullptr) {
    return nullptr;
  }
  const bool is_automatic = bytes == automatic;
  const std::vector<Ledger::Entry> others = ledger->others();
  for (const Ledger::Entry& entry : others) {
    if (entry.record.budget != bytes) {
      *status =
          sharer_other_budget(terms.name.empty() ? device : terms.name, entry.record.budget, bytes, entry.record.pid);
    }
  }
  ShareBudget budget = ledger->budget();
  if (!is_automatic || budget.automatic == 0 || others.empty()) {
    budget = ShareBudget{is_automatic ? 0 : bytes, is_automatic ? 1U : 0U};
  }
  std::uint64_t minima = terms.minimum;
  for (const Ledger::Entry& entry : others) {
    minima += std::min(entry.record.minimum, UINT64_MAX - minima);
  }
  if (status->ok() && (budget.automatic == 0 || budget.bytes != 0) && minima > budget.bytes) {
    *status = Status(LMS_INVALID_ARGUMENT, "share: the minima of all processes are " + std::to_string(minima) +
                                               " bytes, more than the budget of " + std::to_string(budget.bytes) +
                                               "; give a smaller minimum");
  }
  if (status->ok() && !ledger->write(budget)) {
    *status = Status(LMS_STORE_FAILED,
                     "the ledger of a shared budget cannot be written: " + std::string(std::strerror(errno)));
  }
  if (!status->ok()) {
    ledger->remove_if_last();
    return nullptr;
  }
  std::unique_ptr<Sharer> sharer(new Sharer(std::move(ledger), terms, budget));
  sharer->others_ = others.size();
  sharer->record_.budget = bytes;
  sharer->update(standing);
  sharer->write();
  sharer->ledger_->unlock();
  return sharer;
}

Sharer::Sharer(std::unique_ptr<Ledger> ledger, const ShareTerms& terms, ShareBudget budget)
    : ledger_(std::move(ledger)), budget_(budget) {
  record_.token = monotonic_ns() | 1;
  record_.pid = static_cast<std::uint64_t>(getpid());
  record_.weight = terms.weight;
  record_.minimum = terms.minimum;
  record_.priority = terms.priority;
  record_.command = sharer_command();
}

Sharer::~Sharer() {
  if (!ledger_->is_lost() && ledger_->lock()) {
    record_ = ShareRecord{};
    write();
    for (const Ledger::Entry& entry : ledger_->others()) {
      ledger_->ring(entry.place);  // there may be more for them
    }
    ledger_->remove_if_last();
    ledger_->unlock();
  }
}

// ------------------------------------------------------------------------------------------------ taking, asking

void Sharer::update(const Standing& standing) {
  record_.held = standing.held;
  record_.demand = standing.demand;
  record_.resident = standing.resident;
  record_.allocated = standing.allocated;
  record_.away = standing.away;
  record_.in_bytes = standing.in_bytes;
  record_.out_bytes = standing.out_bytes;
  record_.wait_ns = standing.wait_ns;
  record_.page = standing.page;
  record_.beat = monotonic_ns();
}

bool Sharer::take(std::uint64_t total, const Standing& standing) {
  if (total <= record_.allowed) {
    asking_ = false;
    return true;
  }
  Standing now = standing;
  now.demand = std::max(now.demand, total + std::min(budget_.bytes / sharer_step_part, sharer_largest_step));
  const Look look(this, now);
  if (!look) {
    return false;
  }
  const std::uint64_t free = sharer_less(budget_.bytes, look.taken() - sharer_less(record_.held, record_.allowed));
  const std::uint64_t claim = sharer_less(look.mine(), record_.allowed);
  const std::uint64_t unclaimed = sharer_less(free, look.lacked_by_others());
  const std::uint64_t wanted = sharer_less(now.demand, record_.allowed);
  record_.allowed += std::min({free, wanted, std::max(claim, unclaimed)});
  const bool enough = total <= record_.allowed;
  if (enough) {
    asking_ = false;
  } else {
    const bool again = asking_;
    asking_ = true;
    ask(look, again);
  }
  write();
  return enough;
}

bool Sharer::answers(const Ledger::Entry& entry) const {
  const Asked& asked = asked_[entry.place];
  return record_.beat - std::min(record_.beat, entry.record.beat) < sharer_mute_ns &&
         !(asked.token == entry.record.token && asked.muted == entry.record.beat);
}

// Rings those who have more than their share, once, and sees what they say.
void Sharer::ask(const Look& look, bool again) {
  if (!again) {
    asked_at_ = record_.beat;
  }
  for (Asked& asked : asked_) {
    asked.owes = false;
  }
  if (sharer_less(look.mine(), record_.allowed) == 0) {
    return;  // it has its share
  }
  for (std::size_t index = 0; index < look.entries.size(); ++index) {
    const Ledger::Entry& entry = look.entries[index];
    Asked& asked = asked_[entry.place];
    if (look.has_over(index) == 0 || !answers(entry)) {
      continue;
    }
    if (!again || asked.token != entry.record.token) {
      asked.token = entry.record.token;
      asked.beat = entry.record.beat;
      asked.muted = 0;
      ledger_->ring(entry.place);
    }
    asked.owes = true;
    asked.giving = entry.record.giving != 0;
    asked.answered = entry.record.beat != asked.beat;
  }
}

bool Sharer::expects(std::uint64_t patience_ns) {
  if (!asking_) {
    return false;
  }
  const bool patient = monotonic_ns() - asked_at_ < patience_ns;
  return std::any_of(asked_.begin(), asked_.end(), [patient](const Asked& asked) {
    return asked.owes && (asked.giving || (!asked.answered && patient));
  });
}

void Sharer::give_up() {
  for (Asked& asked : asked_) {
    if (asked.owes && !asked.answered) {
      asked.muted = asked.beat;
    }
  }
  asking_ = false;
}

void Sharer::ask_anew() {
  for (Asked& asked : asked_) {
    asked.muted = 0;
  }
  asking_ = false;
}

// ------------------------------------------------------------------------------------------------ giving

void Sharer::tell(const Standing& standing) {
  if (ledger_->lock()) {
    update(standing);
    write();
    ledger_->unlock();
  }
}

std::uint64_t Sharer::owed(const Standing& standing) {
  const Look look(this, standing);
  if (!look) {
    return 0;
  }
  const std::uint64_t over = sharer_less(sharer_has(record_), look.mine());
  // Also what all have too much, where the budget has become smaller.
  const std::uint64_t lacked = sharer_less(look.lacked_by_others() + look.taken(), budget_.bytes);
  std::uint64_t owed = 0;
  if (over > 0 && lacked > 0) {
    // Those who answer give in proportion to what they have too much.
    std::uint64_t all_over = over;
    for (std::size_t index = 0; index < look.entries.size(); ++index) {
      all_over += answers(look.entries[index]) ? look.has_over(index) : 0;
    }
    const double part = static_cast<double>(over) / static_cast<double>(all_over);
    owed = std::min({over, lacked, static_cast<std::uint64_t>(static_cast<double>(lacked) * part) + 1});
  }
  record_.giving = owed > 0 ? 1 : 0;
  write();
  return owed;
}

void Sharer::lower(std::uint64_t allowed, const Standing& standing, bool giving) {
  const Look look(this, standing);
  if (!look) {
    return;  // what the others do not know they do not take
  }
  record_.allowed = std::min(record_.allowed, allowed);
  record_.giving = giving ? 1 : 0;
  write();
}

void Sharer::set_free(std::uint64_t free, const Standing& standing) {
  if (budget_.automatic == 0) {
    return;
  }
  const Look look(this, standing);
  if (!look) {
    return;
  }
  std::uint64_t bytes = free + record_.held;
  for (const Ledger::Entry& entry : look.entries) {
    bytes += entry.record.held;
  }
  bytes -= bytes / sharer_spare_part;
  budget_ = ShareBudget{bytes, 1};
  ledger_->write(budget_);
  write();
}

}  // namespace lms

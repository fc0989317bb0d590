// Random operations against a trivial model: a map from address to the contents that the block should hold. Contents
// are compared in full whenever a block is pinned or touched; the promises about the limit and the statistics are
// checked as the operations go on. The four cases together make more than a million operations.
#include <algorithm>
#include <map>

#include "check.h"

namespace {

constexpr std::uint64_t page = CHECK_PAGE;
constexpr std::uint64_t live_most = 96;

// All statistics at one moment.
class Values {
 public:
  explicit Values(lms_pager* pager) { CHECK_EQ(lms_statistics(pager, values_, 128), indices().size()); }
  std::uint64_t operator[](const char* name) const {
    const auto found = indices().find(name);
    CHECK(found != indices().end());
    return values_[found->second];
  }

 private:
  struct Less {
    bool operator()(const char* left, const char* right) const { return std::strcmp(left, right) < 0; }
  };
  static const std::map<const char*, std::size_t, Less>& indices() {
    static const std::map<const char*, std::size_t, Less> all = [] {
      std::map<const char*, std::size_t, Less> result;
      for (std::size_t index = 0; lms_statistic_name(index) != nullptr; ++index) {
        result[lms_statistic_name(index)] = index;
      }
      return result;
    }();
    return all;
  }

  std::uint64_t values_[128];
};

struct ModelBlock {
  std::uint64_t bytes = 0;          // as requested; the pager rounds up to pages
  std::uint64_t whole = 0;          // whole pages
  std::uint64_t seed = 0;           // of the contents; meaningless while !written
  bool written = false;             // a new block holds anything
  bool seen = false;                // an operation had it
  std::map<std::uint64_t, std::uint64_t> words;  // single words that were written since
  unsigned pins = 0;
  std::uint64_t home = 0;           // the outermost operation that allocated it, or 0
  std::uint64_t scope = 0;          // the innermost, or 0
  std::uint64_t operation = 0;      // the last one that may have brought it back, to stay
};

struct Held {
  lms_pin_token token;
  char* address;
  std::uint64_t life;  // serial of the block, so that a token of a freed block is not taken for one of its successor
};

class Model {
 public:
  Model(const char* policy, bool file, std::uint64_t seed)
      : random_(seed), policy_(policy), directory_(check::directory()), file_(file) {
    limit_ = 64 * page;
    pager_ = check::create(settings());
  }

  void run(std::uint64_t steps) {
    // A run in which nothing moved would prove nothing, so a short one goes on until something has.
    for (std::uint64_t step = 0; step < steps || (step < 20 * steps && !moved()); ++step) {
      one();
      if (step % 8 == 0) {
        check_statistics();
      }
    }
    // Everything is still there at the end, and can be freed.
    check_statistics();
    CHECK_EQ(lms_restore_all(pager_), LMS_OK);
    for (auto& entry : blocks_) {
      check_contents(entry.first, entry.second);
    }
    while (!blocks_.empty()) {
      release(blocks_.begin()->first);
    }
    const Values values(pager_);
    CHECK_EQ(values["allocated_bytes.current"], 0);
    CHECK_EQ(values["resident_bytes.current"], 0);
    CHECK_EQ(values["store_bytes.current"], 0);
    lms_shutdown(pager_);
    CHECK_EQ(check::statistic(pager_, "device_bytes.current"), 0);
    std::printf(
        "%llu steps: %llu allocations, %llu pins, %llu raw, out %llu, in %llu, dropped %llu, faults %llu, "
        "cached %llu, over %llu, refused %llu\n",
        static_cast<unsigned long long>(steps), ull(allocations_), ull(pins_), ull(raw_), ull(values["out.blocks"]),
        ull(values["in.blocks"]), ull(values["clean_drop.blocks"]), ull(values["faults"]),
        ull(values["allocations.cached"]), ull(values["over_limit.requests"]), ull(refused_));
    CHECK(moved());
    if (steps >= 5000) {  // how often it happens varies in short runs
      CHECK(values["out.blocks"] > steps / 100 && values["in.blocks"] > steps / 100 && values["faults"] > steps / 200);
    }
    CHECK((refused_ > 0 && values["clean_drop.blocks"] > 0) || steps < 50000);  // rare, so a short run may miss them
  }

 private:
  bool moved() const {
    const Values values(pager_);
    return values["out.blocks"] > 0 && values["in.blocks"] > 0 && values["allocations.cached"] > 0;
  }

  static unsigned long long ull(std::uint64_t value) { return value; }

  lms_options settings() const {
    return check::options(limit_, policy_, file_ ? directory_.c_str() : nullptr, strict_, 16384 * page);
  }

  void one() {
    const std::uint64_t what = random_.below(1000);
    if (what < 150) {
      allocate();
    } else if (what < 270) {
      if (!blocks_.empty()) {
        release(any());
      }
    } else if (what < 480) {
      pin(false);
    } else if (what < 640) {
      pin(true);
    } else if (what < 760) {
      unpin();
    } else if (what < 820) {
      raw_read();
    } else if (what < 880) {
      raw_write();
    } else if (what < 890) {
      raw_copy();
    } else if (what < 920) {
      lms_scope_begin(pager_);
      operations_ += depth_++ == 0 ? 1 : 0;
      scopes_.push_back(++scopes_begun_);
    } else if (what < 955) {
      end_scope();
    } else if (what < 965) {
      reclaim();
    } else if (what < 980) {
      set_limit();
    } else if (what < 985) {
      lms_reset_peaks(pager_);
      const Values values(pager_);
      CHECK_EQ(values["allocated_bytes.peak"], values["allocated_bytes.current"]);
      CHECK_EQ(values["over_limit_bytes.peak"], 0);
    } else if (what < 990) {
      if (!blocks_.empty()) {
        char* address = any();
        lms_mark_seen(pager_, address + random_.below(blocks_[address].bytes));
        blocks_[address].seen = true;
      }
    } else if (what < 996) {
      check_ownership();
    } else if (what < 998) {
      configure();
    } else if (what < 999) {
      CHECK_EQ(lms_restore_all(pager_), LMS_OK);
      restored_ = true;
      for (auto& entry : blocks_) {  // those of the running operation came back during it
        if (depth_ > 0 && entry.second.home == operations_) {
          entry.second.operation = operations_;
        }
      }
      CHECK_EQ(check::statistic(pager_, "away_bytes.current"), 0);
      // What was clean is no more: a later raw write must not fault.
      CHECK_EQ(check::statistic(pager_, "clean_bytes.current"), 0);
    } else {
      lms_shutdown(pager_);
      CHECK_EQ(check::statistic(pager_, "cached_bytes.current"), 0);
      configure();
    }
  }

  char* any() {
    auto found = blocks_.begin();
    std::advance(found, random_.below(blocks_.size()));
    return found->first;
  }

  // A few sizes often, so that the cache serves them, and any size now and then.
  std::uint64_t any_size() {
    static constexpr std::uint64_t usual[] = {page, 3 * page, 4 * page, 16 * page, 17 * page};
    return random_.chance(80) ? usual[random_.below(5)] : 1 + random_.below(40 * page);
  }

  // Bytes that cannot leave, whatever the pager does: pinned by this program, not yet seen as a tensor, allocated by an
  // operation that runs, or within the innermost one unless the limit is strict, or brought back, perhaps, during the
  // outermost one.
  std::uint64_t must_stay() const {
    std::uint64_t bytes = 0;
    for (const auto& entry : blocks_) {
      if (entry.second.pins > 0 || !entry.second.seen || (depth_ > 0 && entry.second.operation == operations_) ||
          std::find(scopes_.begin(), scopes_.end(), entry.second.scope) != scopes_.end() ||
          (!strict_ && !scopes_.empty() && entry.second.scope > scopes_.back())) {
        bytes += entry.second.whole;
      }
    }
    return bytes;
  }

  // A request may pass the limit, or be refused, only when what must stay leaves no room for it.
  void check_refusal(std::uint64_t stays, std::uint64_t bytes) {
    CHECK(!restored_);
    if (stays + bytes <= limit_) {
      CHECK_FAIL("%llu bytes were refused or passed the limit %llu although only %llu must stay", ull(bytes),
                 ull(limit_), ull(stays));
    }
  }

  // Runs a request for memory; `stays` is what could not leave when it began.
  template <typename Request>
  lms_status request(std::uint64_t bytes, Request call) {
    const std::uint64_t stays = must_stay();
    const Values before(pager_);
    const lms_status status = call();
    const Values after(pager_);
    if (status == LMS_OUT_OF_MEMORY) {
      CHECK(strict_);
      CHECK(check::contains(lms_last_error(), "out of memory under the limit"));
      check_refusal(stays, bytes);
      ++refused_;
      return status;
    }
    CHECK_EQ(status, LMS_OK);
    if (after["over_limit.requests"] != before["over_limit.requests"]) {
      CHECK(!strict_);
      check_refusal(stays, bytes);
    }
    if (strict_ && !restored_ && after["device_bytes.current"] > before["device_bytes.current"]) {
      CHECK(after["device_bytes.current"] <= limit_);
    }
    return status;
  }

  void allocate() {
    if (blocks_.size() >= live_most) {
      release(any());
      return;
    }
    ModelBlock block;
    block.bytes = any_size();
    block.whole = (block.bytes + page - 1) / page * page;
    void* address = nullptr;
    if (request(block.whole, [&] { return lms_allocate(pager_, block.bytes, &address); }) != LMS_OK) {
      CHECK(address == nullptr);
      return;
    }
    ++allocations_;
    auto* start = static_cast<char*>(address);
    CHECK(reinterpret_cast<std::uintptr_t>(start) % page == 0);
    const auto next = blocks_.lower_bound(start);
    CHECK(next == blocks_.end() || start + block.whole <= next->first);
    CHECK(next == blocks_.begin() || std::prev(next)->first + std::prev(next)->second.whole <= start);
    lives_[start] = ++serial_;
    block.home = depth_ > 0 ? operations_ : 0;
    block.scope = scopes_.empty() ? 0 : scopes_.back();
    ModelBlock& placed = blocks_[start] = block;
    if (random_.chance(90)) {
      rewrite(start, &placed);
    }
  }

  void release(char* address) {
    for (auto held = held_.begin(); held != held_.end(); ++held) {
      // Now and then the token outlives the block, and is dropped in vain later.
      if (held->address == address && held->life == lives_[address] && random_.chance(50)) {
        lms_unpin(pager_, held->token);
        held_.erase(held);
        break;
      }
    }
    lms_free(pager_, address);
    CHECK(!lms_owns(pager_, address));
    blocks_.erase(address);
    if (random_.chance(5)) {
      lms_free(pager_, address);  // twice does no harm
    }
  }

  void rewrite(char* address, ModelBlock* block) {
    block->seed = random_.next();
    block->written = true;
    block->words.clear();
    check::fill(address, block->bytes / 8 * 8, block->seed);
  }

  // A full rewrite, or one word.
  void change(char* address, ModelBlock* block) {
    const std::uint64_t words = block->bytes / 8;
    if (!block->written || block->words.size() > 8 || words == 0 || random_.chance(30)) {
      rewrite(address, block);
      return;
    }
    const std::uint64_t word = random_.below(words);
    const std::uint64_t value = random_.next();
    check::store(address + word * 8, value);
    block->words[word] = value;
  }

  void check_contents(const char* address, const ModelBlock& block) {
    if (!block.written) {
      return;
    }
    const std::uint64_t words = block.bytes / 8;
    std::uint64_t from = 0;
    for (const auto& word : block.words) {
      check_range(address, block.seed, from, word.first);
      if (check::load(address + word.first * 8) != word.second) {
        CHECK_FAIL("block %p: the write of word %llu is lost", static_cast<const void*>(address), ull(word.first));
      }
      from = word.first + 1;
    }
    check_range(address, block.seed, from, words);
  }

  void check_range(const char* address, std::uint64_t seed, std::uint64_t from, std::uint64_t to) {
    const std::uint64_t bytes = (to - from) * 8;
    const std::uint64_t wrong = check::mismatch(address + from * 8, bytes, seed + from);
    if (wrong != to - from) {
      CHECK_FAIL("block %p: word %llu is wrong", static_cast<const void*>(address), ull(from + wrong));
    }
  }

  void pin(bool write) {
    if (blocks_.empty()) {
      return;
    }
    char* address = any();
    ModelBlock& block = blocks_[address];
    const void* inside = address + random_.below(block.bytes);
    lms_pin_token token = {};
    const bool counted = block.pins > 0 || !block.seen;
    const std::uint64_t more = counted ? 0 : block.whole;
    if (request(more, [&] { return lms_pin(pager_, inside, write ? 1 : 0, &token); }) != LMS_OK) {
      CHECK(token.block == nullptr);
      return;
    }
    CHECK(token.block != nullptr);
    ++pins_;
    block.seen = true;
    ++block.pins;
    if (depth_ > 0 && block.home == operations_) {
      block.operation = operations_;
    }
    held_.push_back(Held{token, address, lives_[address]});
    check_contents(address, block);
    if (write) {
      const std::uint64_t faults = check::statistic(pager_, "faults");
      change(address, &block);
      CHECK_EQ(check::statistic(pager_, "faults"), faults);  // an announced write needs no fault
    }
    if (random_.chance(60) || held_.size() > 24) {
      drop(held_.size() - 1);
    }
  }

  void unpin() {
    if (!held_.empty()) {
      drop(random_.below(held_.size()));
    }
  }

  void drop(std::size_t index) {
    const Held held = held_[index];
    held_[index] = held_.back();
    held_.pop_back();
    lms_unpin(pager_, held.token);
    const auto found = blocks_.find(held.address);
    if (found != blocks_.end() && lives_[held.address] == held.life) {
      CHECK(found->second.pins > 0);
      --found->second.pins;
    }
    if (depth_ == 0) {
      check_returned();
    }
  }

  // The thread that lets go of something while the limit is passed brings the pager back to it.
  void check_returned() {
    const Values values(pager_);
    if (values["device_bytes.current"] > limit_ && !restored_) {
      CHECK_EQ(values["cached_bytes.current"], 0);
      CHECK_EQ(values["inactive_bytes.current"], 0);
    }
  }

  void end_scope() {
    lms_scope_end(pager_);
    if (!scopes_.empty()) {
      scopes_.pop_back();
    }
    if (depth_ > 0 && --depth_ == 0) {
      check_returned();
    }
  }

  // A block for an access that nothing announces.
  char* accessed() {
    char* address = any();
    blocks_[address].operation = operations_;
    ++raw_;
    return address;
  }

  void raw_read() {
    if (!blocks_.empty()) {
      char* address = accessed();
      check_contents(address, blocks_[address]);
    }
  }

  void raw_write() {
    if (!blocks_.empty()) {
      char* address = accessed();
      change(address, &blocks_[address]);
    }
  }

  void raw_copy() {
    char* from = blocks_.empty() ? nullptr : accessed();
    char* to = blocks_.empty() ? nullptr : accessed();
    if (from == to || !blocks_[from].written || blocks_[from].bytes > blocks_[to].bytes) {
      return;
    }
    ModelBlock& target = blocks_[to];
    if (!target.written) {
      rewrite(to, &target);
    }
    const ModelBlock& source = blocks_[from];
    check::copy(to, from, source.bytes / 8 * 8);
    check_contents(from, source);
    check_contents(to, source);
    rewrite(to, &target);
  }

  void reclaim() {
    std::uint64_t reclaimed = 0;
    const std::uint64_t bytes = random_.chance(50) ? UINT64_MAX : random_.below(64 * page);
    const Values before(pager_);
    CHECK_EQ(lms_reclaim(pager_, bytes, &reclaimed), LMS_OK);
    const Values after(pager_);
    CHECK_EQ(after["cached_bytes.current"], 0);
    CHECK_EQ(before["resident_bytes.current"] - after["resident_bytes.current"], reclaimed);
    CHECK_EQ(after["away_bytes.current"] - before["away_bytes.current"], reclaimed);
    CHECK(reclaimed >= std::min(bytes, before["inactive_bytes.current"]));
    if (bytes == UINT64_MAX) {
      CHECK_EQ(after["inactive_bytes.current"], 0);
    }
  }

  void set_limit() {
    static constexpr std::uint64_t pages[] = {0, 1, 3, 16, 40, 100, 300, 1000, 4000};
    limit_ = pages[random_.below(9)] * page + (random_.chance(10) ? random_.below(page) : 0);
    CHECK_EQ(lms_set_limit(pager_, limit_), LMS_OK);
    CHECK_EQ(lms_limit(pager_), limit_);
    restored_ = false;
    check_returned();
  }

  void configure() {
    policy_ = random_.chance(50) ? "lru" : "iteration";
    strict_ = random_.chance(30);
    if (random_.chance(30)) {
      file_ = !file_;
    }
    const lms_options given = settings();
    CHECK_EQ(lms_configure(pager_, &given), LMS_OK);
    restored_ = false;
    check_returned();
  }

  void check_ownership() {
    for (const auto& entry : blocks_) {
      CHECK(lms_owns(pager_, entry.first));
      CHECK(lms_owns(pager_, entry.first + entry.second.bytes - 1));
      CHECK(!lms_owns(pager_, entry.first + entry.second.whole) || blocks_.count(entry.first + entry.second.whole) > 0);
    }
    int here = 0;
    CHECK(!lms_owns(pager_, &here));
    CHECK(!lms_owns(pager_, nullptr));
    lms_pin_token token = {&here, 1};
    CHECK_EQ(lms_pin(pager_, &here, 1, &token), LMS_OK);
    CHECK(token.block == nullptr);
    lms_unpin(pager_, token);
    lms_free(pager_, &here);
  }

  void check_statistics() {
    std::uint64_t bytes = 0;
    std::uint64_t pinned = 0;
    std::uint64_t unseen = 0;
    for (const auto& entry : blocks_) {
      bytes += entry.second.whole;
      unseen += entry.second.seen ? 0 : entry.second.whole;
      pinned += entry.second.pins > 0 ? entry.second.whole : 0;
    }
    const Values now(pager_);
    CHECK_EQ(now["allocated_bytes.current"], bytes);
    CHECK_EQ(now["allocated_blocks.current"], blocks_.size());
    CHECK_EQ(now["resident_bytes.current"] + now["away_bytes.current"], bytes);
    CHECK(now["away_bytes.current"] <= now["away_bytes.peak"]);
    CHECK(now["away_bytes.peak"] <= now["allocated_bytes.peak"]);
    CHECK_EQ(now["device_bytes.current"], now["resident_bytes.current"] + now["cached_bytes.current"]);
    CHECK_EQ(now["store_bytes.current"], now["away_bytes.current"] + now["clean_bytes.current"]);
    CHECK(now["store_bytes.current"] <= now["store_bytes.peak"]);
    CHECK(now["pinned_bytes.current"] >= pinned);  // a block that was faulted in stays pinned for a while
    CHECK(now["pinned_bytes.current"] + now["protected_bytes.current"] + now["inactive_bytes.current"] <=
          now["resident_bytes.current"]);
    CHECK(now["clean_bytes.current"] <= now["resident_bytes.current"]);
    CHECK(now["allocated_bytes.peak"] >= bytes);
    CHECK(now["resident_bytes.peak"] >= now["resident_bytes.current"]);
    CHECK(now["device_bytes.peak"] >= now["device_bytes.current"]);
    CHECK_EQ(now["limit_bytes"], limit_);
    CHECK_EQ(now["store_failures"], 0);
    CHECK_EQ(now["allocations.cached"] + now["allocations.mapped"], allocations_);
    CHECK(now["prefetch.hits"] <= now["prefetch.blocks"]);
    if (depth_ == 0) {
      CHECK(now["protected_bytes.current"] <= unseen);
    }
    static const char* const rising[] = {
        "out.bytes", "out.blocks", "in.bytes",        "in.blocks",       "clean_drop.bytes",
        "faults",    "stall_ns",   "prefetch.blocks", "reclaimed.bytes", "over_limit.requests"};
    for (const char* name : rising) {
      CHECK(now[name] >= last_values_[name]);
      last_values_[name] = now[name];
    }
  }

  check::Random random_;
  const char* policy_;
  const std::string directory_;
  bool file_;
  bool strict_ = false;
  bool restored_ = false;
  std::uint64_t limit_ = 0;
  lms_pager* pager_ = nullptr;
  std::map<char*, ModelBlock> blocks_;
  std::map<char*, std::uint64_t> lives_;
  std::uint64_t serial_ = 0;
  std::vector<Held> held_;
  unsigned depth_ = 0;
  std::map<std::string, std::uint64_t> last_values_;
  std::uint64_t allocations_ = 0;
  std::uint64_t pins_ = 0;
  std::uint64_t operations_ = 0;
  std::vector<std::uint64_t> scopes_;  // that run, innermost last
  std::uint64_t scopes_begun_ = 0;
  std::uint64_t raw_ = 0;
  std::uint64_t refused_ = 0;
};

void run_model(const char* policy, bool file, std::uint64_t variant) {
  Model(policy, file, check::seed() + variant).run(check::steps(260000));
}

}  // namespace

CASE(sizes_around_pages_granules_and_huge_pages) {
  // Sizes at which the backend treats a block differently, moved in every way there is.
  const std::string directory = check::directory();
  for (const char* store : {static_cast<const char*>(nullptr), directory.c_str()}) {
    lms_pager* pager = check::create(check::options(64 * check::mib, "lru", store));
    std::vector<std::pair<char*, std::uint64_t>> blocks;
    for (const std::uint64_t near : {page, 64 * check::kib, 2 * check::mib, 3 * check::mib, 4 * check::mib}) {
      for (const std::uint64_t bytes : {near - page, near - 8, near, near + 8, near + page}) {
        if (bytes > 0) {
          blocks.emplace_back(check::filled(pager, bytes, bytes), bytes);
        }
      }
    }
    for (int round = 0; round < 3; ++round) {
      check::reclaim(pager);
      CHECK_EQ(check::statistic(pager, "resident_bytes.current"), 0);
      for (const auto& block : blocks) {
        const lms_pin_token token = check::pin(pager, block.first + block.second - 1, round == 1);
        CHECK(check::holds(block.first, block.second, block.second));
        if (round == 1) {
          check::fill(block.first, block.second, block.second);
        }
        lms_unpin(pager, token);
      }
      check::reclaim(pager);
      for (const auto& block : blocks) {
        CHECK(check::holds(block.first, block.second, block.second));  // by faults
        check::store(block.first + block.second / 8 * 8 - 8, check::load(block.first + block.second / 8 * 8 - 8));
      }
    }
    CHECK_EQ(lms_restore_all(pager), LMS_OK);
    for (const auto& block : blocks) {
      CHECK(check::holds(block.first, block.second, block.second));
      lms_free(pager, block.first);
    }
  }
}

CASE(lru_memory) { run_model("lru", false, 1); }

CASE(lru_file) { run_model("lru", true, 2); }

CASE(iteration_memory) { run_model("iteration", false, 3); }

CASE(iteration_file) { run_model("iteration", true, 4); }

CASE(random_sizes_take_little_more_than_is_in_use) {
  // Batches of random length: freed memory serves requests of other sizes, or goes back to the system.
  lms_pager* pager = check::create(check::options(4096 * check::mib));
  check::Random random(check::seed());
  std::vector<std::pair<char*, std::uint64_t>> live;
  std::uint64_t bytes = 0;
  const std::uint64_t before = check::in_ram();
  std::uint64_t most_in_ram = 0;
  const std::uint64_t steps = check::steps(6000);
  for (std::uint64_t step = 0; step < steps; ++step) {
    const std::uint64_t size = 4 * check::kib + 8 * random.below(random.chance(50) ? 512 * 128 : 8 * 1024 * 128);
    while (!live.empty() && bytes + size > 64 * check::mib) {
      std::swap(live[random.below(live.size())], live.back());
      CHECK(check::holds(live.back().first, live.back().second, live.back().second));
      lms_free(pager, live.back().first);
      bytes -= live.back().second;
      live.pop_back();
    }
    char* block = check::allocate(pager, size);
    check::fill(block, size, size);
    live.emplace_back(block, size);
    bytes += size;
    most_in_ram = std::max(most_in_ram, step % 50 == 0 ? check::in_ram() : 0);
  }
  for (const auto& block : live) {
    CHECK(check::holds(block.first, block.second, block.second));
  }
  const std::uint64_t most =
      64 * check::mib + 32 * check::mib + 8 * check::mib;  // in use, what may be cached, and one block
  CHECK(check::statistic(pager, "device_bytes.peak") <= most);
  CHECK(CHECK_SANITIZED || most_in_ram - before <= most + 16 * check::mib);
  std::printf("cached %llu, mapped %llu\n",
              static_cast<unsigned long long>(check::statistic(pager, "allocations.cached")),
              static_cast<unsigned long long>(check::statistic(pager, "allocations.mapped")));
  // The first ones are all new.
  CHECK(steps < 1000 || check::statistic(pager, "allocations.cached") > check::statistic(pager, "allocations.mapped"));
}

CASE(what_is_cached_does_not_depend_on_who_reads_peaks) {
  // A program that starts the peaks anew at every step keeps what the next step is going to need.
  lms_pager* pager = check::create(check::options(4096 * check::mib));
  std::vector<char*> blocks;
  for (int i = 0; i < 100; ++i) {
    blocks.push_back(check::allocate(pager, check::mib));
  }
  for (char* block : blocks) {
    lms_free(pager, block);
  }
  lms_reset_peaks(pager);
  check::allocate(pager, 3 * check::mib);
  CHECK_EQ(check::statistic(pager, "cached_bytes.current"), 100 * check::mib);
}

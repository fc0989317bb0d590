// Several processes that share a budget of this machine's memory. Each test process is forked before it has a pager,
// but where forking is what is tested.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>

#include "check.h"
#include "processes.h"
#include "share/ledger.h"

using check::board;
using check::expect_success;
using check::kib;
using check::meet;
using check::meeting_point;
using check::mib;
using check::process;
using check::Random;
using check::wait_until;

namespace {

constexpr std::uint64_t budget = 64 * mib;
constexpr std::uint64_t block = mib;

std::string path_of(const char* file) { return meeting_point() + "/" + file; }

lms_options sharing(const char* terms, std::uint64_t limit = budget) {
  static const std::string store = check::directory();
  meet();
  lms_options options = check::options(limit, "lru", store.c_str());
  options.share = terms;
  return options;
}

void expect_refusal(const lms_options& options, lms_status status, const char* part) {
  lms_pager* pager = nullptr;
  CHECK_EQ(lms_create(&options, &pager), status);
  if (!check::contains(lms_last_error(), part)) {
    CHECK_FAIL("the sentence lacks '%s'", part);
  }
}

// A program that works on blocks of `block` bytes, whose contents a seed determines.
class Work {
 public:
  Work(const lms_options& options, std::uint64_t count, std::uint64_t seed)
      : pager_(check::create(options)), random_(seed) {
    for (std::uint64_t index = 0; index < count; ++index) {
      blocks_.push_back(Item{check::filled(pager_, block, seed + index), seed + index});
    }
  }

  // Checks a block; sometimes it gets new contents, sometimes it is freed and another takes its place.
  void step() {
    Item& item = blocks_[random_.below(blocks_.size())];
    const lms_pin_token token = check::pin(pager_, item.address, true);
    CHECK(check::holds(item.address, block, item.seed));
    const std::uint64_t what = random_.below(10);
    if (what < 3) {
      item.seed = random_.next();
      check::fill(item.address, block, item.seed);
    }
    lms_unpin(pager_, token);
    if (what == 9) {
      lms_free(pager_, item.address);
      item.address = check::filled(pager_, block, item.seed);
    }
  }

  void step_all() {
    for (Item& item : blocks_) {
      const lms_pin_token token = check::pin(pager_, item.address);
      CHECK(check::holds(item.address, block, item.seed));
      lms_unpin(pager_, token);
    }
  }

  // Until the board's phase is `end`; shows its share meanwhile.
  void until(int end, std::size_t who) {
    while (board()->phase.load() < end) {
      step();
      board()->shares[who].store(share());
      board()->steps[who].fetch_add(1);
    }
    step_all();
  }

  void rewrite_all(std::uint64_t seed) {
    for (Item& item : blocks_) {
      const lms_pin_token token = check::pin(pager_, item.address, true);
      check::fill(item.address, block, item.seed = ++seed);
      lms_unpin(pager_, token);
    }
  }

  lms_pager* pager() const { return pager_; }
  std::uint64_t share() const { return check::statistic(pager_, "share.bytes"); }

 private:
  struct Item {
    char* address;
    std::uint64_t seed;
  };
  lms_pager* pager_;
  Random random_;
  std::vector<Item> blocks_;
};

std::uint64_t anonymous_bytes(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/status");
  std::string word;
  while (file >> word) {
    if (word == "RssAnon:") {
      std::uint64_t value = 0;
      file >> value;
      return value * kib;
    }
  }
  return 0;
}

std::uint64_t count_files() {
  std::uint64_t count = 0;
  if (DIR* folder = opendir(meeting_point().c_str())) {
    while (const dirent* entry = readdir(folder)) {
      count += entry->d_name[0] != '.' ? 1 : 0;
    }
    closedir(folder);
  }
  return count;
}

// Those of this process that are open on files of the meeting point.
std::vector<int> descriptors_of_sharing() {
  std::vector<int> found;
  for (int descriptor = 3; descriptor < 256; ++descriptor) {
    char target[4096] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    if (readlink(link.c_str(), target, sizeof target - 1) > 0 && std::strstr(target, "/share/") != nullptr) {
      found.push_back(descriptor);
    }
  }
  return found;
}

bool near(std::uint64_t value, std::uint64_t wanted) {
  return value + budget / 16 >= wanted && value <= wanted + budget / 16;
}

}  // namespace

CASE(alone_it_has_the_whole_budget) {
  lms_options options = sharing("alone");
  {
    Work work(options, 100, 7);
    work.step_all();
    CHECK_EQ(check::statistic(work.pager(), "share.budget_bytes"), budget);
    CHECK_EQ(check::statistic(work.pager(), "share.processes"), 1);
    CHECK(check::statistic(work.pager(), "device_bytes.peak") <= budget);
    CHECK(check::statistic(work.pager(), "device_bytes.peak") + block >= budget);
    CHECK_EQ(check::statistic(work.pager(), "over_limit.requests"), 0);
    // A limit of its own below that.
    CHECK_EQ(lms_set_limit(work.pager(), 10 * mib), LMS_OK);
    work.step_all();
    CHECK(check::statistic(work.pager(), "device_bytes.current") <= 10 * mib);
    CHECK_EQ(lms_set_limit(work.pager(), 2 * budget), LMS_OK);
    work.step_all();
    CHECK(check::statistic(work.pager(), "device_bytes.current") + block >= budget);
    // And no longer shared.
    options.share = nullptr;
    CHECK_EQ(lms_configure(work.pager(), &options), LMS_OK);
    CHECK_EQ(check::statistic(work.pager(), "share.processes"), 0);
    CHECK_EQ(lms_limit(work.pager()), budget);
    work.step_all();
  }
  CHECK_EQ(count_files(), 0);
}

CASE(what_one_does_not_use_another_has) {
  check::take_turns<Work>([](std::size_t who) { return std::make_unique<Work>(sharing("turns"), 100, 1000 * who); },
                          [](std::size_t who) { return board()->shares[who].load() + budget / 16 >= budget; });
}

CASE(who_works_gets_a_share_by_weight) {
  const auto run = [](std::size_t who) {
    const std::array<const char*, 3> terms = {"weights", "weights,weight=2", "weights,minimum=33554432"};
    Work work(sharing(terms[who]), 100, 1000 * who);
    work.until(1, who);
  };
  std::vector<pid_t> all;
  for (std::size_t who = 0; who < 3; ++who) {
    all.push_back(process([&] { run(who); }));
  }
  wait_until(
      [] {
        const auto& shares = board()->shares;
        return near(shares[0].load(), budget / 6) && near(shares[1].load(), budget / 3) &&
               near(shares[2].load(), budget / 2);
      },
      "the shares are those of the weights");
  board()->phase.store(1);
  for (const pid_t each : all) {
    expect_success(each);
  }
}

CASE(a_higher_priority_is_served_first) {
  const pid_t behind = process([] {
    Work work(sharing("front,priority=-1"), 100, 1);
    work.until(2, 0);
  });
  wait_until([] { return near(board()->shares[0].load(), budget); }, "the one behind has all");
  const pid_t front = process([] {
    Work work(sharing("front"), 40, 2);
    work.until(1, 1);
    board()->phase.store(2);
    work.until(3, 1);
  });
  wait_until([] { return board()->shares[1].load() >= 40 * mib && near(board()->shares[0].load(), budget - 42 * mib); },
             "the one in front has what it needs");
  kill(front, SIGKILL);
  waitpid(front, nullptr, 0);
  wait_until([] { return near(board()->shares[0].load(), budget); }, "the one behind has all again");
  board()->phase.store(2);
  expect_success(behind);
}

// It takes 20 seconds, of which a sanitizer would see nothing new.
CASE_WITHOUT_SANITIZER(what_was_long_not_used_is_no_need) {
  const pid_t keeper = process([] {
    const Work kept(sharing("cold"), 40, 1);
    char* used = check::filled(kept.pager(), block, 7);
    while (board()->phase.load() < 1) {
      check::touch(kept.pager(), used);
      usleep(1000);
    }
  });
  const pid_t worker = process([] {
    Work work(sharing("cold"), 100, 2);
    work.until(1, 0);
  });
  wait_until([] { return near(board()->shares[0].load(), budget / 2); }, "both have a half");
  wait_until([] { return board()->shares[0].load() >= budget - 8 * mib; }, "who works has what the other does not use",
             60);
  board()->phase.store(1);
  expect_success(keeper);
  expect_success(worker);
}

CASE(kills_and_joins) {
  // Whoever is killed, whenever: the others go on, its share is theirs, and together they never have more than there
  // is.
  constexpr std::size_t most = 4;
  const std::uint64_t kills = std::getenv("LMS_TEST_STEPS") != nullptr ? check::steps(0) : (CHECK_SANITIZED ? 10 : 200);
  Random random(check::seed());
  const auto start = [](std::size_t who, std::uint64_t seed) {
    board()->steps[who].store(0);
    board()->shares[who].store(0);
    board()->living[who].store(0);
    const pid_t child = process([who, seed] {
      Work work(sharing("kills"), 60, seed);
      work.until(1, who);
    });
    board()->living[who].store(child);
    return child;
  };
  const std::uint64_t own = anonymous_bytes(getpid());  // what a forked process has without a pager, at most
  const pid_t sampler = process([] {
    while (board()->phase.load() == 0) {
      std::uint64_t sum = 0;
      for (const std::atomic<pid_t>& each : board()->living) {
        sum += each.load() != 0 ? anonymous_bytes(each.load()) : 0;
      }
      board()->peak.store(std::max(board()->peak.load(), sum));
      usleep(1000);
    }
  });
  const std::vector<pid_t> all = check::kill_at_random(most, kills, 30000, &random, start);
  board()->phase.store(1);
  expect_success(sampler);
  for (const pid_t each : all) {
    expect_success(each);
  }
  const std::uint64_t peak = board()->peak.load();
  std::printf("at most %llu MiB of %llu, and %llu of each process's own\n", static_cast<unsigned long long>(peak / mib),
              static_cast<unsigned long long>(budget / mib), static_cast<unsigned long long>(own / mib));
  if (!CHECK_SANITIZED) {
    // A process's own: its stacks, tables and the parent's pages that it has changed.
    CHECK(peak <= budget * 103 / 100 + most * (own + 4 * mib));
    CHECK(peak >= budget / 2);
  }
  CHECK(count_files() <= 1 + most);  // ledger and bells, of the last ones
}

CASE(who_does_not_answer_is_not_waited_for) {
  const pid_t stopped = process([] {
    Work work(sharing("silent"), 60, 1);
    board()->ready.store(1);
    work.until(2, 0);
  });
  wait_until([] { return board()->ready.load() == 1; }, "it holds what it needs");
  kill(stopped, SIGSTOP);
  Work work(sharing("silent"), 60, 2);
  work.step_all();
  const std::uint64_t waited = check::statistic(work.pager(), "share.wait_ns");
  work.step_all();
  work.step_all();
  CHECK_EQ(check::statistic(work.pager(), "share.wait_ns"), waited);  // not again
  CHECK(waited < 2'000'000'000);
  CHECK(check::statistic(work.pager(), "share.bytes") <= 8 * mib);
  // It goes on, and gives what it owes.
  kill(stopped, SIGCONT);
  wait_until(
      [&] {
        work.step_all();
        return near(work.share(), budget / 2);
      },
      "it has its share");
  board()->phase.store(2);
  expect_success(stopped);
}

CASE(who_would_pass_the_limit_waits_longer) {
  const pid_t keeper = process([] {
    Work work(sharing("patience"), 60, 1);
    board()->ready.store(1);
    work.until(2, 0);
  });
  wait_until([] { return board()->ready.load() == 1; }, "it holds what it needs");
  lms_pager* pager = check::create(sharing("patience"));
  std::vector<lms_pin_token> pins;
  // Nothing of its own can leave. The other has just been stopped: a machine may be too busy for that, now and then.
  wait_until(
      [&] {
        kill(keeper, SIGSTOP);
        const std::uint64_t before = check::statistic(pager, "share.wait_ns");
        pins.push_back(check::pin(pager, check::allocate(pager, 8 * block)));
        const std::uint64_t waited = check::statistic(pager, "share.wait_ns") - before;
        kill(keeper, SIGCONT);
        usleep(100000);
        return waited >= 200'000'000 && check::statistic(pager, "over_limit.requests") > 0;
      },
      "it has waited for an answer, and passed the limit");
  // Whoever answers gives, and nobody passes the limit.
  wait_until([&] { return check::statistic(pager, "share.bytes") >= check::statistic(pager, "device_bytes.current"); },
             "it has what it holds");
  for (const lms_pin_token& pin : pins) {
    lms_unpin(pager, pin);
  }
  board()->phase.store(2);
  expect_success(keeper);
}

CASE(who_is_stopped_with_the_ledger_locked_holds_up_nobody) {
  Work work(sharing("held"), 60, 1);
  const int file = open(path_of("cpu-held.ledger").c_str(), O_RDWR | O_CLOEXEC);
  CHECK(file >= 0);
  struct flock range = {};
  range.l_type = F_WRLCK;
  range.l_len = 1;
  wait_until([&] { return fcntl(file, F_OFD_SETLK, &range) == 0; }, "the lock is there");
  work.step_all();
  CHECK_EQ(lms_set_limit(work.pager(), 8 * mib), LMS_OK);
  work.step_all();
  expect_refusal(sharing("held"), LMS_UNSUPPORTED, "holds it and does not go on");
  close(file);
  CHECK_EQ(lms_set_limit(work.pager(), budget), LMS_OK);
  wait_until(
      [&] {
        work.step_all();
        return check::statistic(work.pager(), "resident_bytes.current") == 60 * block;
      },
      "it goes on");
}

CASE(a_forked_child_has_a_share_of_its_own) {
  Work work(sharing("forks"), 30, 3);
  work.step_all();
  board();
  const pid_t child = process([&] {
    work.step_all();  // the parent's, in its own pages
    CHECK_EQ(check::statistic(work.pager(), "share.processes"), 2);
    std::vector<char*> more;
    for (std::uint64_t index = 0; index < 80; ++index) {
      more.push_back(check::filled(work.pager(), block, index));
    }
    CHECK_EQ(check::statistic(work.pager(), "share.processes"), 2);
    for (std::uint64_t index = 0; index < more.size(); ++index) {
      const lms_pin_token token = check::pin(work.pager(), more[index]);
      CHECK(check::holds(more[index], block, index));
      lms_unpin(work.pager(), token);
    }
    CHECK(check::statistic(work.pager(), "device_bytes.current") <= 30 * block + budget);
    board()->ready.store(1);
    wait_until([] { return board()->phase.load() == 1; }, "the parent has looked");
  });
  wait_until([] { return board()->ready.load() == 1; }, "the child works");
  wait_until([&] { return check::statistic(work.pager(), "share.processes") == 2; }, "the parent has seen it");
  work.step_all();
  board()->phase.store(1);
  expect_success(child);
  wait_until([&] { return check::statistic(work.pager(), "share.processes") == 1; }, "the child's share is free");
  work.step_all();
}

// A sanitizer is right to call it a race.
CASE_WITHOUT_SANITIZER(closed_descriptors_are_no_end_of_it) {
  Work work(sharing("closed"), 60, 5);
  work.step_all();
  for (const int descriptor : descriptors_of_sharing()) {
    close(descriptor);
  }
  // Their numbers are other files' now, in which nothing is written.
  const std::string other = check::directory() + "/other";
  std::vector<int> others;
  for (int count = 0; count < 4; ++count) {
    others.push_back(open(other.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  }
  wait_until(
      [&] {
        work.step_all();
        return descriptors_of_sharing().size() == 2 && check::statistic(work.pager(), "share.processes") == 1 &&
               check::statistic(work.pager(), "share.bytes") >= 60 * block;
      },
      "it has joined again");
  struct stat found = {};
  CHECK_EQ(stat(other.c_str(), &found), 0);
  CHECK_EQ(found.st_size, 0);
  const pid_t second = process([] {
    Work more(sharing("closed"), 30, 6);
    CHECK_EQ(check::statistic(more.pager(), "share.processes"), 2);
  });
  expect_success(second);
}

// What a sanitizer adds is not the program's.
CASE_WITHOUT_SANITIZER(what_forked_children_write_is_theirs) {
  // The parent has half of the budget, and its children write to all that they have from it.
  Work work(sharing("written"), 32, 3);
  board();
  const std::uint64_t own = anonymous_bytes(getpid()) - 32 * block;
  std::vector<pid_t> children;
  for (std::size_t who = 0; who < 3; ++who) {
    children.push_back(process([&, who] {
      work.rewrite_all(100 * who);
      board()->ready.fetch_add(1);
      work.until(1, who);
    }));
  }
  wait_until([] { return board()->ready.load() == 3; }, "all have written");
  wait_until(
      [&] {
        std::uint64_t sum = anonymous_bytes(getpid());
        for (const pid_t child : children) {
          sum += anonymous_bytes(child);
        }
        return sum <= budget + 4 * (own + 4 * mib);
      },
      "together they are within the budget");
  board()->phase.store(1);
  for (const pid_t child : children) {
    expect_success(child);
  }
  work.step_all();
}

CASE(files_that_are_moved_or_removed_are_made_again) {
  Work work(sharing("moved"), 60, 5);
  const auto sees = [](const Work& who, std::uint64_t processes) {
    return check::statistic(who.pager(), "share.processes") == processes;
  };
  const auto meets_another = [&] {
    board()->ready.store(0);
    const pid_t second = process([&] {
      const Work more(sharing("moved"), 30, 6);
      wait_until([&] { return sees(more, 2) && board()->ready.load() == 1; }, "both have seen each other");
    });
    wait_until([&] { return sees(work, 2); }, "it meets the second");
    board()->ready.store(1);
    expect_success(second);
    wait_until([&] { return sees(work, 1); }, "it is alone");
    work.step_all();
  };
  meets_another();
  CHECK_EQ(std::rename(meeting_point().c_str(), (meeting_point() + "-moved").c_str()), 0);
  meets_another();
  // A file in its place, where it may make a directory at any moment: it goes on, with the limit that it had, and tries
  // again.
  for (int count = 0; !std::ofstream(meeting_point()).is_open(); ++count) {
    CHECK_EQ(std::rename(meeting_point().c_str(), (meeting_point() + "-again" + std::to_string(count)).c_str()), 0);
  }
  wait_until([&] { return check::statistic(work.pager(), "share.processes") == 0; }, "it has noticed");
  work.step_all();
  CHECK(check::statistic(work.pager(), "device_bytes.current") <= budget);
  unlink(meeting_point().c_str());
  meets_another();
  // A program that changes its directory, and its environment.
  CHECK_EQ(chdir("/"), 0);
  setenv("LMS_SHARE", "/nowhere", 1);
  CHECK_EQ(std::rename(meeting_point().c_str(), (meeting_point() + "-last").c_str()), 0);
  meets_another();
}

CASE(a_header_that_lies_changes_nothing) {
  Work work(sharing("header"), 100, 5);
  const int file = open(path_of("cpu-header.ledger").c_str(), O_RDWR | O_CLOEXEC);
  CHECK(file >= 0);
  CHECK_EQ(ftruncate(file, 0), 0);
  work.step_all();
  wait_until([&] { return lseek(file, 0, SEEK_END) > 0; }, "it says again what it has");
  expect_refusal(sharing("header", 2 * budget), LMS_INVALID_ARGUMENT, "give the same limit");
  work.step_all();
  CHECK_EQ(check::statistic(work.pager(), "share.budget_bytes"), budget);
  CHECK(check::statistic(work.pager(), "device_bytes.peak") <= budget);
  close(file);
}

CASE(it_may_change_its_terms) {
  lms_options options = sharing("terms,weight=2");
  Work work(options, 60, 5);
  options.share = "terms,weight=3,minimum=1048576";
  CHECK_EQ(lms_configure(work.pager(), &options), LMS_OK);
  CHECK_EQ(check::statistic(work.pager(), "share.processes"), 1);
  work.step_all();
  options.share = "other";
  CHECK_EQ(lms_configure(work.pager(), &options), LMS_OK);
  work.step_all();
  CHECK_EQ(count_files(), 2);
  options.share = "terms,weight=0";
  CHECK_EQ(lms_configure(work.pager(), &options), LMS_INVALID_ARGUMENT);
  CHECK_EQ(check::statistic(work.pager(), "share.processes"), 1);  // as before
  work.step_all();
  // Switched off: it keeps what it has, and others hear of that.
  CHECK_EQ(lms_restore_all(work.pager()), LMS_OK);
  lms_shutdown(work.pager());
  const pid_t second = process([] {
    Work more(sharing("other"), 30, 6);
    CHECK_EQ(check::statistic(more.pager(), "share.processes"), 2);
    CHECK(check::statistic(more.pager(), "share.bytes") <= budget - 60 * block);
  });
  expect_success(second);
}

CASE(wrong_terms_are_refused) {
  for (const char* terms : {"a/b", "../up", ".hidden", "ä", "a b", "a,b", "a,colour=red", "a,weight"}) {
    expect_refusal(sharing(terms), LMS_INVALID_ARGUMENT, "share: ");
  }
  expect_refusal(sharing(std::string(65, 'a').c_str()), LMS_INVALID_ARGUMENT, "at most 64");
  for (const char* weight : {"0", "-1", "nan", "inf", "1e9", "", "x", "1x"}) {
    expect_refusal(sharing(("a,weight=" + std::string(weight)).c_str()), LMS_INVALID_ARGUMENT, "weight");
  }
  for (const char* minimum : {"-1", "x", "", "99999999999999999999999"}) {
    expect_refusal(sharing(("a,minimum=" + std::string(minimum)).c_str()), LMS_INVALID_ARGUMENT, "minimum");
  }
  for (const char* priority : {"x", "", "1001", "-1001", "0.5"}) {
    expect_refusal(sharing(("a,priority=" + std::string(priority)).c_str()), LMS_INVALID_ARGUMENT, "priority");
  }
  for (const char* group : {"no-such-group-here", "-1", "4294967295", "99999999999", " 0", ""}) {
    expect_refusal(sharing(("a,group=" + std::string(group)).c_str()), LMS_INVALID_ARGUMENT, "no group");
  }
  expect_refusal(sharing("a,minimum=99999999999"), LMS_INVALID_ARGUMENT, "minima");
  expect_refusal(sharing("a", UINT64_MAX), LMS_INVALID_ARGUMENT, "needs a limit");
  CHECK_EQ(count_files(), 0);  // nothing is left
}

CASE(budgets_of_one_name_are_of_one_size) {
  const Work work(sharing("one"), 10, 1);
  expect_refusal(sharing("one", budget / 2), LMS_INVALID_ARGUMENT, "give the same limit");
  const Work other(sharing("two", budget / 2), 10, 1);
  expect_refusal(sharing("one,minimum=60000000,weight=2", budget + 1), LMS_INVALID_ARGUMENT, "give the same limit");
  const Work minimum(sharing("one,minimum=60000000"), 10, 1);
  expect_refusal(sharing("one,minimum=60000000"), LMS_INVALID_ARGUMENT, "minima");
}

CASE(a_directory_has_to_be_ones_own) {
  const lms_options options = sharing("a");
  const std::string path = meeting_point();
  CHECK_EQ(mkdir(path.c_str(), 0700), 0);
  CHECK_EQ(chmod(path.c_str(), 0777), 0);
  expect_refusal(options, LMS_STORE_FAILED, "other users can write");
  CHECK_EQ(chmod(path.c_str(), 0770), 0);
  expect_refusal(options, LMS_STORE_FAILED, "other users can write");
  CHECK_EQ(chmod(path.c_str(), 0700), 0);
  setenv("LMS_SHARE", (path + "/no/such").c_str(), 1);
  expect_refusal(options, LMS_STORE_FAILED, "LMS_SHARE");
  setenv("LMS_SHARE", "/dev/null", 1);
  expect_refusal(options, LMS_STORE_FAILED, "it is no directory");
  if (geteuid() == 0) {
    // As somebody else, who may not write there; and with a directory of somebody else's.
    setenv("LMS_SHARE", path.c_str(), 1);
    expect_success(process([&] {
      CHECK_EQ(seteuid(12345), 0);
      expect_refusal(options, LMS_STORE_FAILED, "");
    }));
    CHECK_EQ(chown(path.c_str(), 12345, 12345), 0);
    expect_refusal(options, LMS_STORE_FAILED, "belongs to another user");
    // Which its group may use, if asked for.
    CHECK_EQ(chmod(path.c_str(), 0770), 0);
    lms_options of_group = options;
    of_group.share = "a,group=12345";
    const Work work(of_group, 10, 1);
    struct stat found = {};
    CHECK_EQ(stat(path_of("cpu-a.ledger").c_str(), &found), 0);
    CHECK_EQ(found.st_gid, 12345);
    CHECK_EQ(found.st_mode & 0777, 0660);
  }
}

CASE(a_full_disk_is_an_error) {
  const lms_options options = sharing("full");
  const pid_t child = process([&] {
    // No file may have more than a part of what a ledger needs.
    signal(SIGXFSZ, SIG_IGN);
    const rlimit least = {1024, 1024};
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &least), 0);
    lms_options without_store = options;
    without_store.store = nullptr;
    expect_refusal(without_store, LMS_STORE_FAILED, "cannot share through the file");
  });
  expect_success(child);
  CHECK_EQ(count_files(), 0);
}

CASE(what_is_there_already_harms_nobody) {
  const lms_options options = sharing("a");
  const std::string path = path_of("cpu-a.ledger");
  CHECK_EQ(mkdir(meeting_point().c_str(), 0700), 0);
  CHECK_EQ(symlink("/etc/passwd", path.c_str()), 0);
  expect_refusal(options, LMS_STORE_FAILED, "see to that");
  unlink(path.c_str());
  CHECK_EQ(mkfifo(path.c_str(), 0600), 0);
  expect_refusal(options, LMS_STORE_FAILED, "no file of this user");
  unlink(path.c_str());
  CHECK_EQ(mkdir(path.c_str(), 0700), 0);
  expect_refusal(options, LMS_STORE_FAILED, "see to that");
  rmdir(path.c_str());
  std::ofstream(path) << std::string(100000, 'x');
  expect_refusal(options, LMS_STORE_FAILED, "no ledger");
  unlink(path.c_str());
  {
    // What a process leaves that was killed while it made the file.
    std::ofstream(path) << std::string(100, '\0');
    std::ofstream(path + ".0") << "stale";
    const Work work(options, 10, 1);
    CHECK_EQ(check::statistic(work.pager(), "share.processes"), 1);
    // Another version.
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    const std::uint64_t version = 77;
    CHECK_EQ(pwrite(file, &version, 8, 8), 8);
    expect_refusal(options, LMS_UNSUPPORTED, "another version");
    const std::uint64_t own = 1;
    CHECK_EQ(pwrite(file, &own, 8, 8), 8);
    close(file);
  }
}

CASE(garbage_in_the_ledger_harms_nobody) {
  // From a peer that writes what it likes wherever it likes, and truncates.
  Random random(check::seed());
  const pid_t peer = process([] {
    Work work(sharing("garbage"), 60, 1);
    work.until(1, 0);
  });
  Work work(sharing("garbage"), 60, 2);
  const int file = open(path_of("cpu-garbage.ledger").c_str(), O_RDWR | O_CLOEXEC);
  CHECK(file >= 0);
  for (std::uint64_t round = 0; round < (CHECK_SANITIZED ? 20 : 200); ++round) {
    std::vector<char> garbage(1 + random.below(4096));
    for (char& each : garbage) {
      each = static_cast<char>(random.next());
    }
    const auto offset = static_cast<off_t>(random.below(34000));
    CHECK(pwrite(file, garbage.data(), garbage.size(), offset) > 0);
    if (random.chance(5)) {
      CHECK_EQ(ftruncate(file, static_cast<off_t>(random.below(30000))), 0);
    }
    for (int count = 0; count < 10; ++count) {
      work.step();
    }
  }
  close(file);
  work.step_all();
  board()->phase.store(1);
  expect_success(peer);
}

// What happens when something is refused: memory, address space, the store, arguments. Every failure is reported, the
// contents survive it, and the pager goes on.
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <thread>

#include "check.h"

using check::allocate;
using check::contains;
using check::create;
using check::filled;
using check::holds;
using check::kib;
using check::mib;
using check::options;
using check::pin;
using check::reclaim;
using check::statistic;
using check::touch;

namespace {

constexpr std::uint64_t block_bytes = 64 * kib;

// Files may not grow beyond `bytes` from now on: the same errors as from a full disk.
void limit_files(rlim_t bytes) {
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit limit = {bytes, RLIM_INFINITY};
  CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

std::vector<char*> many(lms_pager* pager, std::uint64_t count, std::uint64_t bytes = block_bytes) {
  std::vector<char*> blocks;
  for (std::uint64_t i = 0; i < count; ++i) {
    blocks.push_back(filled(pager, bytes, i));
  }
  return blocks;
}

void check_all(const std::vector<char*>& blocks, std::uint64_t bytes = block_bytes) {
  for (std::uint64_t i = 0; i < blocks.size(); ++i) {
    CHECK(holds(blocks[i], bytes, i));
  }
}

std::size_t entries(const std::string& directory) {
  DIR* listing = opendir(directory.c_str());
  CHECK(listing != nullptr);
  std::size_t count = 0;
  while (const dirent* entry = readdir(listing)) {
    count += entry->d_name[0] != '.' ? 1 : 0;
  }
  closedir(listing);
  return count;
}

void create_fails(const lms_options& given, lms_status status, const char* text) {
  auto* untouched = reinterpret_cast<lms_pager*>(&create_fails);
  lms_pager* pager = untouched;
  CHECK_EQ(lms_create(&given, &pager), status);
  CHECK(pager == untouched);
  if (!contains(lms_last_error(), text)) {
    CHECK_FAIL("the message does not say '%s'", text);
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------- the store

CASE(full_store) {
  limit_files(mib);
  lms_pager* pager = create(options(64 * mib, "lru", check::directory().c_str()));
  const std::vector<char*> blocks = many(pager, 64);  // 4 MiB: a megabyte a file is all there is, file by file
  std::uint64_t reclaimed = 0;
  limit_files(0);
  CHECK_EQ(lms_reclaim(pager, UINT64_MAX, &reclaimed), LMS_STORE_FAILED);
  CHECK_EQ(reclaimed, 0);
  CHECK(contains(lms_last_error(), check::directory().c_str()));
  CHECK(contains(lms_last_error(), "File too large"));
  CHECK(statistic(pager, "store_failures") > 0);
  CHECK_EQ(statistic(pager, "away_bytes.current"), 0);
  check_all(blocks);
  CHECK_EQ(statistic(pager, "faults"), 0);
  for (char* block : blocks) {
    check::store(block, check::load(block));  // still writable, without a fault
  }
  CHECK_EQ(statistic(pager, "faults"), 0);
  // A request that would have to page out fails and says so; what is resident stays usable.
  CHECK_EQ(lms_set_limit(pager, 2 * mib), LMS_STORE_FAILED);
  void* refused = nullptr;
  CHECK_EQ(lms_allocate(pager, 4 * mib, &refused), LMS_STORE_FAILED);
  CHECK(refused == nullptr);
  touch(pager, blocks[3], true);
  check_all(blocks);
  // There is room again.
  limit_files(RLIM_INFINITY);
  CHECK_EQ(lms_set_limit(pager, 2 * mib), LMS_OK);
  CHECK(statistic(pager, "device_bytes.current") <= 2 * mib);
  check_all(blocks);
  lms_free(pager, allocate(pager, 4 * mib));
  check_all(blocks);
}

CASE(store_that_fills_up) {
  // The first blocks find room, later ones do not: what has left comes back, what has not stays.
  limit_files(20 * block_bytes);
  lms_pager* pager = create(options(64 * mib, "lru", check::directory().c_str()));
  const std::vector<char*> blocks = many(pager, 8, 4 * block_bytes);
  std::uint64_t reclaimed = 0;
  const lms_status first = lms_reclaim(pager, 4 * 4 * block_bytes, &reclaimed);
  CHECK_EQ(first, LMS_OK);
  CHECK_EQ(reclaimed, 16 * block_bytes);
  limit_files(0);
  lms_status status = LMS_OK;
  std::uint64_t more = 0;
  status = lms_reclaim(pager, UINT64_MAX, &more);
  CHECK_EQ(status, LMS_STORE_FAILED);
  CHECK_EQ(statistic(pager, "away_bytes.current"), reclaimed + more);
  CHECK_EQ(statistic(pager, "resident_bytes.current"), 32 * block_bytes - reclaimed - more);
  check_all(blocks, 4 * block_bytes);
  CHECK_EQ(lms_restore_all(pager), LMS_OK);
  check_all(blocks, 4 * block_bytes);
  CHECK_EQ(statistic(pager, "away_bytes.current"), 0);
  CHECK_EQ(statistic(pager, "away_bytes.peak"), reclaimed + more);
  CHECK_EQ(statistic(pager, "store_bytes.peak"), reclaimed + more);
  lms_reset_peaks(pager);
  CHECK_EQ(statistic(pager, "away_bytes.peak"), 0);
  CHECK_EQ(statistic(pager, "store_bytes.peak"), statistic(pager, "store_bytes.current"));
}

CASE(fault_while_the_store_is_full) {
  // Nothing can leave, but the fault must be served: past the limit, and counted.
  lms_pager* pager = create(options(2 * block_bytes, "lru", check::directory().c_str()));
  limit_files(block_bytes);
  const std::vector<char*> blocks = many(pager, 3);  // the first one is away and takes all the room there is
  CHECK_EQ(statistic(pager, "away_bytes.current"), block_bytes);
  CHECK_EQ(statistic(pager, "over_limit.requests"), 0);
  limit_files(0);
  CHECK(holds(blocks[0], block_bytes, 0));
  CHECK(statistic(pager, "store_failures") > 0);
  CHECK_EQ(statistic(pager, "device_bytes.current"), 3 * block_bytes);
  CHECK_EQ(statistic(pager, "over_limit.requests"), 1);
  CHECK_EQ(statistic(pager, "over_limit_bytes.peak"), block_bytes);
  limit_files(RLIM_INFINITY);
  touch(pager, blocks[1]);
  CHECK(statistic(pager, "device_bytes.current") <= 2 * block_bytes);
  check_all(blocks);
}

CASE(use_while_the_store_is_full) {
  // What is away can be used, so that a program can save it; new memory is refused.
  lms_pager* pager = create(options(2 * block_bytes, "lru", check::directory().c_str()));
  limit_files(block_bytes);
  const std::vector<char*> blocks = many(pager, 3);
  CHECK_EQ(statistic(pager, "away_bytes.current"), block_bytes);
  limit_files(0);
  void* refused = nullptr;
  CHECK_EQ(lms_allocate(pager, block_bytes, &refused), LMS_STORE_FAILED);
  touch(pager, blocks[0]);
  CHECK_EQ(statistic(pager, "faults"), 0);
  CHECK_EQ(statistic(pager, "over_limit_bytes.peak"), block_bytes);
  check_all(blocks);
  CHECK_EQ(lms_allocate(pager, block_bytes, &refused), LMS_STORE_FAILED);
}

CASE(use_while_the_store_is_full_and_the_limit_strict) {
  lms_pager* pager = create(options(2 * block_bytes, "lru", check::directory().c_str(), true));
  limit_files(block_bytes);
  const std::vector<char*> blocks = many(pager, 3);
  limit_files(0);
  lms_pin_token token = {};
  CHECK_EQ(lms_pin(pager, blocks[0], 0, &token), LMS_STORE_FAILED);
  limit_files(RLIM_INFINITY);
  check_all(blocks);
}

CASE(write_that_fails_half_way) {
  // The store has room, but the copy into it fails: nothing is lost, the block stays writable, the room is given back.
  lms_pager* pager = create(options(64 * mib, "lru", check::directory().c_str()));
  const std::vector<char*> blocks = many(pager, 4);
  reclaim(pager);
  for (char* block : blocks) {
    touch(pager, block, true);
  }
  CHECK_EQ(statistic(pager, "store_bytes.current"), 0);
  limit_files(block_bytes / 2);  // the files exist, with room for 64 MiB: their first 32 KiB can be written
  std::uint64_t reclaimed = 0;
  CHECK_EQ(lms_reclaim(pager, UINT64_MAX, &reclaimed), LMS_STORE_FAILED);
  CHECK(contains(lms_last_error(), "written"));
  CHECK_EQ(reclaimed, 0);
  CHECK_EQ(statistic(pager, "store_failures"), 1);
  CHECK_EQ(statistic(pager, "store_bytes.current"), 0);
  CHECK_EQ(statistic(pager, "clean_bytes.current"), 0);
  for (std::uint64_t i = 0; i < 4; ++i) {
    check::fill(blocks[i], block_bytes, i);
  }
  CHECK_EQ(statistic(pager, "faults"), 0);
  limit_files(RLIM_INFINITY);
  CHECK_EQ(reclaim(pager), 4 * block_bytes);
  check_all(blocks);
}

CASE(read_that_fails) {
  // The store's file is destroyed: a pin of the block is an error, an access to it the end of the process, and neither
  // finds wrong contents.
  const std::string directory = check::directory();
  const lms_options given = options(64 * mib, "lru", directory.c_str());
  lms_pager* pager = create(given);
  const std::vector<char*> blocks = many(pager, 4);
  reclaim(pager);
  touch(pager, blocks[3], true);
  int destroyed = 0;
  for (int file = 3; file < check::descriptors; ++file) {
    struct stat status = {};
    const int seals = fcntl(file, F_GET_SEALS);
    const bool published = seals > 0 && (seals & F_SEAL_SHRINK) != 0;  // the pager's statistics
    if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 0 && !published) {
      CHECK_EQ(ftruncate(file, 0), 0);
      ++destroyed;
    }
  }
  CHECK(destroyed > 0);
  for (int round = 0; round < 2; ++round) {
    lms_pin_token token = {&token, 1};
    CHECK_EQ(lms_pin(pager, blocks[0], round, &token), LMS_READ_FAILED);
    CHECK(token.block == nullptr);
    CHECK(contains(lms_last_error(), "read"));
  }
  CHECK_EQ(statistic(pager, "away_bytes.current"), 3 * block_bytes);
  CHECK_EQ(statistic(pager, "device_bytes.current"), block_bytes);
  CHECK_EQ(lms_restore_all(pager), LMS_READ_FAILED);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);  // the sanitizers have handlers of their own
    lms_configure(pager, &given);  // installs the pager's handler over it
    check::load(blocks[1]);
    std::_Exit(0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(CHECK_SANITIZED ? !(WIFEXITED(status) && WEXITSTATUS(status) == 0)
                        : WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  CHECK(holds(blocks[3], block_bytes, 3));
  lms_free(pager, blocks[0]);
  char* next = filled(pager, block_bytes, 9);
  reclaim(pager);
  CHECK(holds(next, block_bytes, 9));
}

CASE(closed_descriptors) {
  // As a program does that becomes a daemon. The numbers get other files, which stay as they are.
  lms_pager* pager = create(options(64 * mib, "lru", check::directory().c_str()));
  std::vector<char*> blocks = many(pager, 8);
  CHECK_EQ(reclaim(pager), 8 * block_bytes);
  touch(pager, blocks[7], true);
  int closed = 0;
  for (int file = 3; file < check::descriptors; ++file) {
    closed += close(file) == 0 ? 1 : 0;
  }
  CHECK(closed > 0);
  const std::string theirs = check::directory() + "/theirs";
  const int file = open(theirs.c_str(), O_RDWR | O_CREAT, 0600);
  const std::string contents(mib, 't');
  CHECK_EQ(write(file, contents.data(), contents.size()), contents.size());
  for (int number = 3; number < check::descriptors; ++number) {
    CHECK(number == file || dup2(file, number) == number);
  }
  CHECK_EQ(reclaim(pager), block_bytes);
  check_all(blocks);
  for (std::uint64_t i = 8; i < 16; ++i) {
    blocks.push_back(filled(pager, block_bytes, i));
  }
  CHECK_EQ(reclaim(pager), 9 * block_bytes + 7 * block_bytes);
  check_all(blocks);
  for (char* block : blocks) {
    lms_free(pager, block);
  }
  struct stat status = {};
  CHECK_EQ(fstat(file, &status), 0);
  CHECK_EQ(status.st_size, contents.size());
  std::string found(mib, '-');
  CHECK_EQ(pread(file, &found[0], found.size(), 0), found.size());
  CHECK(found == contents);
}

CASE(relative_directory) {
  const std::string directory = check::directory() + "/store";
  CHECK_EQ(mkdir(directory.c_str(), 0700), 0);
  CHECK_EQ(chdir(check::directory().c_str()), 0);
  lms_pager* pager = create(options(64 * mib, "lru", "store"));
  CHECK_EQ(chdir("/"), 0);
  const std::vector<char*> blocks = many(pager, 8);
  CHECK_EQ(reclaim(pager), 8 * block_bytes);
  check_all(blocks);
}

CASE(vanished_directory) {
  const std::string directory = check::directory() + "/store";
  CHECK_EQ(mkdir(directory.c_str(), 0700), 0);
  lms_pager* pager = create(options(64 * mib, "lru", directory.c_str()));
  CHECK_EQ(entries(directory), 0);  // the files have no names
  const std::vector<char*> blocks = many(pager, 16);
  CHECK_EQ(rmdir(directory.c_str()), 0);
  std::uint64_t reclaimed = 0;
  CHECK_EQ(lms_reclaim(pager, UINT64_MAX, &reclaimed), LMS_STORE_FAILED);
  CHECK(contains(lms_last_error(), directory.c_str()));
  CHECK(contains(lms_last_error(), "No such file"));
  check_all(blocks);
  CHECK_EQ(mkdir(directory.c_str(), 0700), 0);
  CHECK_EQ(reclaim(pager), 16 * block_bytes);
  CHECK_EQ(entries(directory), 0);
  // What is away stays readable when the directory goes now: the files are open.
  CHECK_EQ(rmdir(directory.c_str()), 0);
  check_all(blocks);
}

CASE(directory_that_cannot_be_used) {
  create_fails(options(mib, "lru", "no/such/directory"), LMS_STORE_FAILED, "no/such/directory");
  const std::string file = check::directory() + "/file";
  std::fclose(std::fopen(file.c_str(), "w"));
  create_fails(options(mib, "lru", file.c_str()), LMS_STORE_FAILED, "Not a directory");
  lms_pager* pager = create(options(mib));
  char* block = filled(pager, block_bytes, 1);
  const lms_options wrong = options(2 * mib, "lru", "no/such/directory");
  CHECK_EQ(lms_configure(pager, &wrong), LMS_STORE_FAILED);
  CHECK_EQ(lms_limit(pager), mib);  // nothing changed
  CHECK_EQ(reclaim(pager), block_bytes);
  CHECK(holds(block, block_bytes, 1));
}

CASE_WITHOUT_SANITIZER(file_store_bounds_memory) {
  // Ten times as much as the limit, and the process really stays small.
  lms_pager* pager = create(options(16 * mib, "lru", check::directory().c_str()));
  const std::uint64_t before = check::in_ram();
  const std::vector<char*> blocks = many(pager, 160, mib);
  for (std::uint64_t i = 0; i < blocks.size(); ++i) {
    const lms_pin_token token = pin(pager, blocks[i]);
    CHECK(holds(blocks[i], mib, i));
    lms_unpin(pager, token);
  }
  CHECK(statistic(pager, "device_bytes.peak") <= 16 * mib);
  CHECK(check::in_ram() < before + 24 * mib);
}

// ---------------------------------------------------------------------------------------------- limits

CASE(soft_limits_below_a_block) {
  for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{1}, block_bytes - 1}) {
    lms_pager* pager = create(options(limit));
    const std::vector<char*> blocks = many(pager, 4);
    for (std::uint64_t round = 0; round < 3; ++round) {
      for (std::uint64_t i = 0; i < 4; ++i) {
        const lms_pin_token token = pin(pager, blocks[i], true);
        CHECK(holds(blocks[i], block_bytes, i));
        CHECK_EQ(statistic(pager, "device_bytes.current"), block_bytes);
        lms_unpin(pager, token);
        CHECK_EQ(statistic(pager, "device_bytes.current"), 0);
      }
    }
    CHECK(statistic(pager, "over_limit.requests") >= 16);
    CHECK_EQ(statistic(pager, "over_limit_bytes.peak"), block_bytes - limit);
    check_all(blocks);
  }
}

CASE(soft_excess_is_reported_and_given_back) {
  lms_pager* pager = create(options(4 * block_bytes));
  const std::vector<char*> blocks = many(pager, 8);
  std::vector<lms_pin_token> tokens;
  for (char* block : blocks) {
    tokens.push_back(pin(pager, block));
  }
  CHECK_EQ(statistic(pager, "device_bytes.current"), 8 * block_bytes);
  CHECK_EQ(statistic(pager, "pinned_bytes.current"), 8 * block_bytes);
  CHECK_EQ(statistic(pager, "over_limit_bytes.peak"), 4 * block_bytes);
  for (const lms_pin_token& token : tokens) {
    lms_unpin(pager, token);
  }
  CHECK(statistic(pager, "device_bytes.current") <= 4 * block_bytes);
  lms_reset_peaks(pager);
  CHECK_EQ(statistic(pager, "over_limit_bytes.peak"), 0);
  check_all(blocks);
}

thread_local const char* running = nullptr;
const char* name_of_running() { return running; }

std::string over_limit_operation(lms_pager* pager) {
  std::array<char, 8> text{};
  const size_t length = lms_over_limit_operation(pager, text.data(), text.size());
  CHECK_EQ(std::string(text.data()).size(), std::min<size_t>(length, text.size() - 1));
  return text.data();
}

CASE(operations_that_pass_the_limit_are_named) {
  lms_pager* pager = create(options(4 * block_bytes, "lru", nullptr));
  std::vector<char*> blocks = many(pager, 4);
  std::vector<lms_pin_token> tokens;
  for (char* block : blocks) {
    tokens.push_back(pin(pager, block));
  }
  CHECK(over_limit_operation(pager) == "");
  running = "first";
  blocks.push_back(allocate(pager, block_bytes));
  CHECK(over_limit_operation(pager) == "");  // nobody said how operations are called
  lms_reset_peaks(pager);
  lms_name_operations(&name_of_running);
  blocks.push_back(allocate(pager, block_bytes));
  CHECK(over_limit_operation(pager) == "first");
  running = "the second";
  blocks.push_back(allocate(pager, block_bytes));
  CHECK(over_limit_operation(pager) == "the sec");
  running = nullptr;
  std::thread([&] { blocks.push_back(allocate(pager, block_bytes)); }).join();
  CHECK(over_limit_operation(pager) == "");
  lms_reset_peaks(pager);
  CHECK(over_limit_operation(pager) == "");
  running = "third";
  lms_options strict = options(4 * block_bytes, "lru", nullptr, true);
  CHECK_EQ(lms_configure(pager, &strict), LMS_OK);
  void* refused = nullptr;
  CHECK_EQ(lms_allocate(pager, block_bytes, &refused), LMS_OUT_OF_MEMORY);
  CHECK(contains(lms_last_error(), "bytes requested in third, limit"));
  lms_name_operations(nullptr);
}

CASE(strict_limits) {
  for (const std::uint64_t limit : {std::uint64_t{0}, std::uint64_t{1}, block_bytes - 1}) {
    lms_pager* pager = create(options(limit, "lru", nullptr, true));
    void* refused = nullptr;
    CHECK_EQ(lms_allocate(pager, block_bytes, &refused), LMS_OUT_OF_MEMORY);
    CHECK(refused == nullptr);
    const std::string text = lms_last_error();
    CHECK(contains(text.c_str(), "65536 bytes requested"));
    CHECK(contains(text.c_str(), ("limit " + std::to_string(limit)).c_str()));
    CHECK_EQ(statistic(pager, "device_bytes.current"), 0);
    CHECK_EQ(statistic(pager, "allocated_blocks.current"), 0);
  }
  lms_pager* pager = create(options(4 * block_bytes, "lru", nullptr, true));
  const std::vector<char*> blocks = many(pager, 8);
  std::vector<lms_pin_token> tokens;
  for (std::uint64_t i = 0; i < 4; ++i) {
    tokens.push_back(pin(pager, blocks[i]));
  }
  lms_pin_token token = {&token, 1};
  CHECK_EQ(lms_pin(pager, blocks[5], 0, &token), LMS_OUT_OF_MEMORY);
  CHECK(token.block == nullptr);
  CHECK(contains(lms_last_error(), "262144"));  // pinned bytes
  CHECK(contains(lms_last_error(), "pinned"));
  CHECK_EQ(statistic(pager, "over_limit.requests"), 0);
  CHECK_EQ(statistic(pager, "device_bytes.peak"), 4 * block_bytes);
  lms_unpin(pager, tokens.back());
  touch(pager, blocks[5]);
  for (std::uint64_t i = 0; i < 3; ++i) {
    lms_unpin(pager, tokens[i]);
  }
  // Within an operation: the results of others within it leave too, when nothing else is left, but not its own blocks.
  lms_scope_begin(pager);
  std::vector<char*> inside;
  for (std::uint64_t i = 0; i < 6; ++i) {
    lms_scope_begin(pager);
    inside.push_back(filled(pager, block_bytes, 50 + i));
    lms_scope_end(pager);
  }
  for (std::uint64_t i = 0; i < 4; ++i) {
    inside.push_back(filled(pager, block_bytes, 56 + i));
  }
  void* fifth = nullptr;
  CHECK_EQ(lms_allocate(pager, block_bytes, &fifth), LMS_OUT_OF_MEMORY);
  lms_scope_end(pager);
  CHECK(statistic(pager, "device_bytes.peak") <= 4 * block_bytes);
  for (std::uint64_t i = 0; i < inside.size(); ++i) {
    CHECK(holds(inside[i], block_bytes, 50 + i));
  }
  check_all(blocks);
}

CASE(strict_after_raw_access) {
  // What a raw access brought in is not pinned by an operation: a request may take its pages.
  lms_pager* pager = create(options(mib, "lru", nullptr, true));
  char* first = filled(pager, mib, 1);
  char* second = filled(pager, mib, 2);
  CHECK(holds(first, mib, 1));
  touch(pager, second);
  CHECK(holds(second, mib, 2));
  CHECK_EQ(statistic(pager, "over_limit.requests"), 0);
}

CASE(set_limit_after_raw_access) {
  lms_pager* pager = create(options(16 * mib));
  const std::vector<char*> blocks = many(pager, 8, mib);
  reclaim(pager);
  check_all(blocks, mib);
  CHECK_EQ(lms_set_limit(pager, mib), LMS_OK);
  CHECK(statistic(pager, "device_bytes.current") <= mib);
}

CASE(unseen_blocks_stay) {
  // They were never announced: the program may hold raw pointers to them.
  lms_pager* pager = create(options(2 * block_bytes));
  char* unseen[4];
  for (std::uint64_t i = 0; i < 4; ++i) {
    unseen[i] = allocate(pager, block_bytes);
    check::fill(unseen[i], block_bytes, i);
  }
  CHECK_EQ(reclaim(pager), 0);
  CHECK_EQ(statistic(pager, "resident_bytes.current"), 4 * block_bytes);
  lms_mark_seen(pager, unseen[1] + 5);
  CHECK_EQ(statistic(pager, "inactive_bytes.current"), block_bytes);
  CHECK_EQ(reclaim(pager), block_bytes);
  for (std::uint64_t i = 0; i < 4; ++i) {
    CHECK(holds(unseen[i], block_bytes, i));
  }
}

CASE(scopes_protect) {
  lms_pager* pager = create(options(16 * mib));
  lms_scope_begin(pager);
  lms_scope_begin(pager);
  char* block = filled(pager, block_bytes, 1);
  lms_scope_end(pager);
  CHECK_EQ(statistic(pager, "protected_bytes.current"), block_bytes);
  CHECK_EQ(reclaim(pager), 0);
  lms_scope_end(pager);
  CHECK_EQ(statistic(pager, "protected_bytes.current"), 0);
  CHECK_EQ(reclaim(pager), block_bytes);
  lms_scope_end(pager);  // one too many does no harm
  lms_scope_begin(pager);
  char* other = filled(pager, block_bytes, 2);
  CHECK_EQ(reclaim(pager), 0);
  lms_scope_end(pager);
  CHECK(holds(block, block_bytes, 1) && holds(other, block_bytes, 2));
}

CASE(scope_of_an_ended_thread) {
  lms_pager* pager = create(options(16 * mib));
  char* block = nullptr;
  std::thread([&] {
    lms_scope_begin(pager);
    block = filled(pager, block_bytes, 1);
  }).join();
  CHECK_EQ(reclaim(pager), block_bytes);
  CHECK(holds(block, block_bytes, 1));
}

CASE(restore_all_under_pressure) {
  lms_pager* pager = create(options(4 * block_bytes, "iteration"));
  std::vector<char*> blocks = many(pager, 40);
  CHECK(statistic(pager, "away_bytes.current") >= 36 * block_bytes);
  CHECK_EQ(lms_restore_all(pager), LMS_OK);
  CHECK_EQ(statistic(pager, "away_bytes.current"), 0);
  CHECK_EQ(statistic(pager, "store_bytes.current"), 0);
  for (std::uint64_t i = 0; i < blocks.size(); ++i) {
    touch(pager, blocks[i], true);
  }
  blocks.push_back(filled(pager, block_bytes, 40));
  CHECK_EQ(statistic(pager, "away_bytes.current"), 0);  // the limit no longer applies
  check_all(blocks);
  CHECK_EQ(lms_set_limit(pager, 4 * block_bytes), LMS_OK);
  CHECK(statistic(pager, "device_bytes.current") <= 4 * block_bytes);
  check_all(blocks);
}

// A program that asks for its memory back is not short of it: nothing is logged for the policy, which then has nothing
// to learn from and brings nothing back on its own.
CASE(reclaim_is_no_shortage) {
  lms_pager* pager = create(options(16 * block_bytes, "iteration"));
  const std::vector<char*> blocks = many(pager, 8);
  const auto iterate = [&] {
    for (int iteration = 0; iteration < 40; ++iteration) {
      for (char* block : blocks) {
        touch(pager, block);
      }
    }
  };
  CHECK_EQ(reclaim(pager), 8 * block_bytes);
  iterate();
  CHECK_EQ(statistic(pager, "policy.foreseen"), 0);
  CHECK_EQ(statistic(pager, "prefetch.blocks"), 0);
  CHECK_EQ(lms_set_limit(pager, 4 * block_bytes), LMS_OK);
  iterate();
  CHECK(statistic(pager, "policy.foreseen") > 0);
}

// ---------------------------------------------------------------------------------------------- system limits

CASE_WITHOUT_SANITIZER(little_address_space) {
  struct rlimit limit = {256 * mib, RLIM_INFINITY};
  CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  create_fails(options(mib, "lru", nullptr, false, std::uint64_t{1} << 40), LMS_OUT_OF_MEMORY, "ulimit -v");
  create_fails(options(mib, "lru", nullptr, false, 0), LMS_OUT_OF_MEMORY, "ulimit -v");
  lms_pager* pager = create(options(8 * mib, "lru", nullptr, false, 64 * mib));
  const std::vector<char*> blocks = many(pager, 4, 4 * mib);
  check_all(blocks, 4 * mib);
  // From here on nothing more can be mapped: an error, and everything is still there.
  limit.rlim_cur = 4 * mib;
  CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  lms_status status = LMS_OK;
  for (char* block : blocks) {
    lms_pin_token token;
    status = lms_pin(pager, block, 1, &token);  // a page-in needs address space for a moment
    if (status != LMS_OK) {
      break;
    }
    lms_unpin(pager, token);
  }
  CHECK_EQ(status, LMS_OUT_OF_MEMORY);
  limit.rlim_cur = RLIM_INFINITY;
  CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  check_all(blocks, 4 * mib);
}

CASE(address_space_is_used_up) {
  lms_pager* pager = create(options(64 * mib, "lru", nullptr, false, 4 * mib));
  std::vector<char*> blocks;
  void* address = nullptr;
  while (lms_allocate(pager, block_bytes, &address) == LMS_OK) {
    blocks.push_back(static_cast<char*>(address));
    check::fill(address, block_bytes, blocks.size() - 1);
    CHECK(blocks.size() <= 4 * mib / block_bytes);
  }
  CHECK(contains(lms_last_error(), "address space"));
  CHECK(blocks.size() >= 2 * mib / block_bytes);
  check_all(blocks);
  for (char* block : blocks) {
    lms_free(pager, block);
  }
  // Freed blocks keep their pages and ranges for requests of their size; another size gets them all the same.
  lms_free(pager, allocate(pager, mib));
  lms_pager* tiny = nullptr;
  const lms_options given = options(mib, "lru", nullptr, false, 1);
  CHECK(lms_create(&given, &tiny) == LMS_OK || contains(lms_last_error(), "address space"));
}

CASE_WITHOUT_SANITIZER(more_blocks_than_mappings) {
  // Every second block comes back, each with other access rights than its neighbours: more mappings than the kernel
  // allows a process (65530 unless it was changed).
  constexpr std::uint64_t count = 68000;
  lms_pager* pager = create(options(1024 * mib, "lru", nullptr, false, std::uint64_t{1} << 36));
  std::vector<char*> blocks;
  for (std::uint64_t i = 0; i < count; ++i) {
    blocks.push_back(allocate(pager, 4096));
    check::store(blocks.back(), i);
    lms_mark_seen(pager, blocks.back());
  }
  CHECK_EQ(reclaim(pager), count * 4096);
  for (std::uint64_t i = 0; i < count; i += 2) {
    if (i % 8 == 0) {
      CHECK_EQ(check::load(blocks[i]), i);
    } else {
      const lms_pin_token token = pin(pager, blocks[i], i % 4 == 0);
      CHECK_EQ(check::load(blocks[i]), i);
      lms_unpin(pager, token);
    }
  }
  for (std::uint64_t i = 0; i < count; i += 3) {
    lms_free(pager, blocks[i]);
  }
  for (std::uint64_t i = 1; i < count; i += 30) {
    CHECK_EQ(check::load(blocks[i]), i);
  }
}

CASE(absurd_sizes) {
  lms_pager* pager = create(options(8 * mib));
  const std::vector<char*> blocks = many(pager, 4);
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 4095, UINT64_MAX - 4096, UINT64_MAX - 8192,
        UINT64_MAX - 65535, UINT64_MAX - 65536, UINT64_MAX - 200000, std::uint64_t{1} << 63, std::uint64_t{1} << 40,
        (std::uint64_t{1} << 30) + 1, (std::uint64_t{1} << 29) + 1}) {
    void* refused = &refused;
    const lms_status status = lms_allocate(pager, bytes, &refused);
    CHECK(status == LMS_INVALID_ARGUMENT || status == LMS_OUT_OF_MEMORY);
    CHECK(refused == &refused);
    CHECK(lms_last_error()[0] != '\0');
  }
  CHECK_EQ(statistic(pager, "out.blocks"), 0);  // nothing was paged out for what can never fit
  CHECK_EQ(statistic(pager, "allocated_blocks.current"), 4);
  check_all(blocks);
  lms_free(pager, allocate(pager, 1));
}

CASE(too_many_pagers) {
  int made = 0;
  lms_status status = LMS_OK;
  while (status == LMS_OK && made < 1000) {
    const lms_options given = options(mib, "lru", nullptr, false, 4 * mib);
    lms_pager* pager = nullptr;
    status = lms_create(&given, &pager);
    made += status == LMS_OK ? 1 : 0;
  }
  CHECK_EQ(status, LMS_UNSUPPORTED);
  CHECK(contains(lms_last_error(), "too many pagers"));
  CHECK(made >= 8);
}

// ---------------------------------------------------------------------------------------------- arguments

CASE(wrong_options) {
  create_fails(options(mib, "mru"), LMS_INVALID_ARGUMENT, "'mru'");
  for (unsigned policy = 0; lms_policy_name(policy) != nullptr; ++policy) {
    const std::string name = std::string("'") + lms_policy_name(policy) + "'";
    create_fails(options(mib, ""), LMS_INVALID_ARGUMENT, name.c_str());
  }
  lms_options short_one = options(mib);
  short_one.struct_size = 8;
  create_fails(short_one, LMS_INVALID_ARGUMENT, "version");
  lms_pager* pager = nullptr;
  CHECK_EQ(lms_create(nullptr, &pager), LMS_INVALID_ARGUMENT);
  pager = create(options(mib, nullptr));
  char* block = filled(pager, block_bytes, 1);
  const lms_options wrong = options(0, "unknown");
  CHECK_EQ(lms_configure(pager, &wrong), LMS_INVALID_ARGUMENT);
  CHECK(contains(lms_last_error(), "unknown"));
  CHECK_EQ(lms_limit(pager), mib);
  CHECK_EQ(statistic(pager, "resident_bytes.current"), block_bytes);
  CHECK_EQ(lms_configure(pager, nullptr), LMS_INVALID_ARGUMENT);
  CHECK(holds(block, block_bytes, 1));
}

CASE(policies_have_names) {
  std::size_t count = 0;
  for (; lms_policy_name(count) != nullptr; ++count) {
    create(options(mib, lms_policy_name(count)));
    create_fails(options(mib, "mru"), LMS_INVALID_ARGUMENT, lms_policy_name(count));
  }
  CHECK(count > 1);
}

CASE(last_error_is_the_threads_own) {
  lms_pager* pager = create(options(mib));
  void* refused = nullptr;
  CHECK_EQ(lms_allocate(pager, 0, &refused), LMS_INVALID_ARGUMENT);
  CHECK(contains(lms_last_error(), "byte"));
  std::thread([] { CHECK_EQ(std::strlen(lms_last_error()), 0); }).join();
}

CASE(freed_twice) {
  lms_pager* pager = create(options(16 * mib));
  char* first = filled(pager, block_bytes, 1);
  char* second = filled(pager, block_bytes, 2);
  const std::string trace = check::directory() + "/trace";
  CHECK_EQ(lms_trace_start(pager, trace.c_str()), LMS_OK);
  lms_free(pager, first);
  lms_free(pager, first);  // cached
  reclaim(pager);
  lms_free(pager, first);  // its range is no longer a block's
  reclaim(pager);
  lms_free(pager, second);  // away
  lms_free(pager, second);
  CHECK_EQ(lms_trace_stop(pager), LMS_OK);
  CHECK_EQ(statistic(pager, "allocated_blocks.current"), 0);
  CHECK_EQ(statistic(pager, "allocated_bytes.current"), 0);
  CHECK_EQ(statistic(pager, "store_bytes.current"), 0);
  std::FILE* file = std::fopen(trace.c_str(), "r");
  CHECK(file != nullptr);
  int frees = 0;
  char line[256];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    frees += line[0] == 'f' ? 1 : 0;
  }
  std::fclose(file);
  CHECK_EQ(frees, 2);
  // Two live blocks never share an address after it.
  CHECK(allocate(pager, block_bytes) != allocate(pager, block_bytes));
}

CASE(unpinned_twice) {
  lms_pager* pager = create(options(16 * mib));
  char* block = filled(pager, block_bytes, 1);
  const lms_pin_token token = pin(pager, block);
  lms_unpin(pager, token);
  lms_unpin(pager, token);
  CHECK_EQ(statistic(pager, "pinned_bytes.current"), 0);
  CHECK_EQ(reclaim(pager), block_bytes);
  lms_unpin(pager, token);
  CHECK(holds(block, block_bytes, 1));
  // After a free the token counts for no block, even when the block is in use again.
  const lms_pin_token old = pin(pager, block);
  lms_free(pager, block);
  char* next = filled(pager, block_bytes, 2);
  CHECK(next == block);
  const lms_pin_token current = pin(pager, next);
  lms_unpin(pager, old);
  CHECK_EQ(statistic(pager, "pinned_bytes.current"), block_bytes);
  CHECK_EQ(reclaim(pager), 0);
  lms_unpin(pager, current);
  CHECK_EQ(reclaim(pager), block_bytes);
  lms_unpin(pager, lms_pin_token{nullptr, 0});
}

CASE(pin_of_freed_block) {
  lms_pager* pager = create(options(16 * mib));
  char* block = filled(pager, block_bytes, 1);
  lms_free(pager, block);
  CHECK(!lms_owns(pager, block));
  for (int i = 0; i < (1 << 20) + 3; ++i) {
    lms_pin_token token = {&token, 1};
    CHECK_EQ(lms_pin(pager, block, i & 1, &token), LMS_INVALID_ARGUMENT);
    CHECK(token.block == nullptr);
  }
  CHECK(contains(lms_last_error(), "freed"));
  CHECK(!lms_owns(pager, block));
  CHECK_EQ(reclaim(pager), 0);
  CHECK_EQ(statistic(pager, "allocated_blocks.current"), 0);
}

CASE(a_million_pins) {
  lms_pager* pager = create(options(16 * mib));
  char* block = filled(pager, block_bytes, 1);
  const lms_pin_token token = pin(pager, block);
  std::uint64_t pins = 1;
  std::uint64_t refused = 0;
  for (; pins + refused < (1 << 20) + 10;) {
    lms_pin_token other = {};
    const lms_status status = lms_pin(pager, block, 0, &other);
    CHECK(status == LMS_OK || status == LMS_INVALID_ARGUMENT);
    CHECK((status == LMS_OK) == (other.block != nullptr));
    ++(status == LMS_OK ? pins : refused);
  }
  CHECK(pins > 100000 && refused > 0);
  CHECK(contains(lms_last_error(), "pinned too often"));
  CHECK_EQ(statistic(pager, "pinned_bytes.current"), block_bytes);
  CHECK(lms_owns(pager, block));
  CHECK_EQ(reclaim(pager), 0);
  for (std::uint64_t i = 0; i < pins; ++i) {
    if (i % 1024 == 0 || i + 1 == pins) {
      CHECK_EQ(statistic(pager, "pinned_bytes.current"), block_bytes);
    }
    lms_unpin(pager, token);
  }
  CHECK_EQ(statistic(pager, "pinned_bytes.current"), 0);
  CHECK_EQ(reclaim(pager), block_bytes);
  CHECK(holds(block, block_bytes, 1));
}

// ---------------------------------------------------------------------------------------------- reconfiguring

CASE(store_and_policy_are_swapped_with_blocks_away) {
  lms_pager* pager = create(options(4 * block_bytes, "lru"));
  std::vector<char*> blocks = many(pager, 20);
  const std::string directory = check::directory();
  const lms_options to_file = options(6 * block_bytes, "iteration", directory.c_str());
  CHECK_EQ(lms_configure(pager, &to_file), LMS_OK);
  CHECK_EQ(lms_limit(pager), 6 * block_bytes);
  check_all(blocks);
  for (std::uint64_t i = 0; i < blocks.size(); ++i) {
    const lms_pin_token token = pin(pager, blocks[i], true);
    check::fill(blocks[i], block_bytes, i);
    lms_unpin(pager, token);
  }
  const lms_options back = options(2 * block_bytes, "lru", nullptr, true);
  CHECK_EQ(lms_configure(pager, &back), LMS_OK);
  CHECK(statistic(pager, "device_bytes.current") <= 2 * block_bytes);
  for (std::uint64_t i = 0; i < blocks.size(); ++i) {
    const lms_pin_token token = pin(pager, blocks[i]);
    CHECK(holds(blocks[i], block_bytes, i));
    lms_unpin(pager, token);
  }
  CHECK_EQ(lms_configure(pager, &to_file), LMS_OK);
  check_all(blocks);
  for (char* block : blocks) {
    lms_free(pager, block);
  }
  CHECK_EQ(statistic(pager, "store_bytes.current"), 0);
}

CASE(after_shutdown) {
  lms_pager* pager = create(options(4 * block_bytes, "iteration"));
  const std::vector<char*> blocks = many(pager, 8);
  lms_free(pager, allocate(pager, block_bytes));
  lms_shutdown(pager);
  CHECK_EQ(statistic(pager, "cached_bytes.current"), 0);
  check_all(blocks);
  touch(pager, blocks[2], true);
  lms_free(pager, allocate(pager, block_bytes));
  CHECK_EQ(statistic(pager, "cached_bytes.current"), 0);  // nothing is kept any more
  lms_shutdown(pager);
  const lms_options again = options(4 * block_bytes);
  CHECK_EQ(lms_configure(pager, &again), LMS_OK);
  lms_free(pager, allocate(pager, block_bytes));
  CHECK_EQ(statistic(pager, "cached_bytes.current"), block_bytes);
  check_all(blocks);
}

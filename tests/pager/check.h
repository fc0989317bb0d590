// What the pager's test programs share: cases, CHECK, seeds, contents, and short forms of the C interface.
//
// A program is a set of cases: `program NAME` runs one, `program` all of them. The exit code is 0 when every check
// held.
//
// doctest and Catch2 would do for CASE and CHECK, but pip installs neither and these tests need no more than a compiler
// and pip; and a check that fails in a forked child or beside running threads has to end the process, not the case.
#ifndef LMS_TESTS_CHECK_H
#define LMS_TESTS_CHECK_H

#include <dirent.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lms.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define CHECK_SANITIZED 1
#else
#define CHECK_SANITIZED 0
#endif

// Bytes in a page of the machine that the program is built for.
#ifndef CHECK_PAGE
#define CHECK_PAGE 4096
#endif

// An access that nothing announces is ordered by page faults, which ThreadSanitizer does not see, and may touch a block
// that another thread has just paged out: such accesses stay out of its sight.
#define CHECK_RAW_ACCESS __attribute__((no_sanitize("thread"), noinline))

// _Exit: the check may fail in a forked child, or beside running threads.
#define CHECK_FAIL(...)                                               \
  do {                                                                \
    std::fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);              \
    std::fprintf(stderr, __VA_ARGS__);                                \
    std::fprintf(stderr, "\n  last error: '%s'\n", lms_last_error()); \
    std::fflush(nullptr);                                             \
    std::_Exit(1);                                                    \
  } while (false)

#define CHECK(condition)                          \
  do {                                            \
    if (!(condition)) {                           \
      CHECK_FAIL("CHECK failed: %s", #condition); \
    }                                             \
  } while (false)

#define CHECK_EQ(left, right)                                                                        \
  do {                                                                                               \
    const unsigned long long check_left = static_cast<unsigned long long>(left);                     \
    const unsigned long long check_right = static_cast<unsigned long long>(right);                   \
    if (check_left != check_right) {                                                                 \
      CHECK_FAIL("CHECK_EQ failed: %s is %llu, %s is %llu", #left, check_left, #right, check_right); \
    }                                                                                                \
  } while (false)

namespace check {

struct Case {
  const char* name;
  void (*run)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Registration {
  Registration(const char* name, void (*run)()) { cases().push_back(Case{name, run}); }
};

// pytest reads the names of the cases from the sources, so CASE starts a line.
#define CASE(name)                                                          \
  static void case_##name();                                                \
  static const check::Registration registration_##name(#name, case_##name); \
  static void case_##name()

// A case about memory or address space of the process, of which a sanitizer takes terabytes itself.
#define CASE_WITHOUT_SANITIZER(name) CASE(name)

// LMS_TEST_SEED sets the seed; without it every run takes another one. Printed, so that a failure can be repeated.
inline std::uint64_t seed() {
  static const std::uint64_t value = [] {
    const char* given = std::getenv("LMS_TEST_SEED");
    const std::uint64_t chosen =
        given != nullptr ? std::strtoull(given, nullptr, 0) : (std::uint64_t{std::random_device{}()} << 16 | 1);
    std::printf("LMS_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    std::fflush(stdout);
    return chosen;
  }();
  return value;
}

// Steps of a long test: `plain`, fewer under a sanitizer, or LMS_TEST_STEPS.
inline std::uint64_t steps(std::uint64_t plain) {
  const char* given = std::getenv("LMS_TEST_STEPS");
  if (given != nullptr) {
    return std::strtoull(given, nullptr, 0);
  }
#if defined(__SANITIZE_THREAD__)
  return plain / 50;
#elif defined(__SANITIZE_ADDRESS__)
  return plain / 20;
#else
  return plain;
#endif
}

// Bytes of this process that are in RAM.
inline std::uint64_t in_ram() {
  unsigned long long pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  CHECK(file != nullptr && std::fscanf(file, "%*u %llu", &pages) == 1);
  std::fclose(file);
  return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

// Small and good enough: xorshift*.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u | 1) {}
  std::uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1du;
  }
  // 0 .. end - 1
  std::uint64_t below(std::uint64_t end) { return (next() >> 16) % end; }
  bool chance(std::uint64_t percent) { return below(100) < percent; }

 private:
  std::uint64_t state_;
};

constexpr std::uint64_t step_of_pattern = 0x9e3779b97f4a7c15u;

inline std::uint64_t pattern_at(std::uint64_t seed, std::uint64_t word) { return (seed + word) * step_of_pattern; }

// Contents that a seed determines. `bytes` is a multiple of 8.
CHECK_RAW_ACCESS inline void fill(void* address, std::uint64_t bytes, std::uint64_t seed) {
  auto* words = static_cast<volatile std::uint64_t*>(address);
  std::uint64_t value = pattern_at(seed, 0);
  for (std::uint64_t i = 0; i < bytes / 8; ++i, value += step_of_pattern) {
    words[i] = value;
  }
}

// The first word that differs from the contents that the seed determines; bytes / 8 when none does.
CHECK_RAW_ACCESS inline std::uint64_t mismatch(const void* address, std::uint64_t bytes, std::uint64_t seed) {
  const auto* words = static_cast<const volatile std::uint64_t*>(address);
  std::uint64_t value = pattern_at(seed, 0);
  for (std::uint64_t i = 0; i < bytes / 8; ++i, value += step_of_pattern) {
    if (words[i] != value) {
      return i;
    }
  }
  return bytes / 8;
}

inline bool holds(const void* address, std::uint64_t bytes, std::uint64_t seed) {
  return mismatch(address, bytes, seed) == bytes / 8;
}

CHECK_RAW_ACCESS inline std::uint64_t load(const void* address) {
  return *static_cast<const volatile std::uint64_t*>(address);
}

CHECK_RAW_ACCESS inline void store(void* address, std::uint64_t value) {
  *static_cast<volatile std::uint64_t*>(address) = value;
}

// A copy that no interceptor of a sanitizer looks at.
CHECK_RAW_ACCESS inline void copy(void* to, const void* from, std::uint64_t bytes) {
  for (std::uint64_t i = 0; i < bytes / 8; ++i) {
    static_cast<volatile std::uint64_t*>(to)[i] = static_cast<const volatile std::uint64_t*>(from)[i];
  }
}

// A directory for a file store, or for traces: LMS_TEST_DIRECTORY, which pytest makes for every case.
inline std::string directory() {
  const char* given = std::getenv("LMS_TEST_DIRECTORY");
  return given != nullptr ? given : ".";
}

// The numbers of the open files of stores in the directory whose path ends so.
inline std::vector<int> store_files(const std::string& directory = "") {
  std::vector<int> found;
  DIR* listing = opendir("/proc/self/fd");
  CHECK(listing != nullptr);
  while (const dirent* entry = readdir(listing)) {
    char target[4096] = {};
    if (readlinkat(dirfd(listing), entry->d_name, target, sizeof target - 1) > 0 &&
        std::strstr(target, (directory + "/lms-store-").c_str()) != nullptr) {
      found.push_back(std::atoi(entry->d_name));
    }
  }
  closedir(listing);
  return found;
}

constexpr int descriptors = 4096;  // a store's are below that

constexpr std::uint64_t kib = 1 << 10;
constexpr std::uint64_t mib = 1 << 20;

inline lms_options options(std::uint64_t limit, const char* policy = "lru", const char* store = nullptr,
                           bool strict = false, std::uint64_t address_space = std::uint64_t{1} << 30) {
  lms_options result = {};
  result.struct_size = sizeof result;
  result.limit = limit;
  result.store = store;
  result.policy = policy;
  result.strict = strict ? 1 : 0;
  result.address_space = address_space;
  return result;
}

inline lms_pager* create(const lms_options& given) {
  lms_pager* pager = nullptr;
  CHECK_EQ(lms_create(&given, &pager), LMS_OK);
  CHECK(pager != nullptr);
  return pager;
}

inline char* allocate(lms_pager* pager, std::uint64_t bytes) {
  void* address = nullptr;
  CHECK_EQ(lms_allocate(pager, bytes, &address), LMS_OK);
  CHECK(address != nullptr);
  return static_cast<char*>(address);
}

inline lms_pin_token pin(lms_pager* pager, const void* address, bool write = false) {
  lms_pin_token token = {};
  CHECK_EQ(lms_pin(pager, address, write ? 1 : 0, &token), LMS_OK);
  CHECK(token.block != nullptr);
  return token;
}

// Announces an access and ends it: the block is seen from now on.
inline void touch(lms_pager* pager, const void* address, bool write = false) {
  lms_unpin(pager, pin(pager, address, write));
}

// A block of whole pages that holds the seed's contents and may be paged out.
inline char* filled(lms_pager* pager, std::uint64_t bytes, std::uint64_t seed) {
  char* address = allocate(pager, bytes);
  fill(address, bytes, seed);
  touch(pager, address);
  return address;
}

inline std::uint64_t reclaim(lms_pager* pager, std::uint64_t bytes = UINT64_MAX) {
  std::uint64_t reclaimed = 0;
  CHECK_EQ(lms_reclaim(pager, bytes, &reclaimed), LMS_OK);
  return reclaimed;
}

// The value of one statistic by its name.
inline std::uint64_t statistic(lms_pager* pager, const char* name) {
  std::uint64_t values[128];
  const std::size_t count = lms_statistics(pager, values, 128);
  for (std::size_t index = 0; index < count; ++index) {
    if (std::strcmp(lms_statistic_name(index), name) == 0) {
      return values[index];
    }
  }
  CHECK_FAIL("no statistic is named %s", name);
}

inline bool contains(const char* text, const char* part) { return std::strstr(text, part) != nullptr; }

// Runs every case, or the one that is named.
inline int run(int count, char** arguments) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  bool found = false;
  for (const Case& one : cases()) {
    if (count > 1 && std::strcmp(arguments[1], one.name) != 0) {
      continue;
    }
    found = true;
    std::printf("case %s\n", one.name);
    one.run();
  }
  if (!found) {
    std::fprintf(stderr, "no such case\n");
  }
  return found ? 0 : 2;
}

}  // namespace check

int main(int count, char** arguments) { return check::run(count, arguments); }

#endif  // LMS_TESTS_CHECK_H

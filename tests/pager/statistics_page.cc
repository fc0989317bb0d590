// What other processes of the user can read of a pager while it counts.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <string>

#include "check.h"

using check::allocate;
using check::create;
using check::filled;
using check::holds;
using check::kib;
using check::mib;
using check::options;
using check::reclaim;
using check::statistic;

namespace {

constexpr std::uint64_t block_bytes = 64 * kib;

struct Published {
  pid_t pid = 0;
  std::string device;
  std::map<std::string, std::uint64_t> values;
};

// Every page that the process's descriptors name, as a reader from outside sees it.
std::vector<Published> published_by(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd/";
  std::vector<Published> found;
  DIR* const listing = opendir(folder.c_str());
  CHECK(listing != nullptr);
  while (const dirent* entry = readdir(listing)) {
    const std::string path = folder + entry->d_name;
    char name[256] = {};
    if (readlink(path.c_str(), name, sizeof(name) - 1) <= 0 ||
        std::string(name).rfind("/memfd:lms-statistics", 0) != 0) {
      continue;
    }
    const int file = open(path.c_str(), O_RDONLY);
    CHECK(file >= 0);
    std::string text(4096, '\0');
    CHECK_EQ(pread(file, &text[0], text.size(), 0), 4096);
    Published page;
    std::size_t at = 0;
    for (std::size_t end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
      const std::string line = text.substr(at, end - at);
      const std::string key = line.substr(0, line.find(' '));
      const std::string rest = line.substr(line.find(' ') + 1);
      if (key == "lms-statistics") {
        CHECK(rest == "1");
      } else if (key == "pid") {
        page.pid = std::stoi(rest);
      } else if (key == "device") {
        page.device = rest;
      } else {
        std::uint64_t value = 0;
        CHECK_EQ(pread(file, &value, sizeof(value), std::stol(rest)), 8);
        page.values[key] = value;
      }
    }
    close(file);
    found.push_back(page);
  }
  closedir(listing);
  return found;
}

// What the page says is what the pager says itself.
void check_equal(const Published& page, lms_pager* pager) {
  CHECK(page.values.size() > 10);
  for (const auto& each : page.values) {
    CHECK_EQ(each.second, statistic(pager, each.first.c_str()));
  }
}

// Copies twenty blocks out and in, and leaves one.
void use(lms_pager* pager, std::uint64_t salt) {
  for (std::uint64_t i = 0; i < 20; ++i) {
    char* const address = filled(pager, block_bytes, salt + i);
    CHECK(reclaim(pager) >= block_bytes);
    CHECK(holds(address, block_bytes, salt + i));
    if (i != 0) {
      lms_free(pager, address);
    }
  }
}

}  // namespace

CASE(the_page_counts_what_the_pager_counts) {
  lms_pager* const pager = create(options(10 * block_bytes));
  lms_pager* const other = create(options(mib));
  CHECK_EQ(published_by(getpid()).size(), std::size_t{2});
  use(pager, 1);
  CHECK_EQ(lms_set_limit(pager, 12 * block_bytes), LMS_OK);
  bool found = false;
  for (const Published& page : published_by(getpid())) {
    CHECK_EQ(page.pid, getpid());
    CHECK(page.device == "cpu");
    if (page.values.at("limit_bytes") == 12 * block_bytes) {
      found = true;
      CHECK(page.values.at("in.bytes") > 0);
      check_equal(page, pager);
    } else {
      check_equal(page, other);
    }
  }
  CHECK(found);
}

CASE(a_forked_child_has_a_page_of_its_own) {
  lms_pager* const pager = create(options(10 * block_bytes));
  use(pager, 1);
  const std::uint64_t before = statistic(pager, "out.bytes");
  const std::uint64_t allocated = statistic(pager, "allocated_bytes.current");
  int go[2];
  CHECK_EQ(pipe(go), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    CHECK_EQ(read(go[0], &byte, 1), 1);  // the parent has gone on counting
    CHECK_EQ(statistic(pager, "out.bytes"), before);
    CHECK_EQ(statistic(pager, "allocated_bytes.current"), allocated);
    use(pager, 2);
    const std::vector<Published> pages = published_by(getpid());
    CHECK_EQ(pages.size(), std::size_t{1});
    CHECK_EQ(pages[0].pid, getpid());
    check_equal(pages[0], pager);
    CHECK_EQ(pages[0].values.at("out.bytes"), before + 20 * block_bytes);
    _exit(0);
  }
  use(pager, 3);
  use(pager, 4);
  CHECK_EQ(write(go[1], "x", 1), 1);
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  const std::vector<Published> pages = published_by(getpid());
  CHECK_EQ(pages.size(), std::size_t{1});
  check_equal(pages[0], pager);
  CHECK_EQ(pages[0].values.at("out.bytes"), before + 40 * block_bytes);
}

CASE(a_program_may_close_every_descriptor) {
  lms_pager* const pager = create(options(10 * block_bytes));
  use(pager, 1);
  for (int file = 3; file < 64; ++file) {
    close(file);
  }
  CHECK_EQ(published_by(getpid()).size(), std::size_t{0});
  // The numbers are other files' now; a child must not close those as its parent's page.
  char name[] = "/tmp/lms-statistics-XXXXXX";
  const int other = mkstemp(name);
  unlink(name);
  for (int file = 3; file < 64; ++file) {
    if (file != other) {
      CHECK_EQ(dup2(other, file), file);
    }
  }
  use(pager, 2);
  const pid_t child = fork();
  if (child == 0) {
    for (int file = 3; file < 64; ++file) {
      CHECK_EQ(write(file, "x", 1), 1);
    }
    use(pager, 3);
    const std::vector<Published> pages = published_by(getpid());
    CHECK_EQ(pages.size(), std::size_t{1});
    check_equal(pages[0], pager);
    _exit(0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  struct stat found{};
  CHECK_EQ(fstat(other, &found), 0);
  CHECK_EQ(found.st_size, 61);
}

CASE_WITHOUT_SANITIZER(without_descriptors_it_counts_all_the_same) {
  const pid_t child = fork();
  if (child == 0) {
    while (dup(2) >= 0) {  // until there are no more
    }
    lms_pager* const pager = create(options(10 * block_bytes));
    use(pager, 1);
    CHECK_EQ(statistic(pager, "out.bytes"), 20 * block_bytes);
    _exit(0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

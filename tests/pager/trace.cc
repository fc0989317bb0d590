// The trace: its text is parsed by the format that lms.h gives, and compared with what was done.
#include <inttypes.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <set>
#include <thread>

#include "check.h"

using check::allocate;
using check::create;
using check::filled;
using check::kib;
using check::mib;
using check::options;
using check::pin;
using check::reclaim;
using check::touch;

namespace {

struct Line {
  char what;
  std::uint64_t ns;
  std::uint64_t thread;
  std::uint64_t id;     // of a, r, w, f
  std::uint64_t bytes;  // of a
};

// Every line must be of the format, to the last character; times never go back; ids are new, alive, and freed once.
std::vector<Line> parse(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "r");
  CHECK(file != nullptr);
  std::vector<Line> lines;
  std::set<std::uint64_t> alive;
  std::set<std::uint64_t> seen;
  std::map<std::uint64_t, int> depth;
  char text[256];
  while (std::fgets(text, sizeof text, file) != nullptr) {
    Line line = {};
    int end = 0;
    const char what = text[0];
    int fields = 0;
    if (what == 'b' || what == 'e') {
      fields = std::sscanf(text, "%c %" SCNu64 " %" SCNu64 "\n%n", &line.what, &line.ns, &line.thread, &end) - 3;
    } else if (what == 'a') {
      fields = std::sscanf(text, "%c %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 "\n%n", &line.what, &line.ns,
                           &line.thread, &line.id, &line.bytes, &end) -
               5;
    } else if (what == 'r' || what == 'w' || what == 'f') {
      fields = std::sscanf(text, "%c %" SCNu64 " %" SCNu64 " %" SCNu64 "\n%n", &line.what, &line.ns, &line.thread,
                           &line.id, &end) -
               4;
    } else {
      CHECK_FAIL("no such event: %s", text);
    }
    if (fields != 0 || static_cast<std::size_t>(end) != std::strlen(text)) {
      CHECK_FAIL("line %zu is not of the format: %s", lines.size() + 1, text);
    }
    CHECK(lines.empty() || lines.back().ns <= line.ns);
    switch (what) {
      case 'b':
        ++depth[line.thread];
        break;
      case 'e':
        --depth[line.thread];
        break;
      case 'a':
        CHECK(seen.insert(line.id).second);
        alive.insert(line.id);
        CHECK(line.bytes > 0 && line.bytes % 4096 == 0);
        break;
      case 'f':
        CHECK_EQ(alive.erase(line.id), 1);
        break;
      default:
        CHECK(alive.count(line.id) == 1);
    }
    lines.push_back(line);
  }
  std::fclose(file);
  return lines;
}

std::string shape(const std::vector<Line>& lines) {
  std::string result;
  for (const Line& line : lines) {
    result += line.what;
    if (line.what != 'b' && line.what != 'e') {
      result += std::to_string(line.id);
    }
    result += ' ';
  }
  return result;
}

void check_shape(const std::vector<Line>& lines, const std::string& expected) {
  if (shape(lines) != expected) {
    CHECK_FAIL("the trace is '%s', expected '%s'", shape(lines).c_str(), expected.c_str());
  }
}

}  // namespace

CASE(format) {
  const std::string path = check::directory() + "/trace";
  lms_pager* pager = create(options(mib));
  char* old = filled(pager, 64 * kib, 1);
  CHECK_EQ(lms_trace_start(pager, path.c_str()), LMS_OK);
  lms_scope_begin(pager);
  char* block = allocate(pager, 5000);
  const lms_pin_token token = pin(pager, old);
  touch(pager, block + 4999, true);
  lms_scope_begin(pager);
  lms_scope_end(pager);
  lms_unpin(pager, token);
  lms_scope_end(pager);
  lms_free(pager, block);
  char* again = allocate(pager, 5000);  // the cached block, under a new id
  CHECK(again == block);
  touch(pager, again);
  lms_free(pager, old);
  CHECK_EQ(lms_trace_stop(pager), LMS_OK);
  touch(pager, again, true);
  const std::vector<Line> lines = parse(path);
  check_shape(lines, "a0 b a1 r0 w1 b e e f1 a2 r2 f0 ");
  CHECK_EQ(lines[0].bytes, 64 * kib);
  CHECK_EQ(lines[2].bytes, (5000 + CHECK_PAGE - 1) / CHECK_PAGE * CHECK_PAGE);
}

CASE(started_twice_and_stopped_twice) {
  const std::string path = check::directory() + "/trace";
  lms_pager* pager = create(options(mib));
  CHECK_EQ(lms_trace_stop(pager), LMS_UNSUPPORTED);
  CHECK_EQ(lms_trace_start(pager, "no/such/directory/trace"), LMS_INVALID_ARGUMENT);
  CHECK(check::contains(lms_last_error(), "no/such/directory/trace"));
  CHECK_EQ(lms_trace_start(pager, path.c_str()), LMS_OK);
  CHECK_EQ(lms_trace_start(pager, (path + "2").c_str()), LMS_UNSUPPORTED);
  touch(pager, filled(pager, 64 * kib, 1));
  CHECK_EQ(lms_trace_stop(pager), LMS_OK);
  CHECK_EQ(lms_trace_stop(pager), LMS_UNSUPPORTED);
  check_shape(parse(path), "a0 r0 r0 ");
  // A second trace starts from the beginning.
  CHECK_EQ(lms_trace_start(pager, path.c_str()), LMS_OK);
  CHECK_EQ(lms_trace_stop(pager), LMS_OK);
  check_shape(parse(path), "a0 ");
}

CASE(paging_does_not_show) {
  // A trace tells what the program does; it is the same however little memory there is.
  std::string shapes[2];
  for (int which = 0; which < 2; ++which) {
    const std::string path = check::directory() + "/trace";
    lms_pager* pager = create(options(which == 0 ? 64 * mib : 128 * kib, "iteration"));
    CHECK_EQ(lms_trace_start(pager, path.c_str()), LMS_OK);
    std::vector<char*> blocks;
    for (std::uint64_t i = 0; i < 8; ++i) {
      blocks.push_back(filled(pager, 64 * kib, i));
    }
    for (int round = 0; round < 20; ++round) {
      for (char* block : blocks) {
        lms_scope_begin(pager);
        touch(pager, block, round % 2 == 0);
        lms_scope_end(pager);
      }
    }
    CHECK_EQ(lms_trace_stop(pager), LMS_OK);
    shapes[which] = shape(parse(path));
  }
  CHECK(shapes[0] == shapes[1]);
}

CASE(many_threads) {
  const std::string path = check::directory() + "/trace";
  lms_pager* pager = create(options(256 * kib));
  CHECK_EQ(lms_trace_start(pager, path.c_str()), LMS_OK);
  constexpr std::uint64_t threads = 4;
  const std::uint64_t rounds = check::steps(2000);
  std::atomic<std::uint64_t> started{0};
  std::atomic<std::uint64_t> ended{0};
  std::vector<std::thread> running;
  for (std::uint64_t thread = 0; thread < threads; ++thread) {
    running.emplace_back([&] {
      ++started;
      while (started.load() < threads) {
        std::this_thread::yield();
      }
      for (std::uint64_t round = 0; round < rounds; ++round) {
        lms_scope_begin(pager);
        char* block = allocate(pager, 64 * kib);
        touch(pager, block, true);
        lms_scope_end(pager);
        lms_free(pager, block);
      }
      ++ended;
      while (ended.load() < threads) {
        std::this_thread::yield();  // all live at the same time, so that each has a number of its own
      }
    });
  }
  for (std::thread& thread : running) {
    thread.join();
  }
  CHECK_EQ(lms_trace_stop(pager), LMS_OK);
  const std::vector<Line> lines = parse(path);
  std::map<char, std::uint64_t> counts;
  std::map<std::uint64_t, std::string> by_thread;
  for (const Line& line : lines) {
    ++counts[line.what];
    by_thread[line.thread] += line.what;
  }
  for (const char what : {'b', 'e', 'a', 'w', 'f'}) {
    CHECK_EQ(counts[what], threads * rounds);
  }
  CHECK_EQ(by_thread.size(), threads);
  for (const auto& entry : by_thread) {
    for (std::uint64_t i = 0; i < entry.second.size(); ++i) {
      CHECK(entry.second[i] == "bawef"[i % 5]);
    }
  }
}

CASE(child_leaves_the_trace_alone) {
  const std::string path = check::directory() + "/trace";
  lms_pager* pager = create(options(mib));
  CHECK_EQ(lms_trace_start(pager, path.c_str()), LMS_OK);
  char* block = filled(pager, 64 * kib, 1);
  std::fflush(stdout);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    touch(pager, block, true);
    CHECK_EQ(lms_trace_stop(pager), LMS_UNSUPPORTED);
    std::exit(0);  // closes what stdio has open
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  touch(pager, block);
  CHECK_EQ(lms_trace_stop(pager), LMS_OK);
  check_shape(parse(path), "a0 r0 r0 ");
}

CASE(started_and_stopped_beside_everything) {
  const std::string path = check::directory() + "/trace";
  lms_pager* pager = create(options(256 * kib));
  std::atomic<bool> stop{false};
  std::vector<std::thread> running;
  for (int thread = 0; thread < 3; ++thread) {
    running.emplace_back([&] {
      while (!stop.load()) {
        lms_scope_begin(pager);
        char* block = allocate(pager, 64 * kib);
        touch(pager, block, true);
        lms_scope_end(pager);
        lms_free(pager, block);
      }
    });
  }
  for (int round = 0; round < 50; ++round) {
    CHECK_EQ(lms_trace_start(pager, path.c_str()), LMS_OK);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    CHECK_EQ(lms_trace_stop(pager), LMS_OK);
    parse(path);
  }
  stop.store(true);
  for (std::thread& thread : running) {
    thread.join();
  }
}

// Times the pager's hot paths and its page traffic through the C interface, and prints one JSON object. pager_bench.py
// builds it and makes a table.
//
// Hot paths: nanoseconds per pin + unpin of a resident block and per cached allocate + free, beside 10^2, 10^4 and 10^6
// live blocks, with 1 and 2 threads. "few" goes round 64 blocks spread over all that live: it shows whether the pager's
// own work grows with their number. "all" takes every live block in random order: it adds the machine's cache misses.
// Page traffic: bytes per second out to the memory store and back, against memcpy of the same sizes in the same run.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lms.h"

namespace {

constexpr std::uint64_t small_block = 64 << 10;  // never written here, so it costs address space and no memory
constexpr int repetitions = 5;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void require(lms_status status) {
  if (status != LMS_OK) {
    std::fprintf(stderr, "%s\n", lms_last_error());
    std::exit(1);
  }
}

lms_pager* make_pager(std::uint64_t limit, std::uint64_t address_space) {
  lms_options options = {};
  options.struct_size = sizeof options;
  options.limit = limit;
  options.policy = "lru";
  options.address_space = address_space;
  lms_pager* pager = nullptr;
  require(lms_create(&options, &pager));
  return pager;
}

void* allocate(lms_pager* pager, std::uint64_t bytes) {
  void* address = nullptr;
  require(lms_allocate(pager, bytes, &address));
  return address;
}

// Runs `body(thread, count)` on `threads` threads at once; the least nanoseconds per step over the repetitions.
double measure(int threads, std::uint64_t count, const std::function<void(int, std::uint64_t)>& body) {
  double best = 1e30;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    std::atomic<int> waiting{threads};
    std::vector<double> seconds(static_cast<std::size_t>(threads));
    std::vector<std::thread> running;
    for (int thread = 0; thread < threads; ++thread) {
      running.emplace_back([&, thread] {
        --waiting;
        while (waiting.load() != 0) {
        }
        const double start = now();
        body(thread, count);
        seconds[static_cast<std::size_t>(thread)] = now() - start;
      });
    }
    for (std::thread& thread : running) {
      thread.join();
    }
    best = std::min(best, *std::max_element(seconds.begin(), seconds.end()) * 1e9 / static_cast<double>(count));
  }
  return best;
}

void hot_paths() {
  std::printf("\"hot_paths\": [");
  const char* separator = "";
  for (const std::uint64_t live : {std::uint64_t{100}, std::uint64_t{10000}, std::uint64_t{1000000}}) {
    const std::uint64_t space = (live + 1000) * small_block;  // half of a pager's is for small blocks
    lms_pager* pager = make_pager(space, 2 * space);
    std::vector<void*> blocks;
    for (std::uint64_t i = 0; i < live; ++i) {
      blocks.push_back(allocate(pager, small_block));
    }
    std::vector<void*> few;
    for (std::uint64_t i = 0; i < 128; ++i) {
      few.push_back(blocks[i * live / 128]);
    }
    std::uint64_t state = 1;
    for (std::uint64_t i = live; i-- > 1;) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      std::swap(blocks[i], blocks[(state >> 20) % (i + 1)]);
    }
    for (const int threads : {1, 2}) {
      const auto pins = [&](const std::vector<void*>& chosen) {
        return measure(threads, 2000000, [&](int thread, std::uint64_t count) {
          // Each thread has a half of its own.
          const std::size_t half = chosen.size() / 2;
          void* const* mine = chosen.data() + static_cast<std::size_t>(thread) * half;
          lms_scope_begin(pager);
          std::size_t next = 0;
          for (std::uint64_t i = 0; i < count; ++i) {
            lms_pin_token token;
            lms_pin(pager, mine[next], 0, &token);
            lms_unpin(pager, token);
            next = next + 1 == half ? 0 : next + 1;
          }
          lms_scope_end(pager);
        });
      };
      const double few_ns = pins(few);
      const double all_ns = pins(blocks);
      const double allocate_ns = measure(threads, 1000000, [&](int, std::uint64_t count) {
        lms_scope_begin(pager);
        for (std::uint64_t i = 0; i < count; ++i) {
          lms_free(pager, allocate(pager, small_block));
        }
        lms_scope_end(pager);
      });
      std::printf(
          "%s\n  {\"live_blocks\": %llu, \"threads\": %d, \"pin_unpin_few_ns\": %.1f, \"pin_unpin_all_ns\": %.1f, "
          "\"allocate_free_ns\": %.1f}",
          separator, static_cast<unsigned long long>(live), threads, few_ns, all_ns, allocate_ns);
      separator = ",";
      std::fflush(stdout);
    }
    // In the order of addresses: the kernel joins what is given back, instead of running out of mappings.
    std::sort(blocks.begin(), blocks.end());
    for (void* block : blocks) {
      lms_free(pager, block);
    }
    lms_shutdown(pager);
  }
  std::printf("]");
}

// Gigabytes per second of memcpy between two buffers that are far larger than the caches together.
double memcpy_speed(std::uint64_t bytes, std::uint64_t total) {
  const std::uint64_t count = std::max<std::uint64_t>(1, total / bytes);
  std::vector<char> from(bytes * count, 1);
  std::vector<char> to(bytes * count, 2);
  double best = 1e30;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    const double start = now();
    for (std::uint64_t i = 0; i < count; ++i) {
      std::memcpy(&to[i * bytes], &from[i * bytes], bytes);
    }
    best = std::min(best, now() - start);
  }
  return static_cast<double>(bytes * count) / best / 1e9;
}

void traffic() {
  std::printf("\"traffic\": [");
  const std::uint64_t total = 256 << 20;
  const char* separator = "";
  for (std::uint64_t bytes = 64 << 10; bytes <= (64 << 20); bytes *= 4) {
    lms_pager* pager = make_pager(2 * total, 4 * total);
    std::vector<void*> blocks;
    for (std::uint64_t i = 0; i < total / bytes; ++i) {
      void* block = allocate(pager, bytes);
      std::memset(block, static_cast<int>(i), bytes);
      lms_mark_seen(pager, block);
      blocks.push_back(block);
    }
    double out = 1e30;
    double in = 1e30;
    double drop = 1e30;
    std::uint64_t left = 0;
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      double start = now();
      require(lms_reclaim(pager, UINT64_MAX, &left));
      out = std::min(out, now() - start);
      start = now();
      for (void* block : blocks) {
        lms_pin_token token;
        require(lms_pin(pager, block, 0, &token));
        lms_unpin(pager, token);
      }
      in = std::min(in, now() - start);
      start = now();
      require(lms_reclaim(pager, UINT64_MAX, &left));
      drop = std::min(drop, now() - start);
      for (void* block : blocks) {
        lms_pin_token token;
        require(lms_pin(pager, block, 1, &token));  // dirty again
        lms_unpin(pager, token);
      }
    }
    if (left != total) {
      std::fprintf(stderr, "only %llu bytes left\n", static_cast<unsigned long long>(left));
      std::exit(1);
    }
    const double gigabytes = static_cast<double>(total) / 1e9;
    std::printf(
        "%s\n  {\"block_bytes\": %llu, \"out_gbps\": %.2f, \"in_gbps\": %.2f, \"clean_drop_us\": %.2f, "
        "\"memcpy_gbps\": %.2f}",
        separator, static_cast<unsigned long long>(bytes), gigabytes / out, gigabytes / in,
        drop * 1e6 / static_cast<double>(blocks.size()), memcpy_speed(bytes, total));
    separator = ",";
    std::fflush(stdout);
    for (void* block : blocks) {
      lms_free(pager, block);
    }
    lms_shutdown(pager);
  }
  std::printf("]");
}

}  // namespace

int main() {
  std::printf("{");
  hot_paths();
  std::printf(",\n");
  traffic();
  std::printf("}\n");
  return 0;
}

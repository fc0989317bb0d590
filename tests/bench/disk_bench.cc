// Times the store in files, in the directory that is given, and checksums, and prints one JSON object of gigabytes per
// second. pager_bench.py builds it and makes a table. It has the pager's sources in it, as neither is in the C
// interface.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "all.cc"

namespace {

using lms::Slot;
using lms::Store;

constexpr int repetitions = 5;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// What the store in files moves, in gigabytes per second, when so many threads move blocks of that size.
double disk_speed(const std::vector<Slot>& slots, char* memory, std::uint64_t bytes, int threads, bool write) {
  double best = 1e30;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    std::atomic<std::size_t> next{0};
    const double start = now();
    std::vector<std::thread> running;
    for (int thread = 0; thread < threads; ++thread) {
      running.emplace_back([&] {
        for (std::size_t i = next++; i < slots.size(); i = next++) {
          char* contents = memory + i * bytes;
          if (!(write ? slots[i].segment->write(slots[i].offset, contents, bytes)
                      : slots[i].segment->read(slots[i].offset, contents, bytes))) {
            std::perror("the store fails");
            std::exit(1);
          }
        }
      });
    }
    for (std::thread& thread : running) {
      thread.join();
    }
    best = std::min(best, now() - start);
  }
  return static_cast<double>(slots.size() * bytes) / best / 1e9;
}

// The same for blocks of a unit's eighth that are written eight at a time, by one thread. `slots` are units.
double gathered_speed(const std::vector<Slot>& slots, char* memory, std::uint64_t total) {
  constexpr std::uint64_t count = 8;
  constexpr std::uint64_t bytes = lms::disk_unit / count;
  double best = 1e30;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    const double start = now();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      iovec parts[count];
      for (std::uint64_t part = 0; part < count; ++part) {
        parts[part] = iovec{memory + part * (total / count) + i * bytes, bytes};  // far from each other
      }
      if (!slots[i].segment->write_together(slots[i].offset, parts, count)) {
        std::perror("the store fails");
        std::exit(1);
      }
    }
    best = std::min(best, now() - start);
  }
  return static_cast<double>(total) / best / 1e9;
}

// Gigabytes per second of checksums of those bytes, again and again until `total` is reached.
double checksum_speed(const char* memory, std::uint64_t total, std::uint64_t bytes) {
  const std::uint64_t expected = lms::checksum(memory, bytes);
  double best = 1e30;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    const double start = now();
    for (std::uint64_t done = 0; done < total; done += bytes) {
      asm volatile("" : : "r"(memory) : "memory");  // for the compiler the bytes may be others now
      if (lms::checksum(memory, bytes) != expected) {
        std::fprintf(stderr, "two checksums of the same bytes\n");
        std::exit(1);
      }
    }
    best = std::min(best, now() - start);
  }
  return static_cast<double>(total) / best / 1e9;
}

std::unique_ptr<Store> store_in(const char* directory, bool checks) {
  lms::FileStoreOptions options;
  options.directories = {directory};
  options.checks = checks;
  std::string error;
  std::unique_ptr<Store> store = lms::make_file_store(options, &error);
  if (store == nullptr) {
    std::fprintf(stderr, "%s\n", error.c_str());
    std::exit(1);
  }
  return store;
}

std::vector<Slot> slots_of(Store* store, std::uint64_t bytes, std::uint64_t total) {
  std::vector<Slot> slots(total / bytes);
  for (Slot& slot : slots) {
    if (!store->allocate(bytes, &slot)) {
      std::fprintf(stderr, "%s\n", store->error().c_str());
      std::exit(1);
    }
  }
  return slots;
}

void disk(const char* directory) {
  const std::uint64_t total = 512 << 20;
  void* pages = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  char* memory = static_cast<char*>(pages);
  std::memset(memory, 1, total);
  std::printf("{\"checksum\": {\"cached_gbps\": %.2f, \"uncached_gbps\": %.2f},\n",
              checksum_speed(memory, total, 256 << 10), checksum_speed(memory, total, total));
  {
    const std::unique_ptr<Store> store = store_in(directory, true);
    std::printf("\"gathered_out_gbps\": %.2f,\n\"disk\": [",
                gathered_speed(slots_of(store.get(), lms::disk_unit, total), memory, total));
  }
  const char* separator = "";
  for (const bool checks : {true, false}) {
    for (std::uint64_t bytes = 64 << 10; bytes <= (16 << 20); bytes *= 16) {
      for (const int threads : {1, 2, 3, 4}) {
        const std::unique_ptr<Store> store = store_in(directory, checks);
        const std::vector<Slot> slots = slots_of(store.get(), bytes, total);
        const double out = disk_speed(slots, memory, bytes, threads, true);
        const double in = disk_speed(slots, memory, bytes, threads, false);
        std::printf(
            "%s\n  {\"block_bytes\": %llu, \"threads\": %d, \"checks\": %s, \"out_gbps\": %.2f, \"in_gbps\": %.2f}",
            separator, static_cast<unsigned long long>(bytes), threads, checks ? "true" : "false", out, in);
        separator = ",";
        std::fflush(stdout);
      }
    }
  }
  std::printf("]}\n");
  munmap(pages, total);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "disk_bench DIRECTORY\n");
    return 2;
  }
  disk(arguments[1]);
  return 0;
}

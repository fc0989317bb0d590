// What the pager reports of its blocks when it is asked, or when memory cannot be found: one look at the whole table.
// Needs the pager's lock.
#ifndef LMS_REPORT_H
#define LMS_REPORT_H

#include <cstdint>
#include <string>
#include <vector>

#include "block_table.h"
#include "statistics.h"

namespace lms {

// A live block that has device pages.
struct ResidentRange {
  char* address;
  std::uint64_t bytes;
};

namespace report {

// Sets the statistics that are states of blocks: away_blocks, and the resident ones by what keeps them.
void count_states(const BlockTable& blocks, Statistics* result);

std::vector<ResidentRange> resident_ranges(const BlockTable& blocks);

// What the calling thread runs, by the function that was set last, for all pagers; empty where none knows. Needs no
// lock.
using NameOperation = const char* (*)();
void set_name_operation(NameOperation name);
std::string running_operation();

// Of a request of `bytes`: how many they are, and what the thread runs.
std::string request(std::uint64_t bytes);

// What is resident, by what keeps it there, and away. `resident` and `allocated` are bytes of live blocks.
std::string whereabouts(const BlockTable& blocks, std::uint64_t resident, std::uint64_t allocated);

// The sentence for a request of `bytes` that would pass the limit.
std::string out_of_memory(const BlockTable& blocks, std::uint64_t bytes, std::uint64_t limit, std::uint64_t resident,
                          std::uint64_t allocated);

}  // namespace report
}  // namespace lms
#endif  // LMS_REPORT_H

// A use of a block, as the policy and the trace hear of it.
#ifndef LMS_EVENT_H
#define LMS_EVENT_H

#include <cstdint>

namespace lms {

// Index of a block: dense, and used again after the block was freed.
using BlockId = std::uint32_t;
constexpr BlockId no_block = UINT32_MAX;

enum class Use : std::uint8_t {
  allocate,  // a new block: resident, its contents undefined
  read,      // an operation reads the block
  write,     // an operation may read and write it
  free       // the block dies
};

// One use of one block, in program order.
struct Event {
  BlockId block;
  Use use;
  std::uint64_t bytes;  // whole pages that were asked for: the same whenever the program repeats itself
};

}  // namespace lms
#endif  // LMS_EVENT_H

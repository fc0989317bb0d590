// A pin: keeps one generation of a block resident. It is counted in the block's word (block.h).
#ifndef LMS_PIN_H
#define LMS_PIN_H

#include <atomic>
#include <cstdint>

#include "block.h"

namespace lms {

// Plain data; empty when block is null.
struct Pin {
  Block* block = nullptr;
  std::uint64_t generation = 0;

  // Ends the pin of a block that is not null; does nothing when the block was freed meanwhile. Thread-safe.
  void release() const {
    std::uint64_t found = block->word.load(std::memory_order_relaxed);
    while (word::generation(found) == generation && word::pins(found) > 0 &&
           !block->word.compare_exchange_weak(found, found - word::pin, std::memory_order_acq_rel)) {
    }
  }
};

}  // namespace lms
#endif  // LMS_PIN_H

// A few blocks that leave together. It takes no memory of its own: to be short of memory is when it is needed.
#ifndef LMS_BATCH_H
#define LMS_BATCH_H

#include <array>
#include <cstddef>
#include <cstdint>

#include "block.h"

namespace lms {

class Batch {
 public:
  static constexpr std::size_t most = 16;

  explicit Batch(Block* first) { add(first); }

  void add(Block* block) {
    blocks_[size_++] = block;
    bytes_ += block->bytes;
  }

  std::size_t size() const { return size_; }
  std::uint64_t bytes() const { return bytes_; }
  Block* front() const { return blocks_.front(); }
  Block* const* begin() const { return blocks_.data(); }
  Block* const* end() const { return blocks_.data() + size_; }

 private:
  std::array<Block*, most> blocks_{};
  std::size_t size_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace lms
#endif  // LMS_BATCH_H

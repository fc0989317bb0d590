// Least recently used: the block that has waited longest since its last use leaves first.
//
// Sorting is amortised: one pass over the blocks makes a list ordered by last use, which successive victims consume. A
// block used since then is newer than everything in the list, so its entry is dropped, and the order stays exact.
#ifndef LMS_LRU_POLICY_H
#define LMS_LRU_POLICY_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy.h"

namespace lms {

class LruPolicy : public Policy {
 public:
  void note(const Event& event) override;
  BlockId victim(const BlockSource& blocks, std::uint64_t bytes) override;

 private:
  struct Entry {
    std::uint64_t last_use;
    BlockId block;
  };

  void sort_blocks(const BlockSource& blocks);
  BlockId next_listed(const BlockSource& blocks);

  std::vector<Entry> order_;    // least recent first
  std::size_t next_ = 0;        // entries before this one are consumed
  std::vector<Entry> waiting_;  // consumed while pinned, protected or in flight: older than the rest of order_
  std::vector<bool> freed_;     // by id: keeps freed ids out of waiting_
};

}  // namespace lms
#endif  // LMS_LRU_POLICY_H

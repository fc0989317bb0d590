// A policy decides which block leaves when memory runs short, and which comes back before it is asked for.
//
// The pager calls a policy with its lock held, so a policy needs none of its own; it must not call back into the pager
// except through the BlockSource it is given.
#ifndef LMS_POLICY_H
#define LMS_POLICY_H

#include <cstdint>
#include <vector>

#include "../event.h"

namespace lms {

// What the pager tells of a block.
struct BlockState {
  std::uint64_t bytes;     // whole pages
  std::uint64_t last_use;  // grows with every use in the process; blocks that one operation used may share a value
  bool evictable;          // resident, seen, neither pinned nor protected, nothing in flight
  bool away;               // has no device pages and nothing in flight: could be brought in
  bool clean;              // the host store holds its contents, so that leaving needs no copy
};

// The pager's blocks as a policy may see them.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  virtual BlockId end() const = 0;                // ids are below this; freed ids are neither evictable nor away
  virtual BlockState state(BlockId id) const = 0;
  virtual const std::vector<BlockId>& present()
      const = 0;  // those that have pages, and so may be evictable; in no order
  virtual std::uint64_t limit() const = 0;        // bytes
  // Bytes of the limit that a plan leaves free, so that what comes back need not wait until something has left; 0 where
  // nothing is gained by that.
  virtual std::uint64_t watermark() const { return 0; }
  // What it costs to copy a byte out, where to copy one in costs 1. Changes rarely: each time a plan is made anew.
  virtual double write_cost() const { return 1; }
  virtual std::uint64_t occupied() const = 0;  // bytes of blocks with device pages, in flight or not
};

// Bounds for a policy that foresees uses, in operations of the program, about. They yield to need: what is short of
// memory takes it, and what is used is brought in.
struct Distances {
  std::uint64_t out_least = 0;  // a block leaves between two uses that are farther apart
  std::uint64_t in_least = 0;  // so long before its next use it comes back if there is room then, whatever is foreseen
  std::uint64_t in_most = UINT64_MAX;  // and not sooner than that; 0: when it is used
  bool early_out = true;  // blocks leave before memory is short
};

class Policy {
 public:
  virtual ~Policy() = default;
  // A use, in program order. Not called while memory has never been short: the events before that are unknown.
  virtual void note(const Event& event) = 0;

  // The next block to page out because `bytes` are needed now; no_block when none is evictable. The pager then pages
  // that block out, or, if it became pinned meanwhile, asks again.
  virtual BlockId victim(const BlockSource& blocks, std::uint64_t bytes) = 0;

  // The block whose leaving the background worker should start now, before memory is short; no_block for none.
  virtual BlockId early_victim(const BlockSource& blocks);

  // The block that the background worker should bring in now; no_block for none. The pager brings it in only while it
  // fits under the limit as it is.
  virtual BlockId prefetch(const BlockSource& blocks);

  // One that foresees nothing leaves them alone.
  virtual void set_distances(const Distances& distances);

  // Whether the program does what the policy foresees, so that it will ask for the same sizes again.
  virtual bool follows() const { return false; }

  // Uses that came as the policy had foreseen, and those that did not (for the statistics); 0 when it foresees none.
  virtual std::uint64_t foreseen() const;
  virtual std::uint64_t departures() const;
};

}  // namespace lms
#endif  // LMS_POLICY_H

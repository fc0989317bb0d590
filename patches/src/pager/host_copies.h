// The host copies of a pager's blocks: slots of the store that writebacks go to, and of earlier stores that still hold
// contents. A slot whose copy is still under way drains: it goes back to its store once that is over. Needs the pager's
// lock.
#ifndef LMS_HOST_COPIES_H
#define LMS_HOST_COPIES_H

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "batch.h"
#include "block.h"
#include "disk/file_store.h"
#include "store.h"

namespace lms {

class HostCopies {
 public:
  explicit HostCopies(Backend* backend) : backend_(backend) {}
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // True when writebacks go to the store with those options.
  bool go_to(const FileStoreOptions& options) const { return store_ != nullptr && options == options_; }

  // From now on writebacks go to `store`; the one before stays until its last slot is released.
  void set_store(std::unique_ptr<Store> store, const FileStoreOptions& options);

  // Gives the blocks slots side by side. False when the store has no room for them; error() says why.
  bool allocate(const Batch& blocks);
  const std::string& error() const { return store_->error(); }

  // The store that writebacks go to.
  Store& store() { return *store_; }

  // Releases the block's slot, if it has one: it is out of date, or not needed any more.
  void release(Block* block);

  // Gives the slots back to their stores whose copies are over.
  void drain();

  // See Store; of the one that writebacks go to.
  std::vector<std::unique_ptr<Segment>> take_empty();
  std::vector<std::unique_ptr<Segment>> take_unused();

  // Bytes of slots, in all stores.
  std::uint64_t bytes() const;

  // Called in parent and child after a fork.
  void freeze();

 private:
  struct Draining {
    Slot slot;
    std::uint64_t bytes;
    Uses copy;
  };

  Backend* const backend_;
  std::unique_ptr<Store> store_;
  FileStoreOptions options_;
  std::vector<std::unique_ptr<Store>> retired_;
  std::deque<Draining> draining_;  // in the order in which they were released
};

}  // namespace lms
#endif  // LMS_HOST_COPIES_H

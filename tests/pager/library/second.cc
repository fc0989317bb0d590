// A library with a pager of its own, as each framework has one.
#include <cstdint>
#include <cstring>

#include "lms.h"

extern "C" {

// A block that is full of that letter, and away.
__attribute__((visibility("default"))) char* second_block(unsigned long bytes, char letter) {
  lms_options options = {};
  options.struct_size = sizeof options;
  options.limit = 1 << 20;
  options.policy = "lru";
  options.address_space = 1 << 30;
  lms_pager* pager = nullptr;
  void* block = nullptr;
  lms_pin_token token;
  std::uint64_t reclaimed = 0;
  if (lms_create(&options, &pager) != LMS_OK || lms_allocate(pager, bytes, &block) != LMS_OK) {
    return nullptr;
  }
  std::memset(block, letter, bytes);
  lms_pin(pager, block, 0, &token);
  lms_unpin(pager, token);
  return lms_reclaim(pager, UINT64_MAX, &reclaimed) == LMS_OK && reclaimed >= bytes ? static_cast<char*>(block)
                                                                                    : nullptr;
}
}

// The pagers of the devices with LMS, and which of them an address belongs to. All functions are thread-safe.
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_PAGERS_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_PAGERS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tensorflow/core/common_runtime/lms/pager/pager.h"

namespace lms_tensorflow {

// Adds the pager of a device to those whose blocks operations pin. False: there are too many.
bool add_pager(lms::Pager* pager);

// Applies to those that there are, and to those that are added later.
void set_distances(const lms::Distances& wanted);

// The pager whose address space contains `address`; null when there is none. Takes no lock.
lms::Pager* pager_of(const void* address);

// Whether there is a pager at all, so that an operation is worth looking at.
bool any_pager();

// ------------------------------------------------------------------------------------------------ for operations

constexpr std::size_t most_pagers = 64;

struct KnownPager {
  std::uintptr_t begin = 0;  // of the pager's address space
  std::uintptr_t bytes = 0;
  lms::Pager* pager = nullptr;
};

// Entries are added and never change, so that reading takes no lock. The count is read before them.
extern std::array<KnownPager, most_pagers> known_pagers;
extern std::atomic<std::size_t> known_pager_count;

// The entry that owns the address, among the first `count`; null when there is none.
inline const KnownPager* find_pager(const void* address, std::size_t count) {
  for (std::size_t index = 0; index < count; ++index) {
    if (reinterpret_cast<std::uintptr_t>(address) - known_pagers[index].begin < known_pagers[index].bytes) {
      return &known_pagers[index];
    }
  }
  return nullptr;
}

// Whether there is a device on which an access to a block that is away fails, instead of bringing it back.
bool some_lack_faults();

}  // namespace lms_tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_PAGERS_H_

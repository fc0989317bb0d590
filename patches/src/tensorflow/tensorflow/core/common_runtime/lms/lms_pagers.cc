#include "tensorflow/core/common_runtime/lms/lms_pagers.h"

#include <mutex>

namespace lms_tensorflow {

std::array<KnownPager, most_pagers> known_pagers;
std::atomic<std::size_t> known_pager_count{0};

namespace {
std::atomic<bool> without_faults{false};
}  // namespace

bool add_pager(lms::Pager* pager) {
  static std::mutex& lock = *new std::mutex;
  const std::lock_guard<std::mutex> guard(lock);
  const std::size_t count = known_pager_count.load(std::memory_order_relaxed);
  if (count == most_pagers) {
    return false;
  }
  const lms::Backend& backend = pager->backend();
  known_pagers[count] = KnownPager{reinterpret_cast<std::uintptr_t>(backend.base()), backend.span(), pager};
  without_faults.store(without_faults || !backend.serves_faults());
  known_pager_count.store(count + 1, std::memory_order_release);
  return true;
}

lms::Pager* pager_of(const void* address) {
  const KnownPager* found = find_pager(address, known_pager_count.load(std::memory_order_acquire));
  return found != nullptr ? found->pager : nullptr;
}

bool any_pager() { return known_pager_count.load(std::memory_order_acquire) != 0; }

bool some_lack_faults() { return without_faults.load(); }

}  // namespace lms_tensorflow

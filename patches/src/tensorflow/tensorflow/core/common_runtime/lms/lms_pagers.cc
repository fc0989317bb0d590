#include "tensorflow/core/common_runtime/lms/lms_pagers.h"

#include <mutex>

#include "tensorflow/core/common_runtime/lms/lms_tensorflow.h"

namespace lms_tensorflow {

std::array<KnownPager, most_pagers> known_pagers;
std::atomic<std::size_t> known_pager_count{0};

namespace {
std::atomic<bool> without_faults{false};

std::mutex& adding() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}
lms::Distances distances;  // guarded by adding()
}  // namespace

bool add_pager(lms::Pager* pager) {
  const std::lock_guard<std::mutex> guard(adding());
  const std::size_t count = known_pager_count.load(std::memory_order_relaxed);
  if (count == most_pagers) {
    return false;
  }
  pager->set_distances(distances);
  const lms::Backend& backend = pager->backend();
  known_pagers[count] = KnownPager{reinterpret_cast<std::uintptr_t>(backend.base()), backend.span(), pager};
  without_faults.store(without_faults || !backend.serves_faults());
  known_pager_count.store(count + 1, std::memory_order_release);
  return true;
}

void set_distances(const lms::Distances& wanted) {
  const std::lock_guard<std::mutex> guard(adding());
  distances = wanted;
  const std::size_t count = known_pager_count.load(std::memory_order_relaxed);
  for (std::size_t index = 0; index < count; ++index) {
    known_pagers[index].pager->set_distances(wanted);
  }
}

lms::Pager* pager_of(const void* address) {
  const KnownPager* found = find_pager(address, known_pager_count.load(std::memory_order_acquire));
  return found != nullptr ? found->pager : nullptr;
}

bool any_pager() { return known_pager_count.load(std::memory_order_acquire) != 0; }

bool some_lack_faults() { return without_faults.load(); }

}  // namespace lms_tensorflow

void lms_tensorflow_set_distances(uint64_t out_least, uint64_t in_least, uint64_t in_most, int early_out) {
  lms::Distances wanted;
  wanted.out_least = out_least;
  wanted.in_least = in_least;
  wanted.in_most = in_most;
  wanted.early_out = early_out != 0;
  lms_tensorflow::set_distances(wanted);
}

#include "registry.h"

#include <array>
#include <atomic>
#include <mutex>

namespace lms {
namespace registry {

namespace {

std::array<std::atomic<Registered*>, 64> registry_pagers{};

}  // namespace

bool add(Registered* pager) {
  static std::mutex& lock = *new std::mutex;
  const std::lock_guard<std::mutex> guard(lock);
  for (std::atomic<Registered*>& entry : registry_pagers) {
    if (entry.load(std::memory_order_relaxed) == nullptr) {
      entry.store(pager, std::memory_order_release);
      return true;
    }
  }
  return false;
}

Registered* at(std::size_t index) {
  return index < registry_pagers.size() ? registry_pagers[index].load(std::memory_order_acquire) : nullptr;
}

}  // namespace registry
}  // namespace lms

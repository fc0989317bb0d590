#include "tape.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>

namespace operators {

namespace {

std::atomic<std::FILE*> tape{nullptr};

using Entry = c10::cuda::CUDACachingAllocator::TraceEntry;

void record_memory(const Entry& entry) {
  std::FILE* const file = tape;
  if (file == nullptr) {
    return;
  }
  if (entry.action_ == Entry::ALLOC) {
    std::fprintf(file, "alloc %zu %zu\n", entry.addr_, entry.size_);
  } else if (entry.action_ == Entry::FREE_COMPLETED) {
    std::fprintf(file, "free %zu\n", entry.addr_);
  }
}

}  // namespace

void record_kernel(const std::string& name, std::uint64_t nanoseconds, const std::vector<Span>& spans) {
  std::FILE* const file = tape;
  if (file == nullptr) {
    return;
  }
  std::fprintf(file, "kernel %" PRIu64 " %s", nanoseconds, name.c_str());
  for (const Span& span : spans) {
    std::fprintf(file, " %c%" PRIu64 ":%" PRIu64, span.written ? 'w' : 'r', span.address, span.bytes);
  }
  std::fputc('\n', file);
}

}  // namespace operators

extern "C" {

// 0, or -1 where the file cannot be written.
__attribute__((visibility("default"))) int operators_tape(const char* path) {
  if (path == nullptr) {
    std::FILE* const ended = operators::tape.exchange(nullptr);
    return ended == nullptr ? -1 : std::fclose(ended);
  }
  static const bool attached = [] {
    c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(&operators::record_memory);
    return true;
  }();
  operators::tape = attached ? std::fopen(path, "w") : nullptr;
  return operators::tape == nullptr ? -1 : 0;
}

__attribute__((visibility("default"))) void operators_step(void) {
  std::FILE* const file = operators::tape;
  if (file != nullptr) {
    std::fputs("step\n", file);
  }
}
}

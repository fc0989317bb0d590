// The allocator of a device with LMS: large requests go to the pager, all else to the allocator that the device had
// (BFC, mostly). When that one is out of memory the pager gives some back, before the allocator begins to wait.
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_ALLOCATOR_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_ALLOCATOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tensorflow/core/common_runtime/lms/pager/pager.h"
#include "tensorflow/core/framework/allocator.h"

namespace lms_tensorflow {

// Where a device's large requests go. Never destroyed, since tensors refer to allocators until the process ends.
struct Memory {
  std::atomic<lms::Pager*> pager{nullptr};
  std::atomic<bool> enabled{false};
  std::atomic<std::uint64_t> min_size{0};  // bytes
  lms::StreamId stream = lms::host_stream;
};

// The decorator of `stock` for that memory; the same one whenever it is asked for the same pair. Thread-safe.
tensorflow::Allocator* decorated(tensorflow::Allocator* stock, const Memory* memory);

}  // namespace lms_tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_ALLOCATOR_H_

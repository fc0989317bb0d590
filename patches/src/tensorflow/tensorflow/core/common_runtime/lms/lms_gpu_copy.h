// A copy from or to a GPU runs on a stream of its own, and ends unobserved: its tensors stay resident until
// then.
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_GPU_COPY_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_GPU_COPY_H_

#include <vector>

#include "tensorflow/core/common_runtime/lms/pager/pager.h"
#include "tensorflow/core/framework/tensor.h"

namespace lms_tensorflow {

class PinnedCopy {
 public:
  // The copy runs on `stream` of the pager `own` (null: that device has none). When the object goes, its work is over,
  // or with `enqueued` may still be under way on that stream.
  PinnedCopy(lms::Pager* own, lms::StreamId stream, bool enqueued) : own_(own), stream_(stream), enqueued_(enqueued) {}
  PinnedCopy(const PinnedCopy&) = delete;
  PinnedCopy& operator=(const PinnedCopy&) = delete;
  ~PinnedCopy();

  // Does nothing for a tensor that is no pager's.
  lms::Status hold(const tensorflow::Tensor& tensor, bool write);

 private:
  struct Held {
    lms::Pager* pager;
    lms::Pin pin;
  };
  lms::Pager* own_;
  lms::StreamId stream_;
  bool enqueued_;
  std::vector<Held> held_;
};

}  // namespace lms_tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_GPU_COPY_H_

// The span of one operation: keeps the tensors that it uses resident, on whatever device they are.
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_OPERATION_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_OPERATION_H_

#include <cstddef>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "tensorflow/core/common_runtime/lms/pager/pager.h"

namespace tensorflow {
class OpKernel;
class OpKernelContext;
class Tensor;
}  // namespace tensorflow

namespace lms_tensorflow {

// Has the pager's reports name operations.
void name_operations();

// A thread runs the kernel between the constructor and leave(); the pins last until finish(), on whichever thread that
// is called. Both are called once.
class Operation {
 public:
  // Pins the inputs. When one cannot be had the context has a failed status afterwards, and the kernel must not run.
  // `stream` is that on which the kernel works, of the pager `own`; host work is done on all others.
  Operation(tensorflow::OpKernel* kernel, tensorflow::OpKernelContext* context, lms::Pager* own, lms::StreamId stream);

  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  void leave();
  // `context` may have outputs, which can leave from now on.
  void finish(tensorflow::OpKernelContext* context);

 private:
  lms::StreamId stream_of(const lms::Pager* pager) const { return pager == own_ ? stream_ : lms::host_stream; }
  lms::Status pin(const void* address, bool write);
  lms::Status pin_inputs(tensorflow::OpKernel* kernel, tensorflow::OpKernelContext* context);
  lms::Status hold_kept(const tensorflow::OpKernelContext& context, bool into_resource);
  void show(const tensorflow::Tensor& output);

  struct Held {
    lms::Pager* pager;
    lms::Pin pin;
  };
  lms::Pager* own_;
  lms::StreamId stream_;
  std::size_t count_;  // of pagers when it began
  bool makes_elements_ = false;
  bool reads_array_ = false;
  bool keeps_outputs_ = false;  // the program asks for it
  bool writes_variables_ = false;
  tensorflow::OpKernel* outer_;  // what the thread runs around this one
  absl::InlinedVector<Held, 8> pins_;
  std::vector<tensorflow::Tensor> read_;  // of a device without faults, pinned for reading
};

}  // namespace lms_tensorflow

#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_OPERATION_H_

// The CUDA stream on which a device runs its operations.
#ifndef TESTS_CUDA_TENSORFLOW_OPERATORS_DEVICE_STREAM_H_
#define TESTS_CUDA_TENSORFLOW_OPERATORS_DEVICE_STREAM_H_

#include <functional>

#include "device_tensor.h"
#include "status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace stand_in {

class DeviceStream {
 public:
  // The stream of the device that computes for `context`, whose CUDA context must be current.
  explicit DeviceStream(tensorflow::OpKernelContext* context);

  int device() const { return device_; }

  // `work` runs once all that was enqueued before it is over, on any thread. It must not call CUDA. When it returns a
  // failure the device is lost, as by an assertion in a kernel, and the failure is said on stderr with `name`.
  Status enqueue(const char* name, std::function<Status()> work) const;

  // Copies on the device, as one of its kernels would.
  Status enqueue_copy(const DeviceTensor& from, const DeviceTensor& to) const;

  // Waits until all that was enqueued is over.
  Status wait() const;

 private:
  void* handle_ = nullptr;
  int device_ = -1;
};

}  // namespace stand_in

#endif  // TESTS_CUDA_TENSORFLOW_OPERATORS_DEVICE_STREAM_H_

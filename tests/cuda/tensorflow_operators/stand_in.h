// An operation of a GPU that the CPU's kernel does: on the device's memory, when the device's stream comes to it.
#ifndef TESTS_CUDA_TENSORFLOW_OPERATORS_STAND_IN_H_
#define TESTS_CUDA_TENSORFLOW_OPERATORS_STAND_IN_H_

#include <memory>
#include <string>
#include <vector>

#include "device_stream.h"
#include "kernel_call.h"
#include "status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "variables.h"

namespace stand_in {

// How many operations of each name were enqueued for later, and how many ran at once after a wait, since what they
// return is needed on the host: a line each, "NAME LATER AT_ONCE".
std::string report();

class StandIn final : public tensorflow::OpKernel {
 public:
  // Refuses an operation that it cannot do, by name.
  explicit StandIn(tensorflow::OpKernelConstruction* construction);

  void Compute(tensorflow::OpKernelContext* context) override;

 private:
  Status compute(tensorflow::OpKernelContext* context);
  Status collect(tensorflow::OpKernelContext* context, const DeviceStream& stream, Variables* variables,
                 KernelCall* call) const;
  bool gives_to_host() const;
  Status run_later(tensorflow::OpKernelContext* context, const DeviceStream& stream, KernelCall call,
                   const std::vector<tensorflow::TensorShape>& shapes) const;
  Status run_now(tensorflow::OpKernelContext* context, const DeviceStream& stream, const KernelCall& call) const;
  Status refusal(const std::string& why) const;

  std::shared_ptr<tensorflow::OpKernel> kernel_;  // those that are enqueued have it too
  bool forwards_ = false;                         // an input's memory may become the output's
  bool in_place_ = false;                         // the first input's memory is the output's
};

}  // namespace stand_in

#endif  // TESTS_CUDA_TENSORFLOW_OPERATORS_STAND_IN_H_

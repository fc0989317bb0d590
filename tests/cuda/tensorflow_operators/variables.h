// The resource variables that an operation is given, locked for as long as its kernel is being called, and made ready
// for it as TensorFlow's own kernels do.
#ifndef TESTS_CUDA_TENSORFLOW_OPERATORS_VARIABLES_H_
#define TESTS_CUDA_TENSORFLOW_OPERATORS_VARIABLES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device_stream.h"
#include "kernel_call.h"
#include "status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/platform/mutex.h"

namespace stand_in {

enum class Access {
  read_sparsely,  // nobody else may have the buffer, and readers copy from then on
  write,          // the buffer becomes the variable's alone
  write_sparsely  // both
};

// How the operations of that name use their variables.
Access access_of(const std::string& operation);

// The type of a variable, as it is in handles.
std::uint64_t hash_of_variables();

class Variables {
 public:
  // Whether input `index` is the handle of a variable: the only resources that stand-ins serve.
  static bool is_handle(tensorflow::OpKernelContext* context, int index);

  // Locks the variables of these inputs and makes their buffers ready, with copies on `stream`.
  Status prepare(tensorflow::OpKernelContext* context, const std::vector<int>& indices, Access access,
                 const DeviceStream& stream);

  Input input(int index) const;

 private:
  using Pointer = tensorflow::core::RefCountPtr<tensorflow::Var>;

  static Status prepare(tensorflow::OpKernelContext* context, tensorflow::Var* variable, Access access,
                        const DeviceStream& stream);

  Access access_ = Access::write;
  std::map<int, Pointer> variables_;
  std::vector<std::unique_ptr<tensorflow::mutex_lock>> locks_;  // go before the variables do
};

}  // namespace stand_in

#endif  // TESTS_CUDA_TENSORFLOW_OPERATORS_VARIABLES_H_

// What operations do with memory, by name. The registry of kernels does not say it.
#ifndef TESTS_CUDA_TENSORFLOW_OPERATORS_OPERATIONS_H_
#define TESTS_CUDA_TENSORFLOW_OPERATORS_OPERATIONS_H_

#include <string>

namespace stand_in {

// TensorFlow's own kernel for GPUs computes nothing there: it hands tensors on, copies them, calls functions, keeps
// objects. It stays, and what it calls is run by stand-ins.
bool stays(const std::string& operation);

// The kernel for GPUs writes its output into an input that nobody else has.
bool may_forward(const std::string& operation);

// The kernel for GPUs writes into its first input, and hands it on, whoever else has it.
bool is_in_place(const std::string& operation);

// A compiler's work: the CPU's would compute in another order than the CPU's kernels.
bool is_compiled(const std::string& operation);

}  // namespace stand_in

#endif  // TESTS_CUDA_TENSORFLOW_OPERATORS_OPERATIONS_H_

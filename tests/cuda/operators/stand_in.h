// A stand-in for an operator's CUDA kernel: results' geometry from the operator's meta kernel, their memory from the
// device's allocator, and a host function of the current stream that runs the CPU kernel on the device's memory.
//
// Meta kernels lay some results out otherwise than the CPU's kernel, or give them another type, and what is computed
// from those has other bits; and they take types that the CPU's kernel refuses. So the CPU's kernel is tried out
// first, on zeros, once for all arguments that are alike.
//
// Where the geometry depends on data, or there is no meta kernel, the stream is waited for and the CPU kernel runs at
// once; only the copy of its results is a host function then. Random numbers are drawn when the operator is called, in
// the program's order.
#ifndef STAND_IN_H
#define STAND_IN_H

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "adapters.h"
#include "geometry.h"

namespace operators {

class StandIn final : public c10::OperatorKernel {
 public:
  explicit StandIn(const c10::OperatorHandle& op);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) const;

 private:
  struct Call;

  void run_later(const Call& call, torch::jit::Stack* stack) const;
  void run_now(const Call& call, torch::jit::Stack* stack) const;
  Geometry::Answer compute_geometry(const Call& call) const;
  bool has_to_be_tried(const Call& call) const;
  void try_out(const Call& call, Geometry::Answer* answer) const;
  std::vector<at::Tensor> run_on_cpu(const torch::jit::Stack& arguments) const;
  bool depends_on_data(const Call& call) const;
  void resize_outputs(const Call& call, const torch::jit::Stack& results) const;

  std::string name_;
  c10::OperatorHandle op_;
  const Adapted* adapted_;
  std::unique_ptr<Geometry> geometry_ = std::make_unique<Geometry>();
  std::vector<bool> written_;  // by argument
  std::vector<int> same_as_;  // by return: the argument that it is, or -1
  int generator_ = -1;  // the argument
  bool has_meta_ = false;
  bool random_ = false;  // draws when it runs
  bool drawn_apart_ = false;  // its numbers are drawn when it is called, apart from what it does with them
  bool only_draws_ = false;  // and does not read the tensors that it fills
  bool returns_data_ = false;  // a number, say
  bool makes_new_ = false;  // some result is a new tensor
  bool has_outputs_ = false;  // out=
};

}  // namespace operators

#endif  // STAND_IN_H

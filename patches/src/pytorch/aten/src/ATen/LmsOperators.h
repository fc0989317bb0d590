// How this release of PyTorch registers operators.
//
//   LMS_OPERATORS(library) { library.def("f(Tensor[] tensors) -> int", &f); }
//
// defines operators of the namespace "lms" when the library is loaded. Operators take lists as the types below.
#ifndef ATEN_LMS_OPERATORS_H
#define ATEN_LMS_OPERATORS_H

#include <string>
#include <utility>
#include <vector>

// From 1.6 on.
#if __has_include(<torch/library.h>)

#include <torch/library.h>

namespace lms_torch {
using TensorsArgument = at::TensorList;
using NumbersArgument = at::IntArrayRef;
}  // namespace lms_torch

#define LMS_OPERATORS(library) TORCH_LIBRARY(lms, library)

#else

#include <ATen/ATen.h>
#include <ATen/core/op_registration/op_registration.h>
#if __has_include(<torch/csrc/jit/runtime/custom_operator.h>)
#include <torch/csrc/jit/runtime/custom_operator.h>
#else
#include <torch/csrc/jit/custom_operator.h>
#endif

namespace lms_torch {

using TensorsArgument = std::vector<at::Tensor>;
using NumbersArgument = std::vector<int64_t>;

// Of both functions the first is for 1.1 to 1.3: an int prefers it. What registers operators is never destroyed, or
// they would go with it.
template <typename Registrations, typename Function>
auto register_operator(const std::string& schema, Function* function, int /*preferred*/)
    -> decltype(static_cast<void>(Registrations().op(schema, +function))) {
  (new Registrations)->op(schema, +function);
}
template <typename Registrations, typename Function>
void register_operator(const std::string& schema, Function* function, long /*otherwise*/) {
  static_cast<void>(std::move(*new c10::RegisterOperators).op(schema, function));
}

struct OperatorLibrary {
  explicit OperatorLibrary(void (*define)(OperatorLibrary& library)) { define(*this); }

  template <typename Function>
  void def(const std::string& schema, Function* function) {
    register_operator<torch::jit::RegisterOperators>("lms::" + schema, function, 0);
  }
};

}  // namespace lms_torch

#define LMS_OPERATORS(library)                                                        \
  static void lms_define_operators(lms_torch::OperatorLibrary& library);              \
  static const lms_torch::OperatorLibrary lms_operator_library(lms_define_operators); \
  static void lms_define_operators(lms_torch::OperatorLibrary& library)

#endif

#endif  // ATEN_LMS_OPERATORS_H

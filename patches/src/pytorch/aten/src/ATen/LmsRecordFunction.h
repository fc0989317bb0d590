// How this release of PyTorch shows the operations that run: their names, inputs, outputs and schemas, and how to be
// called at the beginning and at the end of each. What a release does not show is empty here.
#ifndef ATEN_LMS_RECORD_FUNCTION_H
#define ATEN_LMS_RECORD_FUNCTION_H

#include <ATen/LmsIsDefined.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

// From 1.6 on a callback has options and a handle; before, there is a stack of callbacks.
#if __has_include(<ATen/record_function.h>)
#include <ATen/record_function.h>
#define LMS_HAS_CALLBACK_OPTIONS 1
#else
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/record_function.h>
#define LMS_HAS_CALLBACK_OPTIONS 0
#endif

// The operators that are registered, by name, for names_an_operator().
#if !LMS_HAS_CALLBACK_OPTIONS
#if __has_include(<torch/csrc/jit/runtime/operator.h>)
#include <torch/csrc/jit/runtime/operator.h>
#else
#include <torch/csrc/jit/operator.h>
#endif
#endif

namespace at {
struct ObserverContext;  // from 1.8 on
struct StepCallbacks;    // from 1.12 on
}  // namespace at

namespace lms_torch {

#if LMS_HAS_CALLBACK_OPTIONS
using Operation = at::RecordFunction;
#else
using Operation = torch::autograd::profiler::RecordFunction;
#endif

// ------------------------------------------------------------------------------------------------ what an operation is

// Of each pair of functions below the first is for releases that have what its type asks for; an int prefers it.

inline const char* text_of(const char* name) { return name; }
template <typename View>
const char* text_of(const View& name) {
  return name.str();
}

inline const char* operation_name(const Operation& operation) { return text_of(operation.name()); }

template <typename Function>
auto outputs_of(const Function& function, int /*preferred*/)
    -> decltype(c10::ArrayRef<c10::IValue>(function.outputs())) {
  return function.outputs();
}
template <typename Function>
c10::ArrayRef<c10::IValue> outputs_of(const Function& /*function*/, long /*otherwise*/) {
  return {};
}

// Once the operation has ended.
inline c10::ArrayRef<c10::IValue> operation_outputs(const Operation& operation) { return outputs_of(operation, 0); }

template <typename Function>
auto schema_of(const Function& function, int /*preferred*/) -> decltype(function.operator_schema()) {
  return function.operator_schema();
}
template <typename Function>
std::unique_ptr<c10::FunctionSchema> schema_of(const Function& /*function*/, long /*otherwise*/) {
  return nullptr;
}

// Something that points to the operation's schema, or to nothing.
inline auto operation_schema(const Operation& operation) { return schema_of(operation, 0); }

template <typename Function, typename = void>
struct ShowsSchemas : std::false_type {};
template <typename Function>
struct ShowsSchemas<Function, decltype(static_cast<void>(std::declval<const Function&>().operator_schema()))>
    : std::true_type {};

constexpr bool operations_show_schemas = ShowsSchemas<Operation>::value;

template <typename Function, typename = void>
struct HasBackwardScope : std::false_type {};
template <typename Function>
struct HasBackwardScope<Function,
                        decltype(static_cast<void>(
                            std::decay_t<decltype(std::declval<const Function&>().scope())>::BACKWARD_FUNCTION))>
    : std::true_type {};

// Whether the observer is shown operations alone. Otherwise it sees nodes of the backward pass, scripts and parts of
// the program that it gave a name, too; what has the name of an operator is an operation.
constexpr bool only_operations_are_shown = HasBackwardScope<Operation>::value;

#if LMS_HAS_CALLBACK_OPTIONS

// Asked in 1.6 alone, whose observer is not put in place.
inline bool names_an_operator(const std::string& /*name*/) { return true; }

inline bool is_backward_node(const Operation& /*operation*/) { return false; }
inline at::Tensor accumulated_gradient(const Operation& /*operation*/) { return at::Tensor(); }

#else

inline bool names_an_operator(std::string name) {
  const std::string out = "_out";
  if (name.size() > out.size() && name.compare(name.size() - out.size(), out.size(), out) == 0) {
    name.resize(name.size() - out.size());
  }
  return !name.empty() && name.find_first_of(" .:") == std::string::npos &&
         !torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString("aten::" + name)).empty();
}

// Of what is shown and no operation.
inline bool is_backward_node(const Operation& operation) { return operation.func() != nullptr; }

// The gradient that a node adds to, which in 1.1 is shown neither as an input nor by an operation.
inline at::Tensor accumulated_gradient(const Operation& operation) {
  const auto* node = dynamic_cast<const torch::autograd::AccumulateGrad*>(operation.func());
  return node != nullptr && node->variable.defined() ? at::Tensor(node->variable.grad()) : at::Tensor();
}

#endif

// ------------------------------------------------------------------------------------------------ the observer

using BeginOperation = void (*)(const Operation&);
using EndOperation = void (*)(const Operation&);

// Whether the observer can be taken away while operations run. Otherwise it stays once it is in place.
constexpr bool observer_can_leave = IsDefined<at::StepCallbacks>::value;

#if LMS_HAS_CALLBACK_OPTIONS

using ObserverHandle = at::CallbackHandle;

template <typename Context, BeginOperation begin>
std::unique_ptr<Context> begin_with_context(const Operation& operation) {
  begin(operation);
  return nullptr;
}
template <typename Context, EndOperation end>
void end_with_context(const Operation& operation, Context* /*context*/) {
  end(operation);
}

template <typename Callback, BeginOperation begin, EndOperation end>
Callback make_callback(std::true_type /*with a context*/) {
  return Callback(begin_with_context<at::ObserverContext, begin>, end_with_context<at::ObserverContext, end>);
}
template <typename Callback, BeginOperation begin, EndOperation end>
Callback make_callback(std::false_type /*with a context*/) {
  return Callback(begin, end);
}

template <typename Callback>
auto ask_for_outputs(Callback* callback, int /*preferred*/)
    -> decltype(static_cast<void>(callback->needsOutputs(true))) {
  callback->needsOutputs(true);
}
template <typename Callback>
void ask_for_outputs(Callback* /*callback*/, long /*otherwise*/) {}

// Has both functions called for every operation, on the thread that it runs on. Returns what take_observer_away takes.
template <BeginOperation begin, EndOperation end>
ObserverHandle put_observer_in_place() {
  auto callback = make_callback<at::RecordFunctionCallback, begin, end>(IsDefined<at::ObserverContext>());
  callback.needsInputs(true).scopes({at::RecordScope::FUNCTION});
  ask_for_outputs(&callback, 0);
  return at::addGlobalCallback(callback);
}

inline void take_observer_away(ObserverHandle handle) { at::removeCallback(handle); }

// Why the observer cannot be put in place now; null when it can. In 1.6 each thread has to ask for being observed.
inline const char* observer_obstacle() {
  return only_operations_are_shown ? nullptr
                                   : "PyTorch 1.6 does not show the operations of all threads: use another release";
}

#else

using ObserverHandle = int;

template <BeginOperation begin, EndOperation end>
ObserverHandle put_observer_in_place() {
  torch::autograd::profiler::pushCallback(begin, end, /*needs_inputs=*/true);
  return 0;
}

inline void take_observer_away(ObserverHandle /*handle*/) {}

// As above. An observer that is there already is going to remove what is on top of the stack, which would then be ours.
inline const char* observer_obstacle() {
  return torch::autograd::profiler::hasCallbacks()
             ? "a profiler is at work: enable LMS for the first time before it begins, or after it has ended"
             : nullptr;
}

#endif

}  // namespace lms_torch
#endif  // ATEN_LMS_RECORD_FUNCTION_H

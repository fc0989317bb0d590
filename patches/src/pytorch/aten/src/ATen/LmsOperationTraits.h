// What is known of an operation before it runs: which of its arguments it may write, and whether it is one at all.
#ifndef ATEN_LMS_OPERATION_TRAITS_H
#define ATEN_LMS_OPERATION_TRAITS_H

#include <ATen/LmsRecordFunction.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_map>

namespace lms_torch {

// What its schema or its name says of an operation. Bit i: may write argument i; all bits where there are too many to
// tell.
struct OperationTraits {
  uint64_t written = ~uint64_t{0};
  uint64_t declared = 0;  // the same as far as declared; enough where undeclared writes are noticed
  uint64_t viewed = 0;  // the result may be a view of argument i, whose data is not read; a copy is another operation
  bool ours = false;  // an operator of LmsPinOperators.cpp: it pins for itself, and reports its failures
  bool is_operator = true;
  bool allocates = false;  // and does nothing else: what it returns is in the hands of the operation around it
  // On CPU tensors it does no more than call an operator for each element of its lists: those pin for themselves.
  bool by_element = false;
};

// Operators of namespace aten that write arguments which their schemas, in some release, do not mark as written:
// running statistics, the reserve of cuDNN's RNNs and weights that it lays out anew, noise, destinations of copies.
constexpr std::array<const char*, 7> undeclared_writes = {"batch_norm", "instance_norm", "rnn",       "lstm",
                                                          "gru",        "rrelu",         "_copy_from"};

// Operators of namespace aten that only allocate, whatever their overload.
constexpr std::array<const char*, 6> allocating = {"empty",     "empty_like",        "empty_strided",
                                                   "new_empty", "new_empty_strided", "resize_"};

inline bool only_allocates(const std::string& name) {
  return std::any_of(allocating.begin(), allocating.end(), [&name](const char* one) { return name == one; });
}

inline OperationTraits read_schema(const c10::FunctionSchema& schema) {
  OperationTraits traits;
  const auto& arguments = schema.arguments();
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (arguments[index].alias_info() && arguments[index].alias_info()->isWrite()) {
      traits.declared |= index < 64 ? uint64_t{1} << index : ~uint64_t{0};
    }
  }
  const std::string& name = schema.name();
  // Collectives receive into tensors that their schemas do not mark as written.
  if (name.compare(0, 6, "c10d::") == 0) {
    traits.declared = ~uint64_t{0};
  }
  const bool trusted = name.compare(0, 6, "aten::") == 0 &&
                       std::none_of(undeclared_writes.begin(), undeclared_writes.end(),
                                    [&name](const char* part) { return name.find(part) != std::string::npos; });
  if (trusted) {
    traits.written = traits.declared;
    for (size_t index = 0; index < std::min<size_t>(arguments.size(), 63); ++index) {
      const bool viewed = arguments[index].alias_info() && !arguments[index].alias_info()->isWrite();
      traits.viewed |= static_cast<uint64_t>(viewed) << index;
    }
  }
  traits.ours = name.compare(0, 5, "lms::") == 0;
  traits.allocates = name.compare(0, 6, "aten::") == 0 && only_allocates(name.substr(6));
  traits.by_element = name.compare(0, 15, "aten::_foreach_") == 0;
  return traits;
}

// By convention an operator whose name ends in an underscore writes its first argument, and one that ends in _out some
// of the others.
inline OperationTraits read_name(const std::string& name) {
  OperationTraits traits;
  const std::string out = "_out";
  if (name.size() > 1 && name.back() == '_') {
    traits.declared = 1;
  } else if (name.size() > out.size() && name.compare(name.size() - out.size(), out.size(), out) == 0) {
    traits.declared = ~uint64_t{0};
  }
  traits.ours = name.compare(0, 5, "lms::") == 0;
  traits.is_operator = only_operations_are_shown || names_an_operator(name);
  traits.allocates = only_allocates(name.compare(0, 6, "aten::") == 0 ? name.substr(6) : name);
  return traits;
}

// Of what is shown without a schema: an autograd Function; or a part of the program that has a name, such as all that a
// compiled graph does, and no inputs. detach shows itself twice, once as an operator.
inline const OperationTraits& traits_without_schema(const char* name) {
  static const OperationTraits any = [] {
    OperationTraits traits;
    traits.is_operator = false;
    return traits;
  }();
  static const OperationTraits view = [] {
    OperationTraits traits;
    traits.viewed = 1;
    return traits;
  }();
  // How a compiled graph is called where gradients are wanted: its kernels pin for themselves, or torch.lms for all.
  static const OperationTraits graph = [] {
    OperationTraits traits;
    traits.viewed = ~uint64_t{0};
    traits.allocates = true;
    return traits;
  }();
  if (std::strcmp(name, "CompiledFunction") == 0) {
    return graph;
  }
  return std::strcmp(name, "detach") == 0 ? view : any;
}

inline const OperationTraits& traits_by_schema(const Operation& operation) {
  // Asking for the schema copies it. The name lies inside the schema, so that its address stands for it.
  thread_local std::unordered_map<const char*, OperationTraits> known;
  const char* name = operation_name(operation);
  const auto found = known.find(name);
  if (found != known.end()) {
    return found->second;
  }
  const auto schema = operation_schema(operation);
  return schema ? known.emplace(name, read_schema(*schema)).first->second : traits_without_schema(name);
}

inline const OperationTraits& traits_by_name(const Operation& operation) {
  thread_local std::unordered_map<std::string, OperationTraits> known;
  const std::string name = operation_name(operation);
  const auto found = known.find(name);
  return found != known.end() ? found->second : known.emplace(name, read_name(name)).first->second;
}

inline const OperationTraits& operation_traits(const Operation& operation) {
  return operations_show_schemas ? traits_by_schema(operation) : traits_by_name(operation);
}

}  // namespace lms_torch
#endif  // ATEN_LMS_OPERATION_TRAITS_H

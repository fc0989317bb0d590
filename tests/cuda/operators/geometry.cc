#include "geometry.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace operators {

namespace {

template <typename Value>
void append(std::string* key, const Value& value) {
  key->append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_tensor(std::string* key, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    *key += '-';
    return;
  }
  *key += tensor.is_cuda() ? 'd' : 'h';
  append(key, tensor.scalar_type());
  append(key, tensor.unsafeGetTensorImpl()->is_wrapped_number());
  append(key, tensor.is_conj());
  append(key, tensor.is_neg());
  append(key, tensor.dim());
  for (std::int64_t dimension = 0; dimension < tensor.dim(); ++dimension) {
    append(key, tensor.size(dimension));
    append(key, tensor.stride(dimension));
  }
}

bool append_value(std::string* key, const c10::IValue& value) {
  *key += value.tagKind();
  if (value.isTensor()) {
    append_tensor(key, value.toTensor());
  } else if (value.isInt()) {
    append(key, value.toInt());
  } else if (value.isDouble()) {
    append(key, value.toDouble());
  } else if (value.isBool()) {
    append(key, value.toBool());
  } else if (value.isComplexDouble()) {
    append(key, value.toComplexDouble());
  } else if (value.isString()) {
    *key += value.toStringRef() + '\0';
  } else if (value.isList()) {
    append(key, value.toListRef().size());
    for (const c10::IValue& element : value.toListRef()) {
      if (!append_value(key, element)) {
        return false;
      }
    }
  } else {
    return value.isNone() || value.isDevice();
  }
  return true;
}

// What tells calls apart whose results may lie differently; nothing where that is not known.
std::optional<std::string> geometry_key(const torch::jit::Stack& arguments) {
  std::string key;
  for (const c10::IValue& argument : arguments) {
    if (!append_value(&key, argument)) {
      return std::nullopt;
    }
  }
  return key;
}

}  // namespace

Geometry::Answer Geometry::of(const Stack& arguments, const std::function<Answer()>& compute) {
  const std::optional<std::string> key = geometry_key(arguments);
  if (!key.has_value()) {
    return compute();
  }
  {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = known_.find(*key);
    if (found != known_.end()) {
      return found->second;
    }
  }
  const Answer answer = compute();  // without the lock: Python's own may be needed
  const std::lock_guard<std::mutex> guard(lock_);
  return known_.emplace(*key, answer).first->second;
}

}  // namespace operators

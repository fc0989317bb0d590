// The storages that the data of tensors, and of the values that operations are given, live in.
#ifndef ATEN_LMS_STORAGES_H
#define ATEN_LMS_STORAGES_H

#if !__has_include(<ATen/ops/from_blob.h>)
#include <ATen/ATen.h>  // up to 1.10 the header of sparse tensors uses operators without including them
#endif

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <string>

#if __has_include(<ATen/SparseCsrTensorImpl.h>)
#include <ATen/SparseCsrTensorImpl.h>
#endif
#if __has_include(<ATen/NestedTensorImpl.h>)
#include <ATen/NestedTensorImpl.h>
#endif

namespace lms_torch {

// The address of a storage's data, without checks where there are any: neither materialises a copy-on-write storage nor
// refuses a fake one (whose address is null).
template <typename Storage>
auto data_address(Storage* storage, int /*preferred*/) -> decltype(storage->_mutable_data_ptr_no_checks().get()) {
  return storage->_mutable_data_ptr_no_checks().get();
}
template <typename Storage>
const void* data_address(const Storage* storage, long /*otherwise*/) {
  return storage->data_ptr().get();
}

// Has the storage refuse every access to its data from now on, with that sentence. False before 2.6, where none can.
template <typename Storage>
auto refuse_access(Storage* storage, const std::string& sentence, int /*preferred*/)
    -> decltype(storage->release_data_and_set_meta_custom_data_ptr_error_msg_(sentence), bool()) {
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(sentence);
  return true;
}
template <typename Storage>
bool refuse_access(Storage* /*storage*/, const std::string& /*sentence*/, long /*otherwise*/) {
  return false;
}

template <typename Impl>
auto storage_of(const Impl& impl, int /*preferred*/) -> decltype(impl.unsafe_storage()) {
  return impl.unsafe_storage();
}
template <typename Impl>
const c10::Storage& storage_of(const Impl& impl, long /*otherwise*/) {
  return impl.storage();
}

// The parts of tensors that have no storage of their own.
#if __has_include(<ATen/SparseCsrTensorImpl.h>)
template <typename Compressed, typename Visit>
auto visit_compressed(const Compressed& compressed, const Visit& visit, int /*preferred*/)
    -> decltype(visit(compressed.compressed_indices())) {
  visit(compressed.compressed_indices());
  visit(compressed.plain_indices());
}
template <typename Compressed, typename Visit>
void visit_compressed(const Compressed& compressed, const Visit& visit, long /*otherwise*/) {
  visit(compressed.crow_indices());
  visit(compressed.col_indices());
}
#endif

#if __has_include(<ATen/NestedTensorImpl.h>)
template <typename Nested, typename Visit>
auto visit_nested(const Nested& nested, const Visit& visit, int /*preferred*/)
    -> decltype(visit(nested.get_nested_sizes())) {
  visit(nested.get_nested_sizes());
  visit(nested.get_nested_strides());
}
template <typename Nested, typename Visit>
auto visit_nested(const Nested& nested, const Visit& visit, long /*otherwise*/)
    -> decltype(visit(nested.get_nested_stride_tensor())) {
  visit(nested.get_nested_size_tensor());
  visit(nested.get_nested_stride_tensor());
}
template <typename Nested, typename Visit>
void visit_nested(const Nested& nested, const Visit& visit, ...) {  // without strides
  visit(nested.get_nested_size_tensor());
}
#endif

// Calls `visit(address, storage)` for every storage that the tensor's data lives in. Reads no data and dispatches
// nothing.
template <typename Visit>
void visit_storages(const at::Tensor& tensor, const Visit& visit) {
  if (!tensor.defined()) {
    return;
  }
  const c10::TensorImpl* tensor_impl = tensor.unsafeGetTensorImpl();
  const auto visit_part = [&visit](const at::Tensor& part) { visit_storages(part, visit); };
#if __has_include(<ATen/NestedTensorImpl.h>)
  if (tensor_impl->is_nested()) {
    if (const auto* nested = dynamic_cast<const at::native::NestedTensorImpl*>(tensor_impl)) {
      visit_nested(*nested, visit_part, 0);
    }
  }
#endif
  if (tensor_impl->has_storage()) {
    c10::StorageImpl* storage = storage_of(*tensor_impl, 0).unsafeGetStorageImpl();
    const void* address = data_address(storage, 0);
    if (address != nullptr) {
      visit(address, storage);
    }
  } else if (const auto* coo = dynamic_cast<const at::SparseTensorImpl*>(tensor_impl)) {
    visit_part(coo->indices());
    visit_part(coo->values());
  }
#if __has_include(<ATen/SparseCsrTensorImpl.h>)
  else if (const auto* compressed = dynamic_cast<const at::SparseCsrTensorImpl*>(tensor_impl)) {
    visit_compressed(*compressed, visit_part, 0);
    visit_part(compressed->values());
  }
#endif
}

// The same for every tensor in a value: tensors, optional tensors, and lists, tuples and dictionaries of them.
// Before 1.5, where kinds of lists differ, operations are given no more than tensors and lists of them.
template <typename Value, typename Visit>
auto visit_storages(const Value& value, const Visit& visit, int /*preferred*/)
    -> decltype(static_cast<void>(value.toListRef())) {
  if (value.isTensor()) {
    visit_storages(value.toTensor(), visit);
  } else if (value.isList()) {
    for (const Value& element : value.toListRef()) {
      if (!(element.isTensor() || element.isNone() || element.isList() || element.isTuple() ||
            element.isGenericDict())) {
        break;  // a list of numbers or strings
      }
      visit_storages(element, visit, 0);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTuple()->elements()) {
      visit_storages(element, visit, 0);
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      visit_storages(entry.key(), visit, 0);
      visit_storages(entry.value(), visit, 0);
    }
  }
}
template <typename Value, typename Visit>
void visit_storages(const Value& value, const Visit& visit, long /*otherwise*/) {
  if (value.isTensor()) {
    visit_storages(value.toTensor(), visit);
  } else if (value.isTensorList()) {
    for (const at::Tensor& element : value.toTensorListRef()) {
      visit_storages(element, visit);
    }
  }
}

// Whether the value is a list that begins with a CPU tensor; before 1.5 nobody asks.
template <typename Value>
auto begins_on_cpu(const Value& value, int /*preferred*/) -> decltype(value.toListRef().empty()) {
  return value.isTensorList() && !value.toListRef().empty() && value.toListRef()[0].toTensor().device().is_cpu();
}
template <typename Value>
bool begins_on_cpu(const Value& /*value*/, long /*otherwise*/) {
  return false;
}

}  // namespace lms_torch
#endif  // ATEN_LMS_STORAGES_H

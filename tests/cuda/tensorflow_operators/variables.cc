#include "variables.h"

#include <algorithm>
#include <string>
#include <typeinfo>
#include <utility>

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/type_index.h"

namespace stand_in {

using tensorflow::OpKernelContext;
using tensorflow::ResourceHandle;
using tensorflow::Tensor;
using tensorflow::Var;

Access access_of(const std::string& operation) {
  if (operation == "ResourceGather" || operation == "ResourceGatherNd") {
    return Access::read_sparsely;
  }
  const bool sparse = operation.find("Sparse") != std::string::npos || operation.find("Scatter") != std::string::npos;
  return sparse ? Access::write_sparsely : Access::write;
}

namespace {

// From 2.3 on, in 2.2, and in 2.1, where it is the standard library's.
template <typename Type, typename Index>
auto index_of(int /*first*/) -> decltype(Index::template Make<Type>()) {
  return Index::template Make<Type>();
}
template <typename Type, typename Index>
auto index_of(long /*second*/) -> decltype(Index::template Make<Type>("")) {
  return Index::template Make<Type>(typeid(Type).name());
}
template <typename Type, typename Index>
Index index_of(...) {
  return Index(typeid(Type));
}

// As Tensor::RefCountIsOne(), which 2.1 keeps to itself.
bool is_only_reference(const Tensor& tensor) {
  const tensorflow::TensorBuffer* buffer = tensorflow::DMAHelper::buffer(&tensor);
  return buffer != nullptr && buffer->RefCountIsOne() &&
         const_cast<tensorflow::TensorBuffer*>(buffer)->root_buffer()->RefCountIsOne() && buffer->OwnsMemory();
}

}  // namespace

std::uint64_t hash_of_variables() { return index_of<Var, tensorflow::TypeIndex>(0).hash_code(); }

bool Variables::is_handle(OpKernelContext* context, int index) {
  const Tensor& tensor = context->input(index);
  return tensor.dtype() == tensorflow::DT_RESOURCE && tensor.NumElements() == 1 &&
         tensor.flat<ResourceHandle>()(0).hash_code() == hash_of_variables();
}

Status Variables::prepare(OpKernelContext* context, const std::vector<int>& indices, Access access,
                          const DeviceStream& stream) {
  access_ = access;
  std::vector<Var*> ordered;
  for (const int index : indices) {
    Pointer variable;
    Status status = tensorflow::LookupResource(context, context->input(index).flat<ResourceHandle>()(0), &variable);
    if (!status.ok()) {
      return status;
    }
    ordered.push_back(variable.get());
    variables_[index] = std::move(variable);
  }
  // In the order in which TensorFlow's kernels lock them, each once.
  std::sort(ordered.begin(), ordered.end(), [](Var* one, Var* other) { return one->mu() < other->mu(); });
  ordered.erase(std::unique(ordered.begin(), ordered.end()), ordered.end());
  for (Var* variable : ordered) {
    locks_.push_back(std::make_unique<tensorflow::mutex_lock>(*variable->mu()));
    Status status = prepare(context, variable, access, stream);
    if (!status.ok()) {
      return status;
    }
  }
  return Status();
}

Status Variables::prepare(OpKernelContext* context, Var* variable, Access access, const DeviceStream& stream) {
  Tensor* tensor = variable->tensor();
  if (!variable->is_initialized || !tensor->IsInitialized()) {
    return failed_precondition("a variable without a value");
  }
  const bool sparse = access != Access::write;
  const bool copies = variable->copy_on_read_mode.load();
  const bool ready = (sparse && copies) || (is_only_reference(*tensor) && (sparse || !copies));
  if (!ready) {
    // Others still read the buffer: they keep it.
    Tensor fresh;
    Status status = context->allocate_temp(tensor->dtype(), tensor->shape(), &fresh);
    if (status.ok()) {
      status = stream.enqueue_copy(describe(*tensor), describe(fresh));
    }
    if (!status.ok()) {
      return status;
    }
    *tensor = fresh;
  }
  if (sparse) {
    variable->copy_on_read_mode.store(true);
  }
  return Status();
}

Input Variables::input(int index) const {
  const Pointer& variable = variables_.at(index);
  Input result;
  result.place = Place::variable;
  result.memory = describe(*variable->tensor());
  result.written = access_ != Access::read_sparsely;
  result.copy_on_read = access_ != Access::write;
  return result;
}

}  // namespace stand_in

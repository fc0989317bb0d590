#include "tensorflow/core/common_runtime/lms/lms_operation.h"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <typeinfo>
#include <unordered_set>
#include <vector>

#include "tensorflow/core/public/version.h"

// 2.2 knows a type by an address: of these, ours has to be the one that TensorFlow's own libraries have.
#if TF_MAJOR_VERSION == 2 && TF_MINOR_VERSION == 2
namespace tensorflow {
class __attribute__((visibility("default"))) TensorList;
class __attribute__((visibility("default"))) TypeIndex;
class __attribute__((visibility("default"))) Var;
}  // namespace tensorflow
#endif

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/common_runtime/lms/lms_pagers.h"
#include "tensorflow/core/common_runtime/lms/lms_resident.h"
#include "tensorflow/core/common_runtime/lms/lms_status.h"
#include "tensorflow/core/common_runtime/lms/pager/lms.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/mutex.h"

// The wheel of 2.1 has no header of it: the elements of lists are found by faults then, or stay.
#if __has_include("tensorflow/core/kernels/tensor_list.h")
#define LMS_HAS_TENSOR_LIST 1
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/kernels/tensor_list.h"
#else
#define LMS_HAS_TENSOR_LIST 0
#endif

namespace lms_tensorflow {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// ------------------------------------------------------------------------------------------------ kinds of operation

struct Traits {
  bool uses_data = true;    // of its inputs; otherwise it hands tensors on, or looks at their shapes
  bool uses_lists = false;  // the elements of a list of tensors
  bool makes_elements = false;  // of a list, in memory that it allocates itself
  bool writes_inputs = false;   // even if others refer to them
  bool writes_variables = true;
  bool is_list = false;  // lists show their elements to those that use them
  bool hides_elements = false;  // of a list that does not, since its header is not there
  bool reads_array = false;  // a TensorArray, which does not
  bool sends = false;    // to another process, when the operation has ended
  bool keeps_outputs = false;  // resident, as the program asks
};

using Names = std::unordered_set<std::string>;

// No kernel of these touches the contents of a large input: the output is the input's buffer, or a shape.
const Names& names_of_handlers() {
  static const Names& names = *new Names{"_Arg",
                                         "_HostRecv",
                                         "_HostSend",
                                         "_Recv",
                                         "_Retval",
                                         "_Send",
                                         "_SwitchN",
                                         "Enter",
                                         "Exit",
                                         "ExpandDims",
                                         "Identity",
                                         "IdentityN",
                                         "LoopCond",
                                         "Merge",
                                         "NextIteration",
                                         "PreventGradient",
                                         "Rank",
                                         "RefEnter",
                                         "RefExit",
                                         "RefIdentity",
                                         "RefMerge",
                                         "RefNextIteration",
                                         "RefSwitch",
                                         "Reshape",
                                         "Shape",
                                         "ShapeN",
                                         "Size",
                                         "Squeeze",
                                         "StopGradient",
                                         "Switch",
                                         "TensorListGetItem",
                                         "TensorListPopBack",
                                         "TensorListPushBack",
                                         "TensorListSetItem",
                                         "VarIsInitializedOp",
                                         "VariableShape"};
  return names;
}

const Names& names_of_list_readers() {
  static const Names& names =
      *new Names{"AddN", "TensorListConcat", "TensorListConcatV2", "TensorListGather", "TensorListStack"};
  return names;
}

const Names& names_of_list_makers() {
  static const Names& names = *new Names{"AddN",
                                         "TensorListFromTensor",
                                         "TensorListScatter",
                                         "TensorListScatterIntoExistingList",
                                         "TensorListScatterV2",
                                         "TensorListSplit",
                                         "ZerosLike"};
  return names;
}

// Their output is their first input's buffer, written without asking who else has it.
const Names& names_of_writers() {
  static const Names& names = *new Names{"_ParallelConcatUpdate", "InplaceAdd", "InplaceSub", "InplaceUpdate"};
  return names;
}

// Operations on resource variables that do not write them. One that is missing costs a copy that could be avoided.
const Names& names_of_variable_readers() {
  static const Names& names = *new Names{"ReadVariableOp", "ResourceGather", "ResourceGatherNd"};
  return names;
}

// The part of a device's full name that says which process it belongs to.
std::string task_of(const OpKernel& kernel, const char* attribute) {
  const auto found = kernel.def().attr().find(attribute);
  const std::string name = found != kernel.def().attr().end() ? found->second.s() : std::string();
  return name.substr(0, name.find("/device:"));
}

// Of functions that were compiled into one kernel, by XLA or TensorRT. It names them in an attribute all the same. In a
// graph XLA's kernel stands for a call of a function, and has the name of such calls.
bool is_cluster(const OpKernel& kernel) {
  const std::string& type = kernel.type_string();
  const auto compiled = kernel.def().attr().find("_XlaMustCompile");
  return type.compare(0, 3, "Xla") == 0 || type.compare(0, 4, "_Xla") == 0 || type == "TRTEngineOp" ||
         (compiled != kernel.def().attr().end() && compiled->second.b());
}

Traits read_traits(const OpKernel& kernel) {
  const std::string& type = kernel.type_string();
  Traits traits;
  traits.uses_data = names_of_handlers().count(type) == 0;
  traits.uses_lists = names_of_list_readers().count(type) != 0;
  traits.writes_variables = names_of_variable_readers().count(type) == 0;
  traits.makes_elements = names_of_list_makers().count(type) != 0;
  traits.writes_inputs = names_of_writers().count(type) != 0;
  const bool only_lists = type.compare(0, 10, "TensorList") == 0;
  traits.is_list = LMS_HAS_TENSOR_LIST != 0 && (traits.uses_lists || traits.makes_elements || only_lists);
  traits.hides_elements = LMS_HAS_TENSOR_LIST == 0 && only_lists;
  traits.reads_array = traits.hides_elements || type.compare(0, 15, "TensorArrayRead") == 0;
  traits.keeps_outputs = stays_resident(kernel.name(), type);
  if (type == "_Send" || type == "_HostSend") {
    traits.sends = task_of(kernel, "send_device") != task_of(kernel, "recv_device");
  }
  // One that calls functions hands its inputs on to their operations, and would otherwise pin a whole model.
  if (!is_cluster(kernel)) {
    for (const auto& attribute : kernel.def().attr()) {
      if (attribute.second.has_func() || attribute.second.list().func_size() > 0) {
        traits.uses_data = false;
      }
    }
  }
  return traits;
}

// Each thread remembers those of kernels that it ran, since to find them out costs more than many kernels do. Another
// kernel may come to be at the same address, hence the names.
const Traits& traits_of(const OpKernel& kernel) {
  struct Remembered {
    const OpKernel* kernel = nullptr;
    std::string name;
    std::string type;
    std::uint64_t version = 0;  // of what the program asks
    Traits traits;
  };
  static constexpr std::size_t places = 1024;
  thread_local std::vector<Remembered> remembered(places);
  Remembered& place = remembered[reinterpret_cast<std::uintptr_t>(&kernel) / alignof(std::max_align_t) % places];
  const std::uint64_t version = resident_version();
  if (place.kernel != &kernel || place.version != version || place.type != kernel.type_string() ||
      place.name != kernel.name()) {
    place = Remembered{&kernel, kernel.name(), kernel.type_string(), version, read_traits(kernel)};
  }
  return place.traits;
}

// ------------------------------------------------------------------------------------------------ tensors

// The address of the contents; null for what is never paged: strings, handles, and what has no contents.
const void* address_of(const Tensor& tensor) {
  const bool has_contents =
      tensorflow::DMAHelper::buffer(&tensor) != nullptr;  // a type too, otherwise there may be none
  return has_contents && tensorflow::DMAHelper::CanUseDMA(&tensor) ? tensorflow::DMAHelper::base(&tensor) : nullptr;
}

// Nothing else holds the buffer: a kernel may write its output into it, and it dies with the operation otherwise.
bool may_be_forwarded(const Tensor& tensor) {
  const tensorflow::TensorBuffer* buffer = tensorflow::DMAHelper::buffer(&tensor);
  return buffer->RefCountIsOne() && const_cast<tensorflow::TensorBuffer*>(buffer)->root_buffer()->RefCountIsOne();
}

// The number by which a handle of a variable is known: from 2.3 on, in 2.2, and in 2.1, whose index is the standard
// library's.
template <typename Index>
auto variable_code(int /*first*/) -> decltype(Index::template Make<tensorflow::Var>().hash_code()) {
  return Index::template Make<tensorflow::Var>().hash_code();
}
template <typename Index>
auto variable_code(long /*second*/) -> decltype(Index::template Make<tensorflow::Var>("").hash_code()) {
  return Index::template Make<tensorflow::Var>("").hash_code();
}
template <typename Index>
std::size_t variable_code(...) {
  return typeid(tensorflow::Var).hash_code();
}

// Calls visit(variable) with those to which `input` has handles. False when some of its handles are others'.
template <typename Visit>
bool for_each_variable(OpKernelContext* context, const Tensor& input, const Visit& visit) {
  if (input.dtype() != tensorflow::DT_RESOURCE || !input.IsInitialized()) {
    return true;
  }
  bool all = true;
  const auto handles = input.flat<tensorflow::ResourceHandle>();
  for (int64_t number = 0; number < handles.size(); ++number) {
    const tensorflow::ResourceHandle& handle = handles(number);
    if (handle.hash_code() != variable_code<tensorflow::TypeIndex>(0)) {
      all = false;
      continue;
    }
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    if (tensorflow::LookupResource(context, handle, &variable).ok()) {
      visit(variable.get());
    }
  }
  return all;
}

// Calls visit(element) with those of the lists in `tensor`, if that is what it has.
template <typename Visit>
void for_each_element(const Tensor& tensor, const Visit& visit) {
#if LMS_HAS_TENSOR_LIST
  if (tensor.dtype() == tensorflow::DT_VARIANT && tensor.IsInitialized()) {
    const auto variants = tensor.flat<tensorflow::Variant>();
    for (int64_t number = 0; number < variants.size(); ++number) {
      const auto* list = variants(number).get<tensorflow::TensorList>();
      for (std::size_t item = 0; list != nullptr && item < list->tensors().size(); ++item) {
        visit(list->tensors()[item]);
      }
    }
  }
#else
  static_cast<void>(tensor);
  static_cast<void>(visit);
#endif
}

thread_local OpKernel* running = nullptr;

// As "MatMul gradient_tape/MatMul_1": the type, and the name in the graph.
const char* name_of_running() {
  thread_local std::string name;
  if (running == nullptr) {
    return nullptr;
  }
  name = running->type_string() + " " + running->name();
  return name.c_str();
}

}  // namespace

void name_operations() { lms_name_operations(name_of_running); }

Operation::Operation(OpKernel* kernel, OpKernelContext* context, lms::Pager* own, lms::StreamId stream)
    : own_(own), stream_(stream), count_(known_pager_count.load(std::memory_order_acquire)), outer_(running) {
  running = kernel;
  lms::Thread::current().begin_scope();
  for (std::size_t index = 0; index < count_; ++index) {
    known_pagers[index].pager->scope_began();
  }
  const lms::Status status = pin_inputs(kernel, context);
  if (!status.ok()) {
    context->SetStatus(to_tensorflow(status));
  }
}

lms::Status Operation::pin(const void* address, bool write) {
  const KnownPager* found = find_pager(address, count_);
  if (found == nullptr) {
    return {};
  }
  Held held{found->pager, lms::Pin{}};
  lms::Status status = found->pager->pin(address, write, &held.pin, stream_of(found->pager));
  if (held.pin.block != nullptr) {
    pins_.push_back(held);
  }
  return status;
}

lms::Status Operation::pin_inputs(OpKernel* kernel, OpKernelContext* context) {
  const Traits& traits = traits_of(*kernel);
  makes_elements_ = traits.makes_elements;
  reads_array_ = traits.reads_array;
  keeps_outputs_ = traits.keeps_outputs;
  if (traits.sends && context->num_inputs() == 1 && context->has_input(0)) {
    const void* address = address_of(context->input(0));
    const KnownPager* found = find_pager(address, count_);
    return found != nullptr ? found->pager->hold(address) : lms::Status();
  }
  if (!traits.uses_data && !(traits.hides_elements && some_lack_faults())) {
    return {};
  }
  lms::Status status;
  bool into_resource = false;
  for (int index = 0; index < context->num_inputs() && status.ok(); ++index) {
    if (!context->has_input(index)) {
      continue;
    }
    if (context->input_is_ref(index)) {
      status = pin(address_of(context->mutable_input(index, /*lock_held=*/false)), /*write=*/true);
      continue;
    }
    const Tensor& input = context->input(index);
    if (const void* address = address_of(input)) {
      const bool write = traits.writes_inputs || may_be_forwarded(input);
      status = pin(address, write);
      // It may be forwarded after all when others that have the buffer let it go meanwhile, and nothing could repair
      // a write to what was pinned for reading: then this operation has it twice.
      if (!write && some_lack_faults() && find_pager(address, count_) != nullptr) {
        read_.push_back(input);
      }
    } else if (input.dtype() == tensorflow::DT_RESOURCE && input.IsInitialized()) {
      writes_variables_ = traits.writes_variables;
      const bool all = for_each_variable(context, input, [this, &traits, &status](tensorflow::Var* variable) {
        if (status.ok()) {
          // Not held for longer: an update in place takes a buffer to which nothing else refers.
          const tensorflow::tf_shared_lock lock(*variable->mu());
          status = pin(address_of(*variable->tensor()), traits.writes_variables);
        }
      });
      into_resource = into_resource || !all;
    } else if (traits.uses_lists) {
      for_each_element(input, [this, &status](const Tensor& element) {
        if (status.ok()) {
          status = pin(address_of(element), /*write=*/false);
        }
      });
    }
  }
  return status.ok() && some_lack_faults() && !traits.is_list ? hold_kept(*context, into_resource) : status;
}

// What an object keeps that does not show its contents (a TensorArray, an Optional, a list of 2.1) is used by
// operations that are not given it. Where no fault would bring it back, it stays.
lms::Status Operation::hold_kept(const OpKernelContext& context, bool into_resource) {
  bool kept = into_resource;
  for (int index = 0; index < context.num_outputs(); ++index) {
    kept = kept || context.expected_output_dtype(index) == tensorflow::DT_VARIANT;
  }
  for (const Held& held : pins_) {
    if (kept && !held.pager->backend().serves_faults()) {
      const lms::Status status = held.pager->hold(held.pin.block->address);
      if (!status.ok()) {
        return status;
      }
    }
  }
  return {};
}

void Operation::leave() {
  running = outer_;
  const bool outermost = lms::Thread::current().end_scope();
  for (std::size_t index = 0; index < count_; ++index) {
    known_pagers[index].pager->scope_ended(outermost, stream_of(known_pagers[index].pager));
  }
}

void Operation::show(const Tensor& output) {
  const void* address = address_of(output);
  const KnownPager* found = find_pager(address, count_);
  if (found == nullptr) {
    return;
  }
  if (keeps_outputs_) {
    static_cast<void>(found->pager->hold(address));  // where there is no memory to bring it back, it stays away
  }
  if (reads_array_ && !may_be_forwarded(output) && !found->pager->backend().serves_faults()) {
    // The array has it still. It is resident, since it was never seen, or held: this cannot fail.
    static_cast<void>(found->pager->hold(address));
  } else {
    found->pager->mark_seen(address, stream_of(found->pager));
  }
}

void Operation::finish(OpKernelContext* context) {
  // A variable may have got a buffer that is nobody's output: a copy, where others still have the one before.
  for (int index = 0; writes_variables_ && index < context->num_inputs(); ++index) {
    if (context->has_input(index) && !context->input_is_ref(index)) {
      for_each_variable(context, context->input(index), [this](tensorflow::Var* variable) {
        // A kernel that calls back when it is done may hold the lock meanwhile.
        const tensorflow::tf_shared_lock lock(*variable->mu(), std::try_to_lock);
        const void* address = lock ? address_of(*variable->tensor()) : nullptr;
        if (const KnownPager* found = find_pager(address, count_)) {
          found->pager->mark_seen(address, stream_of(found->pager));
        }
      });
    }
  }
  for (int index = 0; index < context->num_outputs(); ++index) {
    if (tensorflow::IsRefType(context->expected_output_dtype(index))) {
      continue;
    }
    const Tensor* output = context->mutable_output(index);
    if (output == nullptr) {
      continue;
    }
    show(*output);
    if (makes_elements_) {
      for_each_element(*output, [this](const Tensor& element) { show(element); });
    }
  }
  for (const Held& held : pins_) {
    held.pager->unpin(held.pin, stream_of(held.pager));
  }
  pins_.clear();
  read_.clear();
}

}  // namespace lms_tensorflow

// Large Model Support for CPU tensors: an allocator in front of the stock one, and an observer of every operation that
// keeps the operation's inputs resident. LmsTorch.h has the C functions.
#include <ATen/LmsTorch.h>
#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/lms/pager.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

// A build of the framework says itself whether it has collectives; a wheel has them when it has their headers.
#if defined(USE_DISTRIBUTED) || (!defined(CAFFE2_BUILD_MAIN_LIB) && __has_include(<torch/csrc/distributed/c10d/Work.hpp>))
#define LMS_HAS_COLLECTIVES 1
#include <torch/csrc/distributed/c10d/Work.hpp>
#else
#define LMS_HAS_COLLECTIVES 0
#endif

namespace {

std::atomic<lms::Pager*> cpu_pager{nullptr};
std::atomic<bool> cpu_enabled{false};
std::atomic<uint64_t> cpu_min_size{0};

[[noreturn]] void throw_status(const lms::Status& status) {
  if (status.code == LMS_OUT_OF_MEMORY) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "LMS: ", status.message);
  }
  TORCH_CHECK(false, "LMS: ", status.message);
}

// An observer cannot make its operation fail: PyTorch logs what it throws and goes on. What went wrong there is kept
// and reported by the thread's next allocation, unless LMS was configured otherwise since; until then the fault handler
// keeps the data right.
struct PendingFailure {
  lms::Status status;
  uint64_t configuration = 0;
  uint64_t limit = 0;
};
thread_local PendingFailure pending_failure;
std::atomic<uint64_t> configuration{0};  // counts the calls that enabled LMS or changed its options

void keep_failure(lms::Status status) {
  pending_failure = PendingFailure{std::move(status), configuration.load(), cpu_pager.load()->limit()};
}

void throw_pending_failure() {
  if (pending_failure.status.ok()) {
    return;
  }
  PendingFailure failure;
  std::swap(failure, pending_failure);
  if (failure.configuration == configuration.load() && failure.limit == cpu_pager.load()->limit()) {
    throw_status(failure.status);
  }
}

// ------------------------------------------------------------------------------------------------ allocator

void release_block(void* address);

// Large requests go to the pager, all else to the allocator that was there before.
class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes < cpu_min_size.load(std::memory_order_relaxed) || bytes == 0 ||
        !cpu_enabled.load(std::memory_order_relaxed)) {
      return stock_->allocate(bytes);
    }
    throw_pending_failure();
    void* address = nullptr;
    const lms::Status status = cpu_pager.load(std::memory_order_acquire)->allocate(bytes, &address);
    if (!status.ok()) {
      throw_status(status);
    }
    c10::profiledCPUMemoryReporter().New(address, bytes);
    return {address, address, &release_block, c10::Device(c10::DeviceType::CPU)};
  }

  // Serves both kinds of memory.
  c10::DeleterFnPtr raw_deleter() const override { return &release_block; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  void set_stock(c10::Allocator* stock) { stock_ = stock; }
  c10::Allocator* stock() const { return stock_; }

 private:
  c10::Allocator* stock_ = nullptr;
};

// Never destroyed: storages refer to it until the process ends.
CpuAllocator& cpu_allocator() {
  static CpuAllocator& allocator = *new CpuAllocator;
  return allocator;
}

void release_block(void* address) {
  lms::Pager* pager = cpu_pager.load(std::memory_order_acquire);
  if (pager->owns(address)) {
    c10::profiledCPUMemoryReporter().Delete(address);
    pager->free(address);
  } else {
    cpu_allocator().stock()->raw_deleter()(address);
  }
}

// ------------------------------------------------------------------------------------------------ observer

// Calls `visit(address)` for every storage that the tensor's data lives in. Reads no data and dispatches nothing.
template <typename Visit>
void visit_storages(const at::Tensor& tensor, const Visit& visit) {
  if (!tensor.defined()) {
    return;
  }
  const c10::TensorImpl* tensor_impl = tensor.unsafeGetTensorImpl();
  if (tensor_impl->is_nested()) {
    if (const auto* nested = dynamic_cast<const at::native::NestedTensorImpl*>(tensor_impl)) {
      visit_storages(nested->get_nested_sizes(), visit);
      visit_storages(nested->get_nested_strides(), visit);
    }
  }
  if (tensor_impl->has_storage()) {
    // No checks: neither materialises a copy-on-write storage nor refuses a fake one (whose address is null).
    const void* address = tensor_impl->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
    if (address != nullptr) {
      visit(address);
    }
  } else if (const auto* coo = dynamic_cast<const at::SparseTensorImpl*>(tensor_impl)) {
    visit_storages(coo->indices(), visit);
    visit_storages(coo->values(), visit);
  } else if (const auto* compressed = dynamic_cast<const at::SparseCsrTensorImpl*>(tensor_impl)) {
    visit_storages(compressed->compressed_indices(), visit);
    visit_storages(compressed->plain_indices(), visit);
    visit_storages(compressed->values(), visit);
  }
}

bool may_hold_tensors(const c10::IValue& value) {
  return value.isTensor() || value.isNone() || value.isList() || value.isTuple() || value.isGenericDict();
}

// The same for every tensor in a value: tensors, optional tensors, and lists, tuples and dictionaries of them.
template <typename Visit>
void visit_storages(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit_storages(value.toTensor(), visit);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (!may_hold_tensors(element)) {
        break;  // a list of numbers or strings
      }
      visit_storages(element, visit);
    }
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) {
      visit_storages(element, visit);
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      visit_storages(entry.key(), visit);
      visit_storages(entry.value(), visit);
    }
  }
}

// What its schema says of an operation.
struct OperationTraits {
  uint64_t written = 0;  // bit i: may write argument i; all of them where there are too many to tell
  bool ours = false;     // an operator of this file: it pins for itself, and reports its failures
};

const OperationTraits& operation_traits(const at::RecordFunction& function) {
  // Asking for the schema copies it. The overload's name lies inside the schema, so that its address stands for it.
  thread_local std::unordered_map<const char*, OperationTraits> known;
  const auto found = known.find(function.overload_name());
  if (found != known.end()) {
    return found->second;
  }
  OperationTraits traits;
  const auto schema = function.operator_schema();
  if (schema) {
    const auto& arguments = schema->arguments();
    for (size_t index = 0; index < arguments.size(); ++index) {
      if (arguments[index].alias_info() != nullptr && arguments[index].alias_info()->isWrite()) {
        traits.written |= index < 64 ? uint64_t{1} << index : ~uint64_t{0};
      }
    }
    // Collectives receive into tensors that their schemas do not mark as written.
    if (schema->name().compare(0, 6, "c10d::") == 0) {
      traits.written = ~uint64_t{0};
    }
    traits.ours = schema->name().compare(0, 5, "lms::") == 0;
  }
  return known.emplace(function.overload_name(), traits).first->second;
}

// The pins of the operations that are running on this thread, innermost last; an empty pin begins each operation's.
thread_local std::vector<lms::Pin> operation_pins;

void pin_storage(lms::Pager* pager, const void* address, bool write, std::vector<lms::Pin>* pins) {
  lms::Pin pin;
  lms::Status status = pager->pin(address, write, &pin);
  if (!status.ok()) {
    keep_failure(std::move(status));
  } else if (pin.block != nullptr) {
    pins->push_back(pin);
  }
}

#if LMS_HAS_COLLECTIVES
// A collective goes on after its operation has returned, and hands its tensors to system calls, which fail on a block
// that is away instead of faulting. So its pins stay until the work is done.
class RunningCollectives {
 public:
  void add(c10::intrusive_ptr<c10d::Work> work, std::vector<lms::Pin> pins) {
    const std::lock_guard<std::mutex> guard(lock_);
    running_.push_back(Collective{std::move(work), std::move(pins)});
    count_.store(running_.size(), std::memory_order_relaxed);
  }

  // Drops the pins of those that are done.
  void release_done(lms::Pager* pager) {
    if (count_.load(std::memory_order_relaxed) == 0) {
      return;
    }
    const std::lock_guard<std::mutex> guard(lock_);
    const auto done = std::stable_partition(running_.begin(), running_.end(),
                                            [](const Collective& entry) { return !entry.work->isCompleted(); });
    for (auto entry = done; entry != running_.end(); ++entry) {
      for (const lms::Pin& pin : entry->pins) {
        pager->unpin(pin);
      }
    }
    running_.erase(done, running_.end());
    count_.store(running_.size(), std::memory_order_relaxed);
  }

 private:
  struct Collective {
    c10::intrusive_ptr<c10d::Work> work;
    std::vector<lms::Pin> pins;
  };
  std::mutex lock_;
  std::vector<Collective> running_;
  std::atomic<size_t> count_{0};
};

RunningCollectives& running_collectives() {
  static RunningCollectives& collectives = *new RunningCollectives;
  return collectives;
}

// The unfinished work among an operation's outputs, or null.
c10::intrusive_ptr<c10d::Work> unfinished_work(const at::RecordFunction& function) {
  for (const c10::IValue& output : function.outputs()) {
    if (output.isObject() && *output.type() == *c10::getCustomClassType<c10::intrusive_ptr<c10d::Work>>()) {
      auto work = output.toCustomClass<c10d::Work>();
      return work->isCompleted() ? nullptr : work;
    }
  }
  return nullptr;
}
#endif

std::unique_ptr<at::ObserverContext> begin_operation(const at::RecordFunction& function) {
  lms::Pager* pager = cpu_pager.load(std::memory_order_acquire);
#if LMS_HAS_COLLECTIVES
  running_collectives().release_done(pager);
#endif
  pager->begin_scope();
  operation_pins.emplace_back();
  const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  const OperationTraits& traits = operation_traits(function);
  for (size_t index = 0; index < inputs.size() && !traits.ours; ++index) {
    const bool write = (traits.written >> std::min<size_t>(index, 63) & 1) != 0;
    visit_storages(inputs[index], [&](const void* address) { pin_storage(pager, address, write, &operation_pins); });
  }
  return nullptr;
}

void end_operation(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  lms::Pager* pager = cpu_pager.load(std::memory_order_acquire);
  for (const c10::IValue& output : function.outputs()) {
    visit_storages(output, [&](const void* address) { pager->mark_seen(address); });
  }
#if LMS_HAS_COLLECTIVES
  if (auto work = unfinished_work(function)) {
    const auto first = std::find_if(operation_pins.rbegin(), operation_pins.rend(), [](const lms::Pin& pin) {
                         return pin.block == nullptr;
                       }).base();
    running_collectives().add(std::move(work), {first, operation_pins.end()});
    operation_pins.erase(first, operation_pins.end());
  }
#endif
  while (!operation_pins.empty()) {
    const lms::Pin pin = operation_pins.back();
    operation_pins.pop_back();
    if (pin.block == nullptr) {
      break;
    }
    pager->unpin(pin);
  }
  pager->end_scope();
  // The operation had its data in spite of a store that could take no more: whoever needs room next says so. That a
  // strict limit was passed is still to be reported.
  if (operation_pins.empty() && pending_failure.status.code == LMS_STORE_FAILED) {
    pending_failure = PendingFailure();
  }
}

// ------------------------------------------------------------------------------------------------ operators

void unpin(c10::IntArrayRef tokens) {
  lms::Pager* pager = cpu_pager.load(std::memory_order_acquire);
  TORCH_CHECK(tokens.size() % 2 == 0, "lms::unpin takes what lms::pin returned");
  for (size_t index = 0; index < tokens.size(); index += 2) {
    pager->unpin(lms::Pin{reinterpret_cast<lms::Block*>(tokens[index]), static_cast<uint64_t>(tokens[index + 1])});
  }
}

// Pins the storages of all tensors; the result, pairs of numbers, goes to unpin once.
std::vector<int64_t> pin(at::TensorList tensors, bool write) {
  std::vector<lms::Pin> pins;
  std::vector<int64_t> tokens;
  lms::Pager* pager = cpu_pager.load(std::memory_order_acquire);
  if (pager == nullptr) {
    return tokens;
  }
  lms::Status status;
  for (const at::Tensor& tensor : tensors) {
    visit_storages(tensor, [&](const void* address) {
      lms::Pin pin;
      if (status.ok()) {
        status = pager->pin(address, write, &pin);
      }
      if (pin.block != nullptr) {
        tokens.push_back(reinterpret_cast<int64_t>(pin.block));
        tokens.push_back(static_cast<int64_t>(pin.generation));
      }
    });
  }
  if (!status.ok()) {
    unpin(tokens);
    throw_status(status);
  }
  return tokens;
}

// The same bytes as `self`, pinned for as long as the result's storage lives: for views that leave PyTorch.
at::Tensor pinned_alias(const at::Tensor& self) {
  const std::vector<int64_t> tokens = pin({self}, /*write=*/true);
  if (tokens.empty()) {
    return self;
  }
  const auto drop = [self, tokens](void* /*data*/) { unpin(tokens); };
  return at::from_blob(self.mutable_data_ptr(), self.sizes(), self.strides(), drop, self.options());
}

TORCH_LIBRARY(lms, library) {
  library.def("pin(Tensor[] tensors, bool write) -> int[]", &pin);
  library.def("unpin(int[] tokens) -> ()", &unpin);
  library.def("pinned_alias(Tensor self) -> Tensor", &pinned_alias);
}

// ------------------------------------------------------------------------------------------------ switching

std::mutex& switching() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

at::CallbackHandle observer = 0;

// Above the priority of every allocator that is registered statically; equal priorities replace each other.
constexpr uint8_t allocator_priority = 255;

}  // namespace

lms_status lms_torch_cpu_enable(const lms_options* options, uint64_t min_size) {
  const std::lock_guard<std::mutex> guard(switching());
  lms_pager* pager = lms_torch_cpu_pager();
  const lms_status status = pager == nullptr ? lms_create(options, &pager) : lms_configure(pager, options);
  if (status != LMS_OK) {
    return status;
  }
  cpu_pager.store(reinterpret_cast<lms::Pager*>(pager), std::memory_order_release);
  configuration.fetch_add(1);
  cpu_min_size.store(min_size, std::memory_order_relaxed);
  if (!cpu_enabled.exchange(true)) {
    cpu_allocator().set_stock(c10::GetCPUAllocator());
    observer = at::addGlobalCallback(at::RecordFunctionCallback(begin_operation, end_operation)
                                         .needsInputs(true)
                                         .needsOutputs(true)
                                         .scopes({at::RecordScope::FUNCTION}));
    c10::SetAllocator(c10::DeviceType::CPU, &cpu_allocator(), allocator_priority);
  }
  return LMS_OK;
}

lms_status lms_torch_cpu_disable(void) {
  const std::lock_guard<std::mutex> guard(switching());
  if (!cpu_enabled.load(std::memory_order_relaxed)) {
    return LMS_OK;
  }
  const lms_status status = lms_restore_all(lms_torch_cpu_pager());
  if (status != LMS_OK) {
    return status;
  }
  c10::SetAllocator(c10::DeviceType::CPU, cpu_allocator().stock(), allocator_priority);
  cpu_enabled.store(false);
  at::removeCallback(observer);
  lms_shutdown(lms_torch_cpu_pager());
  return LMS_OK;
}

int lms_torch_cpu_enabled(void) { return cpu_enabled.load() ? 1 : 0; }

uint64_t lms_torch_cpu_min_size(void) { return cpu_min_size.load(std::memory_order_relaxed); }

lms_pager* lms_torch_cpu_pager(void) { return reinterpret_cast<lms_pager*>(cpu_pager.load(std::memory_order_acquire)); }

// Large Model Support for tensors: an observer of every operation that keeps the operation's inputs resident, on
// whatever device they are (LmsObserver.h), and for CPU tensors an allocator in front of the stock one (LmsTorch.h).
#include <ATen/LmsObserver.h>
#include <ATen/LmsOverride.h>
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
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <typeinfo>
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

using lms_torch::Device;

// ------------------------------------------------------------------------------------------------ devices

constexpr size_t most_devices = 64;

struct KnownDevice {
  uintptr_t begin = 0;  // of the pager's address space
  uintptr_t bytes = 0;
  // The device notices a write to a read-only block that no operation announced, instead of failing.
  bool notices_writes = false;
  Device device;

  lms::Pager* pager() const { return device.pager; }
  bool covers(const void* address) const { return reinterpret_cast<uintptr_t>(address) - begin < bytes; }
};

// Entries are added and never change, so that reading takes no lock.
std::array<KnownDevice, most_devices> known_devices;
std::atomic<size_t> known_count{0};

// The entry that owns the address, among the first `count`; null when there is none.
const KnownDevice* find_device(const void* address, size_t count) {
  for (size_t index = 0; index < count; ++index) {
    if (known_devices[index].covers(address)) {
      return &known_devices[index];
    }
  }
  return nullptr;
}

size_t position(const KnownDevice* known) { return static_cast<size_t>(known - known_devices.data()); }

std::atomic<unsigned> captures{0};

// The streams on which the calling thread works now, one per device, each looked up when it is first asked for.
class CurrentStreams {
 public:
  lms::StreamId of(size_t index) {
    const uint64_t bit = uint64_t{1} << index;
    if ((known_ & bit) == 0) {
      const Device& device = known_devices[index].device;
      bool captured = false;
      set(index, device.current_stream == nullptr ? lms::host_stream : device.current_stream(device, &captured));
      captured_ |= captured ? bit : 0;
    }
    return streams_[index];  // NOLINT(cppcoreguidelines-pro-bounds-constant-array-index)
  }
  bool captured(size_t index) {
    of(index);
    return (captured_ >> index & 1) != 0;
  }
  bool asked(size_t index) const { return (known_ >> index & 1) != 0; }
  void set(size_t index, lms::StreamId stream) {
    known_ |= uint64_t{1} << index;
    streams_[index] = stream;
  }

 private:
  uint64_t known_ = 0;
  uint64_t captured_ = 0;
  std::array<lms::StreamId, most_devices> streams_;  // where known_ has a bit
};

// ------------------------------------------------------------------------------------------------ failures

// What went wrong in the observer is reported by the thread's next allocation, unless LMS was configured otherwise
// since. Until then a fault handler keeps the data right; a device without one reports an error of its own.
struct PendingFailure {
  lms::Status status;
  const KnownDevice* device = nullptr;
  uint64_t configuration = 0;
  uint64_t limit = 0;
};
thread_local PendingFailure pending_failure;
std::atomic<uint64_t> configuration{0};  // counts the calls that enabled LMS or changed its options

void keep_failure(const KnownDevice* device, lms::Status status) {
  pending_failure = PendingFailure{std::move(status), device, configuration.load(), device->pager()->limit()};
}

}  // namespace

namespace lms_torch {

bool add_device(const Device& device) {
  static std::mutex& lock = *new std::mutex;
  const std::lock_guard<std::mutex> guard(lock);
  const size_t count = known_count.load(std::memory_order_relaxed);
  if (count == most_devices) {
    return false;
  }
  lms::Backend& backend = device.pager->backend();
  known_devices[count] =
      KnownDevice{reinterpret_cast<uintptr_t>(backend.base()), backend.span(), backend.serves_faults(), device};
  known_count.store(count + 1, std::memory_order_release);
  return true;
}

const Device* device_of(const void* address) {
  const KnownDevice* known = find_device(address, known_count.load(std::memory_order_acquire));
  return known != nullptr && known->pager()->owns(address) ? &known->device : nullptr;
}

void begin_capture() { captures.fetch_add(1); }
void end_capture() { captures.fetch_sub(1); }
bool capture_possible() { return captures.load(std::memory_order_acquire) != 0; }

void options_changed() { configuration.fetch_add(1); }

void throw_status(const lms::Status& status) {
  if (status.code == LMS_OUT_OF_MEMORY) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "LMS: ", status.message);
  }
  TORCH_CHECK(false, "LMS: ", status.message);
}

void throw_pending_failure() {
  if (pending_failure.status.ok()) {
    return;
  }
  PendingFailure failure;
  std::swap(failure, pending_failure);
  if (failure.configuration == configuration.load() && failure.limit == failure.device->pager()->limit()) {
    throw_status(failure.status);
  }
}

ResidentBlock::ResidentBlock(const void* address, bool write, lms::StreamId stream)
    : device_(device_of(address)), stream_(stream) {
  if (device_ != nullptr) {
    const lms::Status status = device_->pager->pin(address, write, &pin_, stream);
    if (!status.ok()) {
      throw_status(status);
    }
  }
}

ResidentBlock::~ResidentBlock() {
  if (device_ != nullptr) {
    device_->pager->unpin(pin_, stream_);
  }
}

}  // namespace lms_torch

namespace {

// ------------------------------------------------------------------------------------------------ CPU allocator

std::atomic<lms::Pager*> cpu_pager{nullptr};
std::atomic<bool> cpu_enabled{false};
std::atomic<uint64_t> cpu_min_size{0};

void release_block(void* address);

// Large requests go to the pager, all else to the allocator that was there before.
class CpuMemory {
 public:
  c10::DataPtr allocate(size_t bytes) const {
    if (bytes < cpu_min_size.load(std::memory_order_relaxed) || bytes == 0 ||
        !cpu_enabled.load(std::memory_order_relaxed)) {
      return stock_->allocate(bytes);
    }
    lms_torch::throw_pending_failure();
    void* address = nullptr;
    const lms::Status status = cpu_pager.load(std::memory_order_acquire)->allocate(bytes, &address);
    if (!status.ok()) {
      lms_torch::throw_status(status);
    }
    c10::profiledCPUMemoryReporter().New(address, bytes);
    return {address, address, &release_block, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }

  void set_stock(c10::Allocator* stock) { stock_ = stock; }
  c10::Allocator* stock() const { return stock_; }

 private:
  c10::Allocator* stock_ = nullptr;
};

// Never destroyed: storages refer to it until the process ends.
CpuMemory& cpu_memory() {
  static CpuMemory& memory = *new CpuMemory;
  return memory;
}

class CpuAllocatorBase : public c10::Allocator {
 public:
  // Serves both kinds of memory.
  c10::DeleterFnPtr raw_deleter() const override { return &release_block; }
};

LMS_DEFINE_OVERRIDE(allocate, cpu_memory().)
LMS_DEFINE_OVERRIDE(copy_data, cpu_memory().)

using CpuAllocator = lms_torch::Chain<CpuAllocatorBase, lms_override_allocate<c10::Allocator>::Link,
                                      lms_override_copy_data<c10::Allocator>::Link>::type;

c10::Allocator& cpu_allocator() {
  static CpuAllocator& allocator = *new CpuAllocator;
  return allocator;
}

void release_block(void* address) {
  lms::Pager* pager = cpu_pager.load(std::memory_order_acquire);
  if (pager->owns(address)) {
    c10::profiledCPUMemoryReporter().Delete(address);
    pager->free(address);
  } else {
    cpu_memory().stock()->raw_deleter()(address);
  }
}

// ------------------------------------------------------------------------------------------------ tensors

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

// For a view that may be written.
template <typename Tensor>
auto writable_data(const Tensor& tensor, int /*preferred*/) -> decltype(tensor.mutable_data_ptr()) {
  return tensor.mutable_data_ptr();
}
template <typename Tensor>
void* writable_data(const Tensor& tensor, long /*otherwise*/) {
  return tensor.data_ptr();
}

template <typename Nested>
auto nested_sizes(const Nested& nested, int /*preferred*/) -> decltype(nested.get_nested_sizes()) {
  return nested.get_nested_sizes();
}
template <typename Nested>
const at::Tensor& nested_sizes(const Nested& nested, long /*otherwise*/) {
  return nested.get_nested_size_tensor();
}

template <typename Nested>
auto nested_strides(const Nested& nested, int /*preferred*/) -> decltype(nested.get_nested_strides()) {
  return nested.get_nested_strides();
}
template <typename Nested>
const at::Tensor& nested_strides(const Nested& nested, long /*otherwise*/) {
  return nested.get_nested_stride_tensor();
}

// Calls `visit(address)` for every storage that the tensor's data lives in. Reads no data and dispatches nothing.
template <typename Visit>
void visit_storages(const at::Tensor& tensor, const Visit& visit) {
  if (!tensor.defined()) {
    return;
  }
  const c10::TensorImpl* tensor_impl = tensor.unsafeGetTensorImpl();
  if (tensor_impl->is_nested()) {
    if (const auto* nested = dynamic_cast<const at::native::NestedTensorImpl*>(tensor_impl)) {
      visit_storages(nested_sizes(*nested, 0), visit);
      visit_storages(nested_strides(*nested, 0), visit);
    }
  }
  if (tensor_impl->has_storage()) {
    const void* address = data_address(tensor_impl->unsafe_storage().unsafeGetStorageImpl(), 0);
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

// ------------------------------------------------------------------------------------------------ operations

// What its schema says of an operation. Bit i: may write argument i; all bits where there are too many to tell.
struct OperationTraits {
  uint64_t written = ~uint64_t{0};
  uint64_t declared = 0;  // the same as far as declared; enough where writes that nobody declared are noticed
  bool ours = false;      // an operator of this file: it pins for itself, and reports its failures
};

// Operators of namespace aten that write arguments which their schemas, in some release, do not mark as written:
// running statistics, the reserve of cuDNN's RNNs and weights that it lays out anew, noise, destinations of copies.
constexpr std::array<const char*, 7> undeclared_writes = {"batch_norm", "instance_norm", "rnn",       "lstm",
                                                          "gru",        "rrelu",         "_copy_from"};

OperationTraits read_schema(const c10::FunctionSchema& schema) {
  OperationTraits traits;
  const auto& arguments = schema.arguments();
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (arguments[index].alias_info() != nullptr && arguments[index].alias_info()->isWrite()) {
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
  }
  traits.ours = name.compare(0, 5, "lms::") == 0;
  return traits;
}

const OperationTraits& operation_traits(const at::RecordFunction& function) {
  static const OperationTraits without_schema;
  // Asking for the schema copies it. The name lies inside the schema, so that its address stands for it.
  thread_local std::unordered_map<const char*, OperationTraits> known;
  const auto found = known.find(function.name());
  if (found != known.end()) {
    return found->second;
  }
  const auto schema = function.operator_schema();
  return schema ? known.emplace(function.name(), read_schema(*schema)).first->second : without_schema;
}

// A pin of an operation that is running on this thread.
struct Held {
  lms::Pin pin;
  uint32_t device = 0;  // its position among the known ones
  lms::StreamId stream = lms::host_stream;
};

// Those of all operations, innermost last. An empty pin begins each operation's; its `device` is the number of devices
// that were known then.
thread_local std::vector<Held> operation_pins;

#if LMS_HAS_COLLECTIVES
// A collective goes on after its operation has returned, and hands its tensors to system calls, which fail on a block
// that is away instead of faulting. So its pins stay until the work is done.
class RunningCollectives {
 public:
  void add(c10::intrusive_ptr<c10d::Work> work, std::vector<Held> pins) {
    // NCCL's are done when the device is; others may still copy on streams of their own.
    if (std::strstr(typeid(*work).name(), "NCCL") == nullptr) {
      for (Held& held : pins) {
        held.stream = known_devices[held.device].device.current_stream != nullptr ? lms::any_stream : held.stream;
      }
    }
    const std::lock_guard<std::mutex> guard(lock_);
    running_.push_back(Collective{std::move(work), std::move(pins)});
    count_.store(running_.size(), std::memory_order_relaxed);
  }

  // Drops the pins of one that is done. To ask may cost a call to the device, so each call asks one, in turn.
  void release_done() {
    if (count_.load(std::memory_order_relaxed) == 0 || lms_torch::capture_possible()) {
      return;
    }
    Collective done;  // destroyed without the lock
    const std::lock_guard<std::mutex> guard(lock_);
    if (running_.empty()) {
      return;
    }
    next_ = (next_ + 1) % running_.size();
    if (!running_[next_].work->isCompleted()) {
      return;
    }
    std::swap(running_[next_], running_.back());
    done = std::move(running_.back());
    running_.pop_back();
    count_.store(running_.size(), std::memory_order_relaxed);
    for (const Held& held : done.pins) {
      known_devices[held.device].pager()->unpin(held.pin, held.stream);
    }
  }

 private:
  struct Collective {
    c10::intrusive_ptr<c10d::Work> work;
    std::vector<Held> pins;
  };
  std::mutex lock_;
  std::vector<Collective> running_;
  size_t next_ = 0;
  std::atomic<size_t> count_{0};
};

RunningCollectives& running_collectives() {
  static RunningCollectives& collectives = *new RunningCollectives;
  return collectives;
}

// Keeps the pins of an operation, which begin at `first`, for as long as the collective that it started needs them.
void keep_for_collective(const at::RecordFunction& function, std::vector<Held>* pins,
                         std::vector<Held>::iterator first) {
  if (first == pins->end()) {
    return;
  }
  for (const c10::IValue& output : function.outputs()) {
    if (!output.isObject() || *output.type() != *c10::getCustomClassType<c10::intrusive_ptr<c10d::Work>>()) {
      continue;
    }
    auto work = output.toCustomClass<c10d::Work>();
    if (work == nullptr) {
      // Part of a group that starts later, and nobody says when it is done.
      for (auto held = first; held != pins->end(); ++held) {
        const KnownDevice& device = known_devices[held->device];
        if (!device.notices_writes) {
          static_cast<void>(device.pager()->hold(held->pin.block->address));  // is pinned, so cannot fail
        }
      }
    } else if (!work->isCompleted()) {
      running_collectives().add(std::move(work), {first, pins->end()});
      pins->erase(first, pins->end());
    }
    return;
  }
}
#endif

std::unique_ptr<at::ObserverContext> begin_operation(const at::RecordFunction& function) {
#if LMS_HAS_COLLECTIVES
  running_collectives().release_done();
#endif
  const size_t count = known_count.load(std::memory_order_acquire);
  lms::Thread::current().begin_scope();
  for (size_t index = 0; index < count; ++index) {
    known_devices[index].pager()->scope_began();
  }
  std::vector<Held>& pins = operation_pins;  // to reach a thread's own costs something
  pins.push_back(Held{lms::Pin{}, static_cast<uint32_t>(count), lms::host_stream});
  const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  const OperationTraits& traits = operation_traits(function);
  CurrentStreams streams;
  bool lacks_data = false;
  for (size_t index = 0; index < inputs.size() && !traits.ours; ++index) {
    visit_storages(inputs[index], [&](const void* address) {
      const KnownDevice* known = find_device(address, count);
      if (known == nullptr) {
        return;
      }
      Held held;
      held.device = static_cast<uint32_t>(position(known));
      held.stream = streams.of(held.device);
      const uint64_t written = known->notices_writes ? traits.declared : traits.written;
      const bool write = (written >> std::min<size_t>(index, 63) & 1) != 0;
      lms::Status status = streams.captured(held.device) ? known->pager()->hold(address)
                                                         : known->pager()->pin(address, write, &held.pin, held.stream);
      if (!status.ok()) {
        lacks_data |= !known->notices_writes;
        keep_failure(known, std::move(status));
      } else if (held.pin.block != nullptr) {
        pins.push_back(held);
      }
    });
  }
  if (lacks_data) {
    // The device is going to report an illegal access. PyTorch logs what is thrown here, with the operation's name.
    throw std::runtime_error("LMS: " + pending_failure.status.message);
  }
  return nullptr;
}

void end_operation(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  std::vector<Held>& pins = operation_pins;
  const auto first =
      std::find_if(pins.rbegin(), pins.rend(), [](const Held& held) { return held.pin.block == nullptr; }).base();
  if (first == pins.begin()) {
    return;  // the observer was put in place while the operation ran
  }
  const size_t count = (first - 1)->device;
  CurrentStreams streams;
  for (auto held = first; held != pins.end(); ++held) {
    streams.set(held->device, held->stream);
  }
  for (const c10::IValue& output : function.outputs()) {
    visit_storages(output, [&](const void* address) {
      if (const KnownDevice* known = find_device(address, count)) {
        known->pager()->mark_seen(address, streams.of(position(known)));
      }
    });
  }
#if LMS_HAS_COLLECTIVES
  keep_for_collective(function, &pins, first);
#endif
  while (true) {
    const Held held = pins.back();
    pins.pop_back();
    if (held.pin.block == nullptr) {
      break;
    }
    known_devices[held.device].pager()->unpin(held.pin, held.stream);
  }
  const bool outermost = lms::Thread::current().end_scope();
  for (size_t index = 0; index < count; ++index) {
    known_devices[index].pager()->scope_ended(outermost, streams.asked(index) ? streams.of(index) : lms::host_stream);
  }
  // The operation had its data in spite of a store that could take no more: whoever needs room next says so. That a
  // strict limit was passed is still to be reported.
  if (pins.empty() && pending_failure.status.code == LMS_STORE_FAILED && pending_failure.device->notices_writes) {
    pending_failure = PendingFailure();
  }
}

// The observer, and how many ask for it.
at::CallbackHandle observer = 0;
unsigned observing = 0;
std::mutex& observer_lock() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

}  // namespace

namespace lms_torch {

void start_observing() {
  const std::lock_guard<std::mutex> guard(observer_lock());
  if (observing++ == 0) {
    observer = at::addGlobalCallback(at::RecordFunctionCallback(begin_operation, end_operation)
                                         .needsInputs(true)
                                         .needsOutputs(true)
                                         .scopes({at::RecordScope::FUNCTION}));
  }
}

void stop_observing() {
  const std::lock_guard<std::mutex> guard(observer_lock());
  if (--observing == 0) {
    at::removeCallback(observer);
  }
}

}  // namespace lms_torch

namespace {

// ------------------------------------------------------------------------------------------------ operators

// A pin in an operator's result: the device's position, the block, its generation.
constexpr size_t token_parts = 3;

// `current_stream`: only work on the current streams used the tensors since they were pinned; otherwise, on any. An
// operation marks the streams that it knows of when it ends, and this one knows those.
void unpin(c10::IntArrayRef tokens, bool current_stream) {
  TORCH_CHECK(tokens.size() % token_parts == 0, "lms::unpin takes what lms::pin returned");
  CurrentStreams streams;
  for (size_t index = 0; index < tokens.size(); index += token_parts) {
    Held held;
    held.device = static_cast<uint32_t>(tokens[index]);
    TORCH_CHECK(held.device < known_count.load(std::memory_order_acquire), "lms::unpin takes what lms::pin returned");
    held.pin = lms::Pin{reinterpret_cast<lms::Block*>(tokens[index + 1]), static_cast<uint64_t>(tokens[index + 2])};
    held.stream = current_stream ? streams.of(held.device) : lms::any_stream;
    if (current_stream && !operation_pins.empty()) {
      operation_pins.push_back(held);
    } else {
      known_devices[held.device].pager()->unpin(held.pin, held.stream);
    }
  }
}

// Pins the storages of all tensors; the result goes to unpin once. `current_stream`: for what is launched on the
// current streams; otherwise for every stream, so that the contents are there when the call returns.
std::vector<int64_t> pin(at::TensorList tensors, bool write, bool current_stream) {
  std::vector<int64_t> tokens;
  const size_t count = known_count.load(std::memory_order_acquire);
  CurrentStreams streams;
  lms::Status status;
  for (const at::Tensor& tensor : tensors) {
    visit_storages(tensor, [&](const void* address) {
      const KnownDevice* known = find_device(address, count);
      if (known == nullptr || !status.ok()) {
        return;
      }
      const size_t device = position(known);
      lms::Pin pin;
      if (streams.captured(device)) {
        status = known->pager()->hold(address);
      } else {
        status = known->pager()->pin(address, write, &pin, current_stream ? streams.of(device) : lms::host_stream);
      }
      if (pin.block != nullptr) {
        tokens.push_back(static_cast<int64_t>(device));
        tokens.push_back(reinterpret_cast<int64_t>(pin.block));
        tokens.push_back(static_cast<int64_t>(pin.generation));
      }
    });
  }
  if (!status.ok()) {
    unpin(tokens, current_stream);
    lms_torch::throw_status(status);
  }
  return tokens;
}

// The same bytes as `self`, pinned for as long as the result's storage lives: for views that leave PyTorch.
at::Tensor pinned_alias(const at::Tensor& self) {
  const std::vector<int64_t> tokens = pin({self}, /*write=*/true, /*current_stream=*/false);
  if (tokens.empty()) {
    return self;
  }
  const auto drop = [self, tokens](void* /*data*/) { unpin(tokens, /*current_stream=*/false); };
  return at::from_blob(writable_data(self, 0), self.sizes(), self.strides(), drop, self.options(), self.device());
}

TORCH_LIBRARY(lms, library) {
  library.def("pin(Tensor[] tensors, bool write, bool current_stream=False) -> int[]", &pin);
  library.def("unpin(int[] tokens, bool current_stream=False) -> ()", &unpin);
  library.def("pinned_alias(Tensor self) -> Tensor", &pinned_alias);
}

// ------------------------------------------------------------------------------------------------ switching

std::mutex& switching() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

// Above the priority of every allocator that is registered statically; equal priorities replace each other.
constexpr uint8_t allocator_priority = 255;

}  // namespace

lms_status lms_torch_cpu_enable(const lms_options* options, uint64_t min_size) {
  const std::lock_guard<std::mutex> guard(switching());
  lms_pager* handle = lms_torch_cpu_pager();
  const lms_status status = handle == nullptr ? lms_create(options, &handle) : lms_configure(handle, options);
  if (status != LMS_OK) {
    return status;
  }
  auto* pager = reinterpret_cast<lms::Pager*>(handle);
  if (cpu_pager.load() == nullptr) {
    Device device;
    device.pager = pager;
    if (!lms_torch::add_device(device)) {
      return lms_fail(LMS_UNSUPPORTED, "too many devices use LMS");
    }
    cpu_pager.store(pager, std::memory_order_release);
  }
  lms_torch::options_changed();
  cpu_min_size.store(min_size, std::memory_order_relaxed);
  if (!cpu_enabled.exchange(true)) {
    cpu_memory().set_stock(c10::GetCPUAllocator());
    lms_torch::start_observing();
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
  c10::SetAllocator(c10::DeviceType::CPU, cpu_memory().stock(), allocator_priority);
  cpu_enabled.store(false);
  lms_torch::stop_observing();
  lms_shutdown(lms_torch_cpu_pager());
  return LMS_OK;
}

int lms_torch_cpu_enabled(void) { return cpu_enabled.load() ? 1 : 0; }

uint64_t lms_torch_cpu_min_size(void) { return cpu_min_size.load(std::memory_order_relaxed); }

lms_pager* lms_torch_cpu_pager(void) { return reinterpret_cast<lms_pager*>(cpu_pager.load(std::memory_order_acquire)); }

// Large Model Support for tensors: an observer of every operation that keeps the operation's inputs resident, on
// whatever device they are (LmsObserver.h), and for CPU tensors an allocator in front of the stock one (LmsTorch.h).
#include <ATen/LmsObserver.h>
#include <ATen/LmsOperators.h>
#include <ATen/LmsRecordFunction.h>
#include <ATen/LmsTorch.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/lms/override.h>
#include <ATen/lms/pager.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

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

#if __has_include(<ATen/SparseCsrTensorImpl.h>)
#include <ATen/SparseCsrTensorImpl.h>
#endif
#if __has_include(<ATen/NestedTensorImpl.h>)
#include <ATen/NestedTensorImpl.h>
#endif
#if __has_include(<ATen/ops/from_blob.h>)
#include <ATen/ops/from_blob.h>
#elif !LMS_HAS_CALLBACK_OPTIONS
#include <torch/csrc/autograd/generated/variable_factories.h>
#endif

// A build of the framework says itself whether it has collectives; a wheel has them when it has their headers.
#if defined(USE_DISTRIBUTED) || (!defined(CAFFE2_BUILD_MAIN_LIB) && __has_include(<torch/csrc/distributed/c10d/Work.hpp>))
#define LMS_HAS_COLLECTIVES 1
#include <torch/csrc/distributed/c10d/Work.hpp>
#else
#define LMS_HAS_COLLECTIVES 0
#endif

// From some release on; where the headers do not define them they are never used.
namespace c10 {
class OutOfMemoryError;
class ProfiledCPUMemoryReporter;
ProfiledCPUMemoryReporter& profiledCPUMemoryReporter();
}  // namespace c10

namespace {

using lms_torch::Device;
using lms_torch::Operation;

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

template <typename Error>
[[noreturn]] void throw_error(const std::string& sentence, std::true_type /*is defined*/) {
  throw Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, "LMS: " + sentence);
}
template <typename Error>
[[noreturn]] void throw_error(const std::string& sentence, std::false_type /*is defined*/) {
  throw_error<c10::Error>(sentence, std::true_type());
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
    throw_error<c10::OutOfMemoryError>(status.message, lms_torch::IsDefined<c10::OutOfMemoryError>());
  }
  throw_error<c10::Error>(status.message, std::true_type());
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

// What the framework's profiler is told of.
template <typename Reporter>
void report_new(Reporter& (*reporter)(), void* address, size_t bytes, std::true_type /*is defined*/) {
  reporter().New(address, bytes);
}
template <typename Reporter>
void report_new(Reporter& (* /*reporter*/)(), void* /*address*/, size_t /*bytes*/, std::false_type /*is defined*/) {}

template <typename Reporter>
void report_deleted(Reporter& (*reporter)(), void* address, std::true_type /*is defined*/) {
  reporter().Delete(address);
}
template <typename Reporter>
void report_deleted(Reporter& (* /*reporter*/)(), void* /*address*/, std::false_type /*is defined*/) {}

using HasReporter = lms_torch::IsDefined<c10::ProfiledCPUMemoryReporter>;

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
    report_new(&c10::profiledCPUMemoryReporter, address, bytes, HasReporter());
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

using CpuAllocator = lms::Chain<CpuAllocatorBase, lms_override_allocate<c10::Allocator>::Link,
                                lms_override_copy_data<c10::Allocator>::Link>::type;

c10::Allocator& cpu_allocator() {
  static CpuAllocator& allocator = *new CpuAllocator;
  return allocator;
}

void release_block(void* address) {
  lms::Pager* pager = cpu_pager.load(std::memory_order_acquire);
  if (pager->owns(address)) {
    report_deleted(&c10::profiledCPUMemoryReporter, address, HasReporter());
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

// Calls `visit(address)` for every storage that the tensor's data lives in. Reads no data and dispatches nothing.
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
    const void* address = data_address(storage_of(*tensor_impl, 0).unsafeGetStorageImpl(), 0);
    if (address != nullptr) {
      visit(address);
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

// ------------------------------------------------------------------------------------------------ operations

// What its schema or its name says of an operation. Bit i: may write argument i; all bits where there are too many to
// tell.
struct OperationTraits {
  uint64_t written = ~uint64_t{0};
  uint64_t declared = 0;  // the same as far as declared; enough where writes that nobody declared are noticed
  bool ours = false;      // an operator of this file: it pins for itself, and reports its failures
  bool is_operator = true;
};

// Operators of namespace aten that write arguments which their schemas, in some release, do not mark as written:
// running statistics, the reserve of cuDNN's RNNs and weights that it lays out anew, noise, destinations of copies.
constexpr std::array<const char*, 7> undeclared_writes = {"batch_norm", "instance_norm", "rnn",       "lstm",
                                                          "gru",        "rrelu",         "_copy_from"};

OperationTraits read_schema(const c10::FunctionSchema& schema) {
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
  }
  traits.ours = name.compare(0, 5, "lms::") == 0;
  return traits;
}

// By convention an operator whose name ends in an underscore writes its first argument, and one that ends in _out some
// of the others.
OperationTraits read_name(const std::string& name) {
  OperationTraits traits;
  const std::string out = "_out";
  if (name.size() > 1 && name.back() == '_') {
    traits.declared = 1;
  } else if (name.size() > out.size() && name.compare(name.size() - out.size(), out.size(), out) == 0) {
    traits.declared = ~uint64_t{0};
  }
  traits.ours = name.compare(0, 5, "lms::") == 0;
  traits.is_operator = lms_torch::only_operations_are_shown || lms_torch::names_an_operator(name);
  return traits;
}

const OperationTraits& traits_by_schema(const Operation& operation) {
  static const OperationTraits without_schema;
  // Asking for the schema copies it. The name lies inside the schema, so that its address stands for it.
  thread_local std::unordered_map<const char*, OperationTraits> known;
  const char* name = lms_torch::operation_name(operation);
  const auto found = known.find(name);
  if (found != known.end()) {
    return found->second;
  }
  const auto schema = lms_torch::operation_schema(operation);
  return schema ? known.emplace(name, read_schema(*schema)).first->second : without_schema;
}

const OperationTraits& traits_by_name(const Operation& operation) {
  thread_local std::unordered_map<std::string, OperationTraits> known;
  const std::string name = lms_torch::operation_name(operation);
  const auto found = known.find(name);
  return found != known.end() ? found->second : known.emplace(name, read_name(name)).first->second;
}

const OperationTraits& operation_traits(const Operation& operation) {
  return lms_torch::operations_show_schemas ? traits_by_schema(operation) : traits_by_name(operation);
}

// A pin of an operation that is running on this thread.
struct Held {
  lms::Pin pin;
  uint32_t device = 0;  // its position among the known ones
  lms::StreamId stream = lms::host_stream;
  bool scope = false;
};

// Those of all operations, innermost last. An empty pin begins each operation's; its `device` is the number of devices
// that were known then, 0 for what is not observed, and `scope` says that what it allocates is protected until it ends.
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
void keep_for_collective(const Operation& operation, std::vector<Held>* pins, std::vector<Held>::iterator first) {
  if (first == pins->end()) {
    return;
  }
  for (const c10::IValue& output : lms_torch::operation_outputs(operation)) {
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

// How many ask for the observer. Where it cannot be taken away it does nothing while nobody asks.
std::atomic<unsigned> observing{0};

void begin_operation(const Operation& operation) {
  std::vector<Held>& pins = operation_pins;  // to reach a thread's own costs something
  if (!lms_torch::observer_can_leave && observing.load(std::memory_order_acquire) == 0) {
    pins.emplace_back();
    return;
  }
  const auto& inputs = operation.inputs();
  const OperationTraits& traits = operation_traits(operation);
  if (!traits.is_operator && inputs.empty()) {  // a part of the program that it gave a name
    pins.emplace_back();
    return;
  }
#if LMS_HAS_COLLECTIVES
  running_collectives().release_done();
#endif
  const size_t count = known_count.load(std::memory_order_acquire);
  Held begin;
  begin.device = static_cast<uint32_t>(count);
  // A node of the backward pass makes operations, and may be as much as all of it: a script is one operation.
  begin.scope = traits.is_operator || !lms_torch::is_backward_node(operation);
  pins.push_back(begin);
  if (begin.scope) {
    lms::Thread::current().begin_scope();
    for (size_t index = 0; index < count; ++index) {
      known_devices[index].pager()->scope_began();
    }
  }
  CurrentStreams streams;
  bool lacks_data = false;
  const auto hold = [&](const void* address, bool noticed_write, bool other_write) {
    const KnownDevice* known = find_device(address, count);
    if (known == nullptr) {
      return;
    }
    Held held;
    held.device = static_cast<uint32_t>(position(known));
    held.stream = streams.of(held.device);
    const bool write = known->notices_writes ? noticed_write : other_write;
    lms::Status status = streams.captured(held.device) ? known->pager()->hold(address)
                                                       : known->pager()->pin(address, write, &held.pin, held.stream);
    if (!status.ok()) {
      lacks_data |= !known->notices_writes;
      keep_failure(known, std::move(status));
    } else if (held.pin.block != nullptr) {
      pins.push_back(held);
    }
  };
  for (size_t index = 0; index < inputs.size() && !traits.ours; ++index) {
    const size_t bit = std::min<size_t>(index, 63);
    const auto hold_input = [&](const void* address) {
      hold(address, (traits.declared >> bit & 1) != 0, (traits.written >> bit & 1) != 0);
    };
    visit_storages(inputs[index], hold_input, 0);
  }
  if (!begin.scope) {
    visit_storages(lms_torch::accumulated_gradient(operation),
                   [&](const void* address) { hold(address, /*noticed_write=*/true, /*other_write=*/true); });
  }
  if (lacks_data) {
    // The device is going to report an illegal access. PyTorch logs what is thrown here, with the operation's name.
    throw std::runtime_error("LMS: " + pending_failure.status.message);
  }
}

void end_operation(const Operation& operation) {
  std::vector<Held>& pins = operation_pins;
  const auto first =
      std::find_if(pins.rbegin(), pins.rend(), [](const Held& held) { return held.pin.block == nullptr; }).base();
  if (first == pins.begin()) {
    return;  // the observer was put in place while the operation ran
  }
  const size_t count = (first - 1)->device;
  const bool scope = (first - 1)->scope;
  if (count == 0) {
    pins.pop_back();
    return;
  }
  CurrentStreams streams;
  for (auto held = first; held != pins.end(); ++held) {
    streams.set(held->device, held->stream);
  }
  const auto mark_seen = [&](const void* address) {
    if (const KnownDevice* known = find_device(address, count)) {
      known->pager()->mark_seen(address, streams.of(position(known)));
    }
  };
  for (const c10::IValue& output : lms_torch::operation_outputs(operation)) {
    visit_storages(output, mark_seen, 0);
  }
  if (!scope) {
    visit_storages(lms_torch::accumulated_gradient(operation), mark_seen);
  }
#if LMS_HAS_COLLECTIVES
  keep_for_collective(operation, &pins, first);
#endif
  while (true) {
    const Held held = pins.back();
    pins.pop_back();
    if (held.pin.block == nullptr) {
      break;
    }
    known_devices[held.device].pager()->unpin(held.pin, held.stream);
  }
  if (scope) {
    const bool outermost = lms::Thread::current().end_scope();
    for (size_t index = 0; index < count; ++index) {
      known_devices[index].pager()->scope_ended(outermost, streams.asked(index) ? streams.of(index) : lms::host_stream);
    }
  }
  // The operation had its data in spite of a store that could take no more: whoever needs room next says so. That a
  // strict limit was passed is still to be reported.
  if (pins.empty() && pending_failure.status.code == LMS_STORE_FAILED && pending_failure.device->notices_writes) {
    pending_failure = PendingFailure();
  }
}

lms_torch::ObserverHandle observer = 0;
bool observer_in_place = false;
std::mutex& observer_lock() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

}  // namespace

namespace lms_torch {

lms_status start_observing() {
  const std::lock_guard<std::mutex> guard(observer_lock());
  if (!observer_in_place) {
    const char* obstacle = observer_obstacle();
    if (obstacle != nullptr) {
      return lms_fail(LMS_UNSUPPORTED, obstacle);
    }
    observer = put_observer_in_place<begin_operation, end_operation>();
    observer_in_place = true;
  }
  observing.fetch_add(1);
  return LMS_OK;
}

void stop_observing() {
  const std::lock_guard<std::mutex> guard(observer_lock());
  if (observing.fetch_sub(1) == 1 && observer_can_leave) {
    take_observer_away(observer);
    observer_in_place = false;
  }
}

}  // namespace lms_torch

namespace {

// ------------------------------------------------------------------------------------------------ operators

// A pin in an operator's result: the device's position, the block, its generation.
constexpr size_t token_parts = 3;

void check_tokens(bool correct) {
  if (!correct) {
    throw_error<c10::Error>("lms::unpin takes what lms::pin returned", std::true_type());
  }
}

// `current_stream`: only work on the current streams used the tensors since they were pinned; otherwise, on any. An
// operation marks the streams that it knows of when it ends, and this one knows those.
void unpin(c10::IntArrayRef tokens, bool current_stream) {
  check_tokens(tokens.size() % token_parts == 0);
  CurrentStreams streams;
  for (size_t index = 0; index < tokens.size(); index += token_parts) {
    Held held;
    held.device = static_cast<uint32_t>(tokens[index]);
    check_tokens(held.device < known_count.load(std::memory_order_acquire));
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
    const auto visit = [&](const void* address) {
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
    };
    visit_storages(tensor, visit);
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
#if LMS_HAS_CALLBACK_OPTIONS
  return at::from_blob(writable_data(self, 0), self.sizes(), self.strides(), drop, self.options(), self.device());
#else
  return torch::from_blob(self.data_ptr(), self.sizes(), self.strides(), drop, self.options());  // a variable
#endif
}

std::vector<int64_t> pin_operator(lms_torch::TensorsArgument tensors, bool write, bool current_stream) {
  return pin(tensors, write, current_stream);
}

// Returns how many pins there were.
int64_t unpin_operator(lms_torch::NumbersArgument tokens, bool current_stream) {
  unpin(tokens, current_stream);
  return static_cast<int64_t>(tokens.size() / token_parts);
}

LMS_OPERATORS(library) {
  library.def("pin(Tensor[] tensors, bool write, bool current_stream=False) -> int[]", &pin_operator);
  library.def("unpin(int[] tokens, bool current_stream=False) -> int", &unpin_operator);
  library.def("pinned_alias(Tensor self) -> Tensor", &pinned_alias);
}

// ------------------------------------------------------------------------------------------------ switching

std::mutex& switching() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

// Above the priority of every allocator that is registered statically; equal priorities replace each other.
constexpr uint8_t allocator_priority = 255;

// Before 1.6 there are no priorities.
template <typename... Priority>
void set_allocator(void (*set)(c10::DeviceType, c10::Allocator*, Priority...), c10::Allocator* allocator) {
  set(c10::DeviceType::CPU, allocator, Priority{allocator_priority}...);
}

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
  if (!cpu_enabled.load()) {
    const lms_status observed = lms_torch::start_observing();
    if (observed != LMS_OK) {
      return observed;
    }
    // Stays there from now on: libraries give the memory that they took back to whichever allocator is in place then.
    if (cpu_memory().stock() == nullptr) {
      cpu_memory().set_stock(c10::GetCPUAllocator());
      set_allocator(&c10::SetAllocator, &cpu_allocator());
    }
    cpu_enabled.store(true);
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
  cpu_enabled.store(false);
  lms_torch::stop_observing();
  lms_shutdown(lms_torch_cpu_pager());
  return LMS_OK;
}

int lms_torch_cpu_enabled(void) { return cpu_enabled.load() ? 1 : 0; }

uint64_t lms_torch_cpu_min_size(void) { return cpu_min_size.load(std::memory_order_relaxed); }

lms_pager* lms_torch_cpu_pager(void) { return reinterpret_cast<lms_pager*>(cpu_pager.load(std::memory_order_acquire)); }

int lms_torch_observes_all(void) { return lms_torch::only_operations_are_shown ? 1 : 0; }

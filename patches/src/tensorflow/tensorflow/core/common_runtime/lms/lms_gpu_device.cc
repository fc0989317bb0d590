// GPU devices with LMS: what the stock ones are, with an allocator that is a decorator (lms_allocator.h), operations
// that keep what they use resident (lms_operation.h), and copies that do so until they are over (lms_gpu_copy.h). Their
// factory takes the stock one's place when LMS is first asked for on GPUs; once it is disabled they do what stock
// devices do. Only for builds with CUDA.
#if defined(GOOGLE_CUDA) && GOOGLE_CUDA  // else the header of GPU devices is none

#include "tensorflow/core/public/version.h"

// 2.19's stream executor includes a header of LLVM that no wheel has, for the descriptors of Hopper's tensor copies.
// Nothing here makes or takes one, so that they are declared is enough.
#if defined(TF_MINOR_VERSION) && TF_MINOR_VERSION == 19 && !__has_include("llvm/ADT/ArrayRef.h")
#define XLA_STREAM_EXECUTOR_GPU_TMA_METADATA_H_
namespace stream_executor {
namespace gpu {
class TmaDescriptor {};
struct TmaMetadata {};
}  // namespace gpu
}  // namespace stream_executor
#endif

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "tensorflow/core/common_runtime/copy_tensor.h"
#include "tensorflow/core/common_runtime/gpu/gpu_device.h"
#include "tensorflow/core/common_runtime/gpu/gpu_process_state.h"
#include "tensorflow/core/common_runtime/gpu/gpu_util.h"
#include "tensorflow/core/common_runtime/gpu_device_context.h"
#include "tensorflow/core/common_runtime/lms/lms_allocator.h"
#include "tensorflow/core/common_runtime/lms/lms_gpu.h"
#include "tensorflow/core/common_runtime/lms/lms_gpu_copy.h"
#include "tensorflow/core/common_runtime/lms/lms_operation.h"
#include "tensorflow/core/common_runtime/lms/lms_pagers.h"
#include "tensorflow/core/common_runtime/lms/lms_request.h"
#include "tensorflow/core/common_runtime/lms/lms_status.h"
#include "tensorflow/core/common_runtime/lms/lms_tensorflow.h"
#include "tensorflow/core/common_runtime/lms/pager/imports.h"
#include "tensorflow/core/common_runtime/lms/pager/kept_options.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/public/session_options.h"

namespace lms_tensorflow {
namespace {

using tensorflow::Allocator;
using tensorflow::AllocatorAttributes;
using tensorflow::AsyncOpKernel;
using tensorflow::BaseGPUDevice;
using tensorflow::CopyTensor;
using tensorflow::Device;
using tensorflow::DeviceContext;
using tensorflow::DeviceFactory;
using tensorflow::GPUDeviceContext;
using tensorflow::GPUOptions;
using tensorflow::GPUProcessState;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::SessionOptions;
using tensorflow::StatusCallback;
using tensorflow::Tensor;

lms::Status last_failure(lms_status status) {
  return status == LMS_OK ? lms::Status() : lms::Status(status, lms_last_error());
}

// ------------------------------------------------------------------------------------------------ releases

// Where releases differ, what this one has is taken: the overload with `int` if it compiles, the one with `long` else.

// How many bytes, as an executor counts them: before 2.5 in another type of 64 bits.
template <typename Executor, typename Integer>
Integer integer_of(bool (Executor::*)(Integer*, Integer*) const);
using DeviceBytes = decltype(integer_of(&stream_executor::StreamExecutor::DeviceMemoryUsage));

// The number of a device, whose type has had three names.
template <typename State, typename Number>
Number number_of_device(int (State::*)(Number));
using DeviceNumber = decltype(number_of_device(&GPUProcessState::BusIdForGPU));

// What kernels are told of a device: a GPU's before 2.9.
template <typename Base>
auto info_of(const Base& device, int /*preferred*/) -> decltype(*device.tensorflow_accelerator_device_info()) {
  return *device.tensorflow_accelerator_device_info();
}
template <typename Base>
auto info_of(const Base& device, long /*otherwise*/) -> decltype(*device.tensorflow_gpu_device_info()) {
  return *device.tensorflow_gpu_device_info();
}
using DeviceInfo = std::decay_t<decltype(info_of(std::declval<const Device&>(), 0))>;

template <typename Base>
auto set_info(Base* device, DeviceInfo* info, int /*preferred*/)
    -> decltype(device->set_tensorflow_accelerator_device_info(info)) {
  device->set_tensorflow_accelerator_device_info(info);
}
template <typename Base>
auto set_info(Base* device, DeviceInfo* info, long /*otherwise*/)
    -> decltype(device->set_tensorflow_gpu_device_info(info)) {
  device->set_tensorflow_gpu_device_info(info);
}

// Until 2.11 the first session's options are those of the host memory.
template <typename State>
auto host_allocator_of(State* state, const GPUOptions& options, int numa_node, int /*preferred*/)
    -> decltype(state->GetGpuHostAllocator(options, numa_node)) {
  return state->GetGpuHostAllocator(options, numa_node);
}
template <typename State>
auto host_allocator_of(State* state, const GPUOptions& /*options*/, int numa_node, long /*otherwise*/)
    -> decltype(state->GetGpuHostAllocator(numa_node)) {
  return state->GetGpuHostAllocator(numa_node);
}

// The bytes that an allocator has taken from the device, now and at most. BFC's are in pool_bytes, the asynchronous
// allocator's in the others. Until 2.11 BFC does not say them: then they are at least what it has given away.
struct Reserved {
  std::int64_t now;
  std::int64_t peak;
};
template <typename Stats>
auto reserved_in(const Stats& stats, int /*preferred*/) -> decltype(stats.pool_bytes, Reserved()) {
  return {stats.pool_bytes.value_or(stats.bytes_reserved), stats.peak_pool_bytes.value_or(stats.peak_bytes_reserved)};
}
template <typename Stats>
Reserved reserved_in(const Stats& stats, long /*otherwise*/) {
  return {std::max<std::int64_t>(stats.bytes_reserved, stats.bytes_in_use),
          std::max<std::int64_t>(stats.peak_bytes_reserved, stats.peak_bytes_in_use)};
}

// ------------------------------------------------------------------------------------------------ streams

// The cudaStream_t of a stream. Until 2.14 the executor shows where it keeps it.
template <typename Stream>
auto handle_of(Stream* stream, int /*preferred*/) -> decltype(stream->platform_specific_handle().stream) {
  return stream->platform_specific_handle().stream;
}
template <typename Stream>
void* handle_of(Stream* stream, long /*otherwise*/) {
  return *stream->implementation()->GpuStreamMemberHack();
}

// TensorFlow's streams live as long as its devices.
lms::StreamId number_of(lms::Pager* pager, stream_executor::Stream* stream) {
  return pager == nullptr ? lms::host_stream
                          : pager->backend().stream(reinterpret_cast<std::uintptr_t>(handle_of(stream, 0)),
                                                    /*lasting=*/true);
}

// ------------------------------------------------------------------------------------------------ GPUs

// A stream on which operations run. Each has an allocator, whose memory is for work on it.
struct ComputeStream {
  stream_executor::Stream* stream = nullptr;
  Allocator* stock = nullptr;
  Memory memory;
};

// What enables a GPU.
struct Settings {
  lms::KeptOptions options;
  std::uint64_t min_size = 0;
};

constexpr std::uint64_t what_is_free = UINT64_MAX;  // a limit
constexpr std::uint64_t least_by_default = 1 << 20;  // bytes of a tensor that is paged

struct Gpu {
  std::atomic<lms::Pager*> pager{nullptr};
  std::atomic<std::uint64_t> min_size{0};
  std::atomic<bool> enabled{false};
  // What follows is guarded by switching().
  stream_executor::StreamExecutor* executor = nullptr;  // null until there is a device on it
  bool grows = false;  // its stock allocator leaves free memory on the device
  int numa_node = 0;
  bool requested = false;  // was enabled as the program requested, and follows that
  std::unique_ptr<Settings> later;  // what to enable it with when it gets a device
  std::vector<std::unique_ptr<ComputeStream>> streams;
};

constexpr int most_gpus = 64;

// By CUDA's number. Never destroyed, since tensors refer to their memory until the process ends.
std::array<Gpu, most_gpus>& gpus() {
  static auto& all = *new std::array<Gpu, most_gpus>;
  return all;
}

Gpu* gpu_at(int index) { return index >= 0 && index < most_gpus ? &gpus()[static_cast<std::size_t>(index)] : nullptr; }

std::mutex& switching() {
  static std::mutex& lock = *new std::mutex;
  return lock;
}

// What follows needs switching().

void begin_stream(const Gpu& gpu, ComputeStream* compute) {
  lms::Pager* pager = gpu.pager.load();
  if (pager == nullptr) {
    return;
  }
  Memory& memory = compute->memory;
  memory.min_size.store(gpu.min_size.load(), std::memory_order_relaxed);
  if (memory.pager.load() == nullptr) {
    memory.stream = number_of(pager, compute->stream);
    memory.pager.store(pager, std::memory_order_release);
  }
  memory.enabled.store(gpu.enabled.load(), std::memory_order_release);
}

// GPUs that can reach each other use each other's blocks: copies and collectives do. Where they cannot, none does.
void connect() {
  for (int to = 0; to < most_gpus; ++to) {
    lms::Pager* pager = gpu_at(to)->pager.load();
    for (int from = 0; from < most_gpus && pager != nullptr; ++from) {
      if (from != to && gpu_at(from)->executor != nullptr) {
        static_cast<void>(pager->backend().add_peer(from));
      }
    }
  }
}

lms_status enable(int index, lms_options options, std::uint64_t min_size) {
  Gpu& gpu = *gpu_at(index);
  auto* handle = reinterpret_cast<lms_pager*>(gpu.pager.load());
  const bool first = handle == nullptr;
  if (first && !gpu.grows) {
    return lms_fail(LMS_UNSUPPORTED,
                    "TensorFlow has taken all of the GPU's memory already: enable LMS before the first operation, or "
                    "let the memory grow (tf.config.experimental.set_memory_growth, and no "
                    "TF_FORCE_GPU_ALLOW_GROWTH=false in the environment)");
  }
  if (options.limit == what_is_free && options.share == nullptr) {
    DeviceBytes free = 0;
    DeviceBytes total = 0;
    if (!gpu.executor->DeviceMemoryUsage(&free, &total)) {
      return lms_fail(LMS_DEVICE_FAILED, "the GPU does not say how much of its memory is free");
    }
    const std::uint64_t held = first ? 0 : gpu.pager.load()->statistics().device_bytes;
    options.limit = (static_cast<std::uint64_t>(free) + held) / 100 * 95;
  }
  const lms_status status = first ? lms_create_cuda(&options, index, &handle) : lms_configure(handle, &options);
  if (status != LMS_OK) {
    return status;
  }
  if (first) {
    auto* pager = reinterpret_cast<lms::Pager*>(handle);
    if (!add_pager(pager)) {
      lms_shutdown(handle);
      return lms_fail(LMS_UNSUPPORTED, "too many devices use LMS");
    }
    gpu.pager.store(pager, std::memory_order_release);
    connect();
  }
  gpu.min_size.store(min_size);
  gpu.enabled.store(true);
  for (const auto& compute : gpu.streams) {
    begin_stream(gpu, compute.get());
  }
  return LMS_OK;
}

lms_status disable(int index) {
  Gpu& gpu = *gpu_at(index);
  gpu.later.reset();
  if (!gpu.enabled.load()) {
    return LMS_OK;
  }
  auto* handle = reinterpret_cast<lms_pager*>(gpu.pager.load());
  const lms_status status = lms_restore_all(handle);
  if (status == LMS_OUT_OF_MEMORY) {
    const std::string reason = lms_last_error();
    return lms_fail(status, ("LMS stays enabled, since what is paged out does not fit on the GPU as well; free tensors "
                             "first. " +
                             reason)
                                .c_str());
  }
  if (status != LMS_OK) {
    return status;
  }
  gpu.enabled.store(false);
  gpu.requested = false;
  for (const auto& compute : gpu.streams) {
    compute->memory.enabled.store(false);
  }
  lms_shutdown(handle);
  return LMS_OK;
}

lms::Status enable_as_requested(int index) {
  Gpu& gpu = *gpu_at(index);
  lms_options options = {};
  options.struct_size = sizeof(options);
  limit_as_requested(requested_limit() != 0 ? requested_limit() : what_is_free, &options);
  const lms_status status = enable(index, options, least_by_default);
  gpu.requested = gpu.requested || status == LMS_OK;
  return last_failure(status);
}

// ------------------------------------------------------------------------------------------------ copies

// The end of a copy: what it held goes first, then its caller is told.
StatusCallback ended(std::shared_ptr<PinnedCopy> copy, StatusCallback done) {
  return [copy = std::move(copy), done = std::move(done)](const TensorflowStatus& status) mutable {
    copy.reset();
    done(status);
  };
}

// A device's streams, and the copies that the rest of TensorFlow makes on them.
class GpuContext final : public GPUDeviceContext {
 public:
  // `more` is what releases since 2.9 have besides.
  template <typename... More>
  GpuContext(const GPUDeviceContext& stock, const Gpu* gpu, More... more)
      : GPUDeviceContext(stock.stream_id(), stock.stream(), stock.host_to_device_stream(),
                         stock.device_to_host_stream(), between_devices(stock), more...),
        gpu_(gpu) {}

  lms::Pager* pager() const { return gpu_->pager.load(std::memory_order_acquire); }

  void CopyCPUTensorToDevice(const Tensor* from, Device* device, Tensor* to, StatusCallback done,
                             bool after_operations) const override {
    auto copy = begin(host_to_device_stream(), /*enqueued=*/false, *from, *to);
    if (!copy.second.ok()) {
      done(copy.second);
      return;
    }
    // A block may have been another tensor's, of which the operation that used it last is still to run.
    const bool used_before = pager() != nullptr;
    GPUDeviceContext::CopyCPUTensorToDevice(from, device, to, ended(std::move(copy.first), std::move(done)),
                                            after_operations || used_before);
  }

  void CopyDeviceTensorToCPU(const Tensor* from, absl::string_view edge, Device* device, Tensor* to,
                             StatusCallback done) override {
    auto copy = begin(device_to_host_stream(), /*enqueued=*/false, *from, *to);
    if (!copy.second.ok()) {
      done(copy.second);
      return;
    }
    GPUDeviceContext::CopyDeviceTensorToCPU(from, edge, device, to, ended(std::move(copy.first), std::move(done)));
  }

  // Is done as soon as it is enqueued.
  void CopyTensorInSameDevice(const Tensor* from, Device* device, Tensor* to, StatusCallback done) const override {
    auto copy = begin(stream(), /*enqueued=*/true, *from, *to);
    if (!copy.second.ok()) {
      done(copy.second);
      return;
    }
    GPUDeviceContext::CopyTensorInSameDevice(from, device, to, ended(std::move(copy.first), std::move(done)));
  }

  // The tensors of a copy that is going to run on the stream, held, or why they cannot be.
  std::pair<std::shared_ptr<PinnedCopy>, TensorflowStatus> begin(stream_executor::Stream* stream, bool enqueued,
                                                                 const Tensor& from, const Tensor& to) const {
    auto copy = std::make_shared<PinnedCopy>(pager(), number_of(pager(), stream), enqueued);
    lms::Status status = copy->hold(from, /*write=*/false);
    if (status.ok()) {
      status = copy->hold(to, /*write=*/true);
    }
    return {std::move(copy), status.ok() ? TensorflowStatus() : to_tensorflow(status)};
  }

 private:
  // The stock context gives its streams by number, beginning again after the last. There are at most four.
  static absl::InlinedVector<stream_executor::Stream*, 4> between_devices(const GPUDeviceContext& stock) {
    absl::InlinedVector<stream_executor::Stream*, 4> streams;
    do {
      streams.push_back(stock.device_to_device_stream(static_cast<int>(streams.size())));
    } while (streams.size() < 4 && stock.device_to_device_stream(static_cast<int>(streams.size())) != streams.front());
    return streams;
  }

  const Gpu* gpu_;
};

template <typename Stock>
auto context_like(const Stock& stock, const Gpu* gpu, int /*preferred*/)
    -> decltype(stock.host_memory_allocator(), static_cast<GpuContext*>(nullptr)) {
  return new GpuContext(stock, gpu, stock.host_memory_allocator());
}
template <typename Stock>
GpuContext* context_like(const Stock& stock, const Gpu* gpu, long /*otherwise*/) {
  return new GpuContext(stock, gpu);
}

// Keeps the tensors of a copy between two devices, which may be on the same GPU, until it is done. False: they cannot
// be had, and that is done.
bool hold_between_devices(const DeviceContext* from_context, const Tensor& from, const Tensor& to, int stream_number,
                          StatusCallback* done) {
  if (!any_pager()) {
    return true;
  }
  // Devices of this type are all made by the factory below.
  const auto* context = static_cast<const GpuContext*>(from_context);
  auto copy = context->begin(context->device_to_device_stream(stream_number), /*enqueued=*/false, from, to);
  if (!copy.second.ok()) {
    (*done)(copy.second);
    return false;
  }
  *done = ended(std::move(copy.first), std::move(*done));
  return true;
}

void copy_between_devices(DeviceContext* from_context, DeviceContext* to_context, Device* from_device,
                          Device* to_device, AllocatorAttributes from_attributes, AllocatorAttributes to_attributes,
                          const Tensor* from, Tensor* to, int stream_number, StatusCallback done) {
  if (hold_between_devices(from_context, *from, *to, stream_number, &done)) {
    tensorflow::GPUUtil::DeviceToDeviceCopy(from_context, to_context, from_device, to_device, from_attributes,
                                            to_attributes, from, to, stream_number, std::move(done));
  }
}

// TensorFlow copies between GPUs with the first function that was registered for it: the stock one. But for a type of
// device that is said to be pluggable it takes the first that was registered for pluggable ones: this one, once our
// factory is in place. That is all that the word changes for the type GPU.
template <typename Copies>
auto register_copy(int /*preferred*/)
    -> decltype(Copies::Register(tensorflow::DEVICE_GPU, tensorflow::DEVICE_GPU, &copy_between_devices, true).ok()) {
  return Copies::Register(tensorflow::DEVICE_GPU, tensorflow::DEVICE_GPU, &copy_between_devices,
                          /*is_pluggable_device=*/true)
      .ok();
}
template <typename Copies>
bool register_copy(long /*otherwise*/) {
  return true;  // see watch_copies()
}

// Before 2.5 no device is pluggable. There the function that makes every copy between devices is replaced.
std::atomic<void*> stock_copy{nullptr};

bool is_on_gpu(const Device& device, AllocatorAttributes attributes) {
  return !attributes.on_host() && device.device_type() == tensorflow::DEVICE_GPU;
}

void watched_copy(absl::string_view edge, DeviceContext* from_context, DeviceContext* to_context, Device* from_device,
                  Device* to_device, AllocatorAttributes from_attributes, AllocatorAttributes to_attributes,
                  const Tensor* from, Tensor* to, int stream_number, StatusCallback done, bool sync_target) {
  if (is_on_gpu(*from_device, from_attributes) && is_on_gpu(*to_device, to_attributes) &&
      !hold_between_devices(from_context, *from, *to, stream_number, &done)) {
    return;
  }
  reinterpret_cast<decltype(&watched_copy)>(stock_copy.load())(edge, from_context, to_context, from_device, to_device,
                                                               from_attributes, to_attributes, from, to, stream_number,
                                                               std::move(done), sync_target);
}

template <typename Copies>
auto watch_copies(int /*preferred*/)
    -> decltype(Copies::Register(tensorflow::DEVICE_GPU, tensorflow::DEVICE_GPU, &copy_between_devices, true),
                lms::Status()) {
  return {};
}
template <typename Copies>
lms::Status watch_copies(long /*otherwise*/) {
  static_assert(std::is_same<decltype(&Copies::ViaDMA), decltype(&watched_copy)>::value, "as it is called");
  Dl_info found = {};
  if (dladdr(reinterpret_cast<void*>(&Copies::ViaDMA), &found) == 0 || found.dli_sname == nullptr) {
    return lms::Status(LMS_UNSUPPORTED, "TensorFlow does not export the function that copies between GPUs");
  }
  const lms::imports::Replacement replacement = {found.dli_sname, reinterpret_cast<void*>(&watched_copy), &stock_copy};
  return lms::imports::redirect(&replacement, 1);
}

// ------------------------------------------------------------------------------------------------ devices

class GpuDevice final : public BaseGPUDevice {
 public:
  template <typename... Arguments>
  GpuDevice(const SessionOptions& options, Arguments&&... arguments)
      : BaseGPUDevice(options, std::forward<Arguments>(arguments)..., /*sync_every_op=*/false),
        options_(options.config.gpu_options()) {}

  ~GpuDevice() override {
    if (context_ != nullptr) {
      context_->Unref();
    }
  }

  // Called once, after Init(), with switching() held. `grows`: what its stock allocator does.
  void begin(bool grows) {
    gpu_ = gpu_at(gpu_id());
    if (gpu_->executor == nullptr) {
      gpu_->grows = grows;  // the allocator stays for as long as the process
    }
    gpu_->executor = executor();
    gpu_->numa_node = attributes().locality().numa_node();
    info_ = info_of(static_cast<const Device&>(*this), 0);
    compute_ = find_or_add(gpu_, info_.stream);
    compute_->stock = gpu_allocator_;
    begin_stream(*gpu_, compute_);
    context_ = context_like(*static_cast<const GPUDeviceContext*>(info_.default_context), gpu_, 0);
    info_.default_context = context_;
    set_info(static_cast<Device*>(this), &info_, 0);
  }

  Allocator* GetAllocator(AllocatorAttributes attributes) override {
    if (!attributes.on_host()) {
      return compute_ != nullptr && compute_->memory.pager.load(std::memory_order_acquire) != nullptr
                 ? decorated(gpu_allocator_, &compute_->memory)
                 : gpu_allocator_;
    }
    if (attributes.gpu_compatible() || options_.force_gpu_compatible()) {
      return gpu_host_allocator(options_, 0);
    }
    return cpu_allocator_;
  }

  void Compute(OpKernel* kernel, OpKernelContext* context) override {
    if (!any_pager()) {
      BaseGPUDevice::Compute(kernel, context);
      return;
    }
    lms::Pager* pager = compute_->memory.pager.load(std::memory_order_acquire);
    Operation operation(kernel, context, pager, pager != nullptr ? compute_->memory.stream : lms::host_stream);
    if (context->status().ok()) {
      BaseGPUDevice::Compute(kernel, context);
    }
    operation.finish(context);
    operation.leave();
  }

  void ComputeAsync(AsyncOpKernel* kernel, OpKernelContext* context, AsyncOpKernel::DoneCallback done) override {
    if (!any_pager()) {
      BaseGPUDevice::ComputeAsync(kernel, context, std::move(done));
      return;
    }
    lms::Pager* pager = compute_->memory.pager.load(std::memory_order_acquire);
    auto operation = std::make_shared<Operation>(kernel, context, pager,
                                                 pager != nullptr ? compute_->memory.stream : lms::host_stream);
    if (!context->status().ok()) {
      operation->finish(context);
      operation->leave();
      done();
      return;
    }
    // The context may be gone as soon as done() is called, which may be before ComputeAsync returns.
    BaseGPUDevice::ComputeAsync(kernel, context, [operation, context, done = std::move(done)] {
      operation->finish(context);
      done();
    });
    operation->leave();
  }

  void CopyTensorInSameDevice(const Tensor* from, Tensor* to, const DeviceContext* /*context*/,
                              StatusCallback done) override {
    context_->CopyTensorInSameDevice(from, this, to, std::move(done));
  }

  Gpu* gpu() const { return gpu_; }

 private:
  static ComputeStream* find_or_add(Gpu* gpu, stream_executor::Stream* stream) {
    for (const auto& compute : gpu->streams) {
      if (compute->stream == stream) {
        return compute.get();
      }
    }
    gpu->streams.push_back(std::make_unique<ComputeStream>());
    gpu->streams.back()->stream = stream;
    return gpu->streams.back().get();
  }

  const GPUOptions options_;
  Gpu* gpu_ = nullptr;
  ComputeStream* compute_ = nullptr;
  GpuContext* context_ = nullptr;
  DeviceInfo info_;
};

// The environment counts more than the options.
bool stock_allocator_grows(const GPUOptions& options) {
  const char* forced = std::getenv("TF_FORCE_GPU_ALLOW_GROWTH");
  if (forced != nullptr && (std::strcmp(forced, "false") == 0 || std::strcmp(forced, "true") == 0)) {
    return std::strcmp(forced, "true") == 0;
  }
  return options.allow_growth();
}

class GpuDeviceFactory final : public tensorflow::BaseGPUDeviceFactory {
 public:
  TensorflowStatus CreateDevices(const SessionOptions& options, const std::string& prefix,
                                 std::vector<std::unique_ptr<Device>>* devices) override {
    bool enabled = false;
    const lms::Status status = wanted(options.config, &enabled);
    if (!status.ok()) {
      return to_tensorflow(status);
    }
    SessionOptions own = options;
    if (enabled || any_later()) {
      // The stock allocator would take all memory, and blocks live outside of it.
      own.config.mutable_gpu_options()->set_allow_growth(true);
    }
    const std::size_t first = devices->size();
    TensorflowStatus created = BaseGPUDeviceFactory::CreateDevices(own, prefix, devices);
    if (created.ok()) {
      created = begin(*devices, first, stock_allocator_grows(own.config.gpu_options()), enabled);
      if (!created.ok()) {
        devices->resize(first);
      }
    }
    return created;
  }

 private:
  std::unique_ptr<BaseGPUDevice> CreateGPUDevice(const SessionOptions& options, const std::string& name,
                                                 tensorflow::Bytes memory, const tensorflow::DeviceLocality& locality,
                                                 DeviceNumber number, const std::string& description,
                                                 Allocator* gpu_allocator, Allocator* cpu_allocator) override {
    return std::make_unique<GpuDevice>(options, name, memory, locality, number, description, gpu_allocator,
                                       cpu_allocator);
  }

  static bool any_later() {
    const std::lock_guard<std::mutex> guard(switching());
    for (const Gpu& gpu : gpus()) {
      if (gpu.later != nullptr) {
        return true;
      }
    }
    return false;
  }

  static TensorflowStatus begin(const std::vector<std::unique_ptr<Device>>& devices, std::size_t first, bool grows,
                                bool enabled) {
    const std::lock_guard<std::mutex> guard(switching());
    for (std::size_t index = first; index < devices.size(); ++index) {
      static_cast<GpuDevice*>(devices[index].get())->begin(grows);
    }
    connect();
    for (std::size_t index = first; index < devices.size(); ++index) {
      const auto& device = static_cast<const GpuDevice&>(*devices[index]);
      Gpu& gpu = *device.gpu();
      lms::Status status;
      if (gpu.later != nullptr) {
        status = last_failure(lms_tensorflow::enable(device.gpu_id(), gpu.later->options.get(), gpu.later->min_size));
        if (status.ok()) {
          gpu.later.reset();  // otherwise the next try fails in the same way, instead of doing without LMS
        }
      } else if (enabled && !gpu.enabled.load()) {
        status = enable_as_requested(device.gpu_id());
      }
      if (!status.ok()) {
        return to_tensorflow(status);
      }
    }
    return TensorflowStatus();
  }
};

// Above the stock factory (210), below that of a plug-in that brings other GPU devices (220).
constexpr int priority = 215;

template <typename Factories>
auto register_factory(int /*preferred*/)
    -> decltype(Factories::Register("GPU", std::unique_ptr<DeviceFactory>(), priority, /*is_pluggable_device=*/true)) {
  Factories::Register("GPU", std::make_unique<GpuDeviceFactory>(), priority, /*is_pluggable_device=*/true);
}
// Before 2.8 the list takes a pointer, and before 2.5 no device is pluggable.
template <typename Factories, typename Factory = DeviceFactory>
auto register_factory(long /*otherwise*/)
    -> decltype(Factories::Register("GPU", std::declval<Factory*>(), priority, /*is_pluggable_device=*/true)) {
  Factories::Register("GPU", new GpuDeviceFactory, priority, /*is_pluggable_device=*/true);
}
template <typename Factories>
void register_factory(...) {
  Factories::Register("GPU", new GpuDeviceFactory, priority);
}

// Early, since the list of such functions has no lock.
// NOLINTNEXTLINE(bugprone-throwing-static-initialization): without memory nothing would load
const bool registered = register_copy<CopyTensor>(0);

}  // namespace

lms::Status take_over_gpus() {
  // Not switching(): devices are made, and take that, while the list of factories is locked.
  static std::mutex& lock = *new std::mutex;
  static bool& taken = *new bool(false);
  const std::lock_guard<std::mutex> guard(lock);
  if (taken) {
    return {};
  }
  if (GPUProcessState::singleton()->HasGPUDevice()) {
    return lms::Status(LMS_UNSUPPORTED,
                       "TensorFlow uses a GPU already, without LMS: enable LMS before the first operation");
  }
  if (!registered || DeviceFactory::DevicePriority("GPU") > priority) {
    return lms::Status(LMS_UNSUPPORTED, "a plug-in brings the GPU devices: LMS knows only TensorFlow's own");
  }
  const lms::Status status = watch_copies<CopyTensor>(0);
  if (status.ok()) {
    register_factory<DeviceFactory>(0);
    taken = true;
  }
  return status;
}

lms::Status enable_gpus_as_requested() {
  lms::Status status = take_over_gpus();
  const std::lock_guard<std::mutex> guard(switching());
  std::vector<int> enabled;
  for (int index = 0; index < most_gpus && status.ok(); ++index) {
    const Gpu& gpu = *gpu_at(index);
    if (gpu.executor != nullptr && !gpu.enabled.load()) {
      status = enable_as_requested(index);
      enabled.push_back(index);
    }
  }
  for (const int index : enabled) {
    if (!status.ok()) {
      static_cast<void>(disable(index));
    }
  }
  return status;
}

lms::Status disable_gpus() {
  const std::lock_guard<std::mutex> guard(switching());
  lms::Status status;
  for (int index = 0; index < most_gpus && status.ok(); ++index) {
    if (gpu_at(index)->requested) {
      status = last_failure(disable(index));
    }
  }
  return status;
}

lms::Status limit_gpus_as_requested() {
  const std::lock_guard<std::mutex> guard(switching());
  lms::Status status;
  for (int index = 0; index < most_gpus && status.ok(); ++index) {
    if (gpu_at(index)->requested) {
      status = enable_as_requested(index);
    }
  }
  return status;
}

Allocator* gpu_host_allocator(const GPUOptions& options, int numa_node) {
  return host_allocator_of(GPUProcessState::singleton(), options, numa_node, 0);
}

}  // namespace lms_tensorflow

lms_status lms_tensorflow_gpu_enable(int index, const lms_options* options, uint64_t min_size) {
  using namespace lms_tensorflow;  // NOLINT(google-build-using-namespace): this file's own
  Gpu* gpu = gpu_at(index);
  if (gpu == nullptr) {
    return lms_fail(LMS_INVALID_ARGUMENT, "there is no GPU with that number");
  }
  if (min_size == 0) {
    return lms_fail(LMS_INVALID_ARGUMENT, "the least size of a tensor that is paged must be at least 1 byte");
  }
  const lms::Status status = take_over_gpus();
  if (!status.ok()) {
    return lms_fail(status.code, status.message.c_str());
  }
  const std::lock_guard<std::mutex> guard(switching());
  if (gpu->executor != nullptr) {
    const lms_status enabled = enable(index, *options, min_size);
    gpu->requested = gpu->requested && enabled != LMS_OK;
    return enabled;
  }
  auto later = std::make_unique<Settings>();
  later->options.set(*options);
  later->min_size = min_size;
  gpu->later = std::move(later);
  return LMS_OK;
}

lms_status lms_tensorflow_gpu_disable(int index) {
  using namespace lms_tensorflow;  // NOLINT(google-build-using-namespace): this file's own
  const std::lock_guard<std::mutex> guard(switching());
  return gpu_at(index) != nullptr ? disable(index) : LMS_OK;
}

int lms_tensorflow_gpu_enabled(int index) {
  const lms_tensorflow::Gpu* gpu = lms_tensorflow::gpu_at(index);
  if (gpu == nullptr) {
    return 0;
  }
  const std::lock_guard<std::mutex> guard(lms_tensorflow::switching());
  return gpu->enabled.load() || gpu->later != nullptr ? 1 : 0;
}

uint64_t lms_tensorflow_gpu_min_size(int index) {
  const lms_tensorflow::Gpu* gpu = lms_tensorflow::gpu_at(index);
  return gpu != nullptr ? gpu->min_size.load() : 0;
}

lms_pager* lms_tensorflow_gpu_pager(int index) {
  const lms_tensorflow::Gpu* gpu = lms_tensorflow::gpu_at(index);
  return gpu != nullptr ? reinterpret_cast<lms_pager*>(gpu->pager.load(std::memory_order_acquire)) : nullptr;
}

int lms_tensorflow_gpu_counters(int index, int64_t* values) {
  using namespace lms_tensorflow;  // NOLINT(google-build-using-namespace): this file's own
  const std::lock_guard<std::mutex> guard(switching());
  const Gpu* gpu = gpu_at(index);
  if (gpu == nullptr || gpu->executor == nullptr) {
    return 0;
  }
  lms::Pager* pager = gpu->pager.load();
  const lms::Statistics ours = pager != nullptr ? pager->statistics() : lms::Statistics{};
  std::array<std::int64_t, LMS_GPU_COUNTERS> sums = {
      static_cast<std::int64_t>(ours.cached_allocations + ours.mapped_allocations),
      static_cast<std::int64_t>(ours.resident_bytes),
      static_cast<std::int64_t>(ours.resident_bytes_peak),
      0,
      0,
      static_cast<std::int64_t>(ours.device_bytes),
      static_cast<std::int64_t>(ours.device_bytes_peak),
      0};
  for (const auto& compute : gpu->streams) {
    const auto found = compute->stock->GetStats();
    if (found) {
      sums[0] += found->num_allocs;
      sums[1] += found->bytes_in_use;
      sums[2] += found->peak_bytes_in_use;
      sums[3] = std::max<std::int64_t>(sums[3], found->largest_alloc_size);
      sums[4] += found->bytes_limit ? *found->bytes_limit : 0;
      const Reserved reserved = reserved_in(*found, 0);
      sums[5] += reserved.now;
      sums[6] += reserved.peak;
      sums[7] += found->bytes_reservable_limit ? *found->bytes_reservable_limit : 0;
    }
  }
  std::copy(sums.begin(), sums.end(), values);
  return 1;
}

int lms_tensorflow_gpu_host_counters(int numa_node, int64_t* values) {
  using namespace lms_tensorflow;  // NOLINT(google-build-using-namespace): this file's own
  const std::lock_guard<std::mutex> guard(switching());
  std::int64_t in_use = 0;
  std::int64_t peak = 0;
  bool any = false;
  for (const Gpu& gpu : gpus()) {
    if (gpu.executor == nullptr) {
      continue;
    }
    any = true;
    lms::Pager* pager = gpu.pager.load();
    if (pager != nullptr && gpu.numa_node == numa_node) {
      const lms::Statistics ours = pager->statistics();
      in_use += static_cast<std::int64_t>(ours.store_bytes);
      peak += static_cast<std::int64_t>(ours.store_bytes_peak);
    }
  }
  if (!any) {
    return 0;
  }
  const auto found = gpu_host_allocator(GPUOptions(), numa_node)->GetStats();
  values[0] = in_use + (found ? found->bytes_in_use : 0);
  values[1] = peak + (found ? found->peak_bytes_in_use : 0);
  return 1;
}

#endif  // GOOGLE_CUDA

// How LMS comes in front of the CUDA allocator from PyTorch 2.0 on: c10's atomic pointer to an abstract class gets a
// decorator of what it points to.
//
// The class has other virtual methods in every release. The list at LMS_METHODS names those of all, and this file takes
// the signatures from the release it is compiled for.
#include <ATen/cuda/LmsCudaBlocks.h>
#include <ATen/cuda/LmsCudaDevices.h>
#include <ATen/cuda/LmsIntercepts.h>
#include <ATen/cuda/LmsStock.h>
#include <ATen/lms/backend/cuda/cuda_ipc.h>
#include <ATen/lms/override.h>
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace c10 {
struct DeviceAllocator;  // a base of the allocator's class from 2.9 on
}

namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;
using namespace lms_cuda;  // NOLINT(google-build-using-namespace): this file defines a part of it

// Set before the decorator is installed, and kept for the blocks that are freed after it was taken out.
std::atomic<CUDAAllocator*> stock_allocator{nullptr};

CUDAAllocator* stock_object() { return stock_allocator.load(std::memory_order_acquire); }

// ------------------------------------------------------------------------------------------------ other processes

// A block's memory as text that another process understands: a prefix, the owner's process, and per piece of memory
// the number of a file descriptor there and its bytes. Not every release asks for one.
constexpr const char* handle_prefix = "LMS1";

[[maybe_unused]] std::string share_block(CudaDevice* device, const void* address, ptrdiff_t* offset) {
  uint64_t bytes = 0;
  void* begin = block_of(device, address, &bytes);
  TORCH_CHECK(begin != nullptr, "LMS: the tensor's memory was freed");
  const std::vector<lms::CudaExport> exports = exports_of(device, begin);
  *offset = static_cast<const char*>(address) - static_cast<char*>(begin);
  std::ostringstream text;
  text << handle_prefix << ' ' << ::getpid();
  for (const lms::CudaExport& entry : exports) {
    text << ' ' << entry.file << ' ' << entry.bytes;
  }
  return text.str();
}

bool is_block_handle(const std::string& handle) {
  return handle.compare(0, std::char_traits<char>::length(handle_prefix), handle_prefix) == 0;
}

std::shared_ptr<void> open_block(const std::string& handle) {
  static std::mutex& lock = *new std::mutex;
  static auto& opened = *new std::unordered_map<std::string, std::weak_ptr<void>>;
  const std::lock_guard<std::mutex> guard(lock);
  const c10::DeviceIndex device = c10::cuda::current_device();
  std::weak_ptr<void>& known = opened[std::to_string(device) + ' ' + handle];
  if (std::shared_ptr<void> same = known.lock()) {
    return same;
  }
  std::istringstream text(handle);
  std::string prefix;
  int64_t process = 0;
  text >> prefix >> process;
  std::vector<lms::CudaExport> exports;
  for (lms::CudaExport entry; text >> entry.file >> entry.bytes;) {
    exports.push_back(entry);
  }
  std::string error;
  std::shared_ptr<lms::CudaImport> import = lms::CudaImport::open(device, process, exports, &error);
  TORCH_CHECK(import != nullptr, "LMS: a tensor of another process cannot be opened: ", error);
  char* address = import->address();
  std::shared_ptr<void> memory(address, [import, device](void* /*address*/) {
    // Nothing may use it any more. Fails only with the device.
    int before = 0;
    static_cast<void>(cudaGetDevice(&before));
    static_cast<void>(cudaSetDevice(device));
    static_cast<void>(cudaDeviceSynchronize());
    static_cast<void>(cudaSetDevice(before));
  });
  known = memory;
  return memory;
}

// ------------------------------------------------------------------------------------------------ the decorator

// The names are c10's.
// NOLINTBEGIN(readability-identifier-naming)
template <typename Stock>
class Methods : public Intercepts<Stock> {
 public:
  using Intercepts<Stock>::Intercepts;

  auto shareIpcHandle(void* address) const {
    CudaDevice* device = owner_of(address);
    if (device == nullptr) {
      return this->stock_methods()->shareIpcHandle(address);
    }
    decltype(this->stock_methods()->shareIpcHandle(address)) shared{};
    shared.handle = share_block(device, address, &shared.offset);
    return shared;
  }

  std::shared_ptr<void> getIpcDevPtr(std::string handle) const {
    return is_block_handle(handle) ? open_block(handle) : this->stock_methods()->getIpcDevPtr(std::move(handle));
  }
};
// NOLINTEND(readability-identifier-naming)

class Decorator : public CUDAAllocator {
 protected:
  static CUDAAllocator* stock_methods() { return stock_object(); }
  static Methods<CUDAAllocator> intercepts() { return Methods<CUDAAllocator>(stock_object()); }
};

// Every virtual method of CUDAAllocator and its bases in any release from 2.0 on, except raw_deleter() and what is
// overloaded in some release: those are in LmsAllocator.
#define LMS_METHODS(LMS_FORWARD, LMS_INTERCEPT) \
  LMS_INTERCEPT(allocate)                       \
  LMS_INTERCEPT(copy_data)                      \
  LMS_FORWARD(is_simple_data_ptr)               \
  LMS_INTERCEPT(raw_alloc)                      \
  LMS_INTERCEPT(raw_alloc_with_stream)          \
  LMS_INTERCEPT(raw_delete)                     \
  LMS_FORWARD(allocateWithAddress)              \
  LMS_FORWARD(init)                             \
  LMS_FORWARD(initialized)                      \
  LMS_FORWARD(enable)                           \
  LMS_FORWARD(isEnabled)                        \
  LMS_FORWARD(name)                             \
  LMS_FORWARD(getMemoryInfo)                    \
  LMS_FORWARD(getMemoryFraction)                \
  LMS_INTERCEPT(setMemoryFraction)              \
  LMS_FORWARD(getExpandableSegmentSizes)        \
  LMS_INTERCEPT(emptyCache)                     \
  LMS_FORWARD(cacheInfo)                        \
  LMS_INTERCEPT(getDeviceStats)                 \
  LMS_FORWARD(resetAccumulatedStats)            \
  LMS_INTERCEPT(resetPeakStats)                 \
  LMS_INTERCEPT(snapshot)                       \
  LMS_FORWARD(isHistoryEnabled)                 \
  LMS_FORWARD(getContextForPointer)             \
  LMS_FORWARD(recordHistory)                    \
  LMS_FORWARD(recordAnnotation)                 \
  LMS_FORWARD(pushCompileContext)               \
  LMS_FORWARD(popCompileContext)                \
  LMS_FORWARD(supportsUserMetadata)             \
  LMS_FORWARD(setUserMetadata)                  \
  LMS_FORWARD(getUserMetadata)                  \
  LMS_FORWARD(annotateMemory)                   \
  LMS_FORWARD(attachOutOfMemoryObserver)        \
  LMS_FORWARD(attachOomRejectionObserver)       \
  LMS_FORWARD(attachAllocatorTraceTracker)      \
  LMS_INTERCEPT(beginAllocateToPool)            \
  LMS_INTERCEPT(endAllocateToPool)              \
  LMS_INTERCEPT(beginAllocateStreamToPool)      \
  LMS_INTERCEPT(endAllocateStreamToPool)        \
  LMS_INTERCEPT(notifyCaptureBegin)             \
  LMS_FORWARD(notifyCaptureAboutToEnd)          \
  LMS_INTERCEPT(notifyCaptureEnded)             \
  LMS_FORWARD(notifyCaptureDestroy)             \
  LMS_FORWARD(markCaptureBegin)                 \
  LMS_FORWARD(markCaptureEnd)                   \
  LMS_FORWARD(releasePool)                      \
  LMS_FORWARD(getPoolUseCount)                  \
  LMS_FORWARD(ensureExistsAndIncrefPool)        \
  LMS_FORWARD(createOrIncrefPool)               \
  LMS_FORWARD(setUseOnOOM)                      \
  LMS_FORWARD(setNoSplit)                       \
  LMS_FORWARD(checkPoolLiveAllocations)         \
  LMS_FORWARD(getCheckpointState)               \
  LMS_FORWARD(setCheckpointPoolState)           \
  LMS_INTERCEPT(enablePeerAccess)               \
  LMS_INTERCEPT(needsPoolSpecificPeerAccess)    \
  LMS_INTERCEPT(memcpyAsync)                    \
  LMS_INTERCEPT(shareIpcHandle)                 \
  LMS_INTERCEPT(getIpcDevPtr)

#define LMS_DEFINE_FORWARD(method) LMS_DEFINE_OVERRIDE(method, this->stock_methods()->)
#define LMS_DEFINE_INTERCEPT(method) LMS_DEFINE_OVERRIDE(method, this->intercepts().)
LMS_METHODS(LMS_DEFINE_FORWARD, LMS_DEFINE_INTERCEPT)
LMS_DEFINE_INTERCEPT(recordStream)

#define LMS_LINK(method) , lms_override_##method<CUDAAllocator>::Link
using DecoratorLinks =
    lms::Chain<Decorator LMS_METHODS(LMS_LINK, LMS_LINK), lms_override_recordStream<c10::DeviceAllocator>::Link>::type;

class LmsAllocator final : public DecoratorLinks {
 public:
  using CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    intercepts().recordStream(data, stream);
  }

  void* getBaseAllocation(void* address, size_t* bytes) override {
    constexpr bool shares = !std::is_void<lms_signature_shareIpcHandle<CUDAAllocator>::type>::value;
    return intercepts().base_allocation<shares>(address, bytes);
  }

  // Of graphs that are captured into private pools PyTorch checks that their memory, which is never ours, has the very
  // deleter that this returns. Without such pools it is one that serves both kinds of memory.
  c10::DeleterFnPtr raw_deleter() const override {
    return pools_used().load(std::memory_order_relaxed) ? stock_object()->raw_deleter() : &release_block;
  }
};

LmsAllocator& decorator() {
  static LmsAllocator& allocator = *new LmsAllocator;
  return allocator;
}

// ------------------------------------------------------------------------------------------------ switching

bool is_installed = false;  // LmsCuda.cpp makes one call at a time

// Above the priority of every allocator that is registered statically; equal priorities replace each other.
constexpr uint8_t allocator_priority = 255;

// Newer releases also find the allocator by the type of device. Null where none is registered.
c10::Allocator* registered_allocator() {
  try {
    return c10::GetAllocator(c10::DeviceType::CUDA);
  } catch (const c10::Error&) {
    return nullptr;
  }
}

void replace_registered(c10::Allocator* from, c10::Allocator* to) {
  if (registered_allocator() == from) {
    c10::SetAllocator(c10::DeviceType::CUDA, to, allocator_priority);
  }
}

template <typename Stock>
auto memory_fraction(Stock* allocator, int device, int /*preferred*/)
    -> decltype(allocator->getMemoryFraction(static_cast<c10::DeviceIndex>(device))) {
  return allocator->getMemoryFraction(static_cast<c10::DeviceIndex>(device));
}
template <typename Stock>
double memory_fraction(Stock* /*allocator*/, int /*device*/, long /*otherwise*/) {
  return 1;
}

}  // namespace

namespace lms_cuda {
namespace stock {

lms_status check() {
  CUDAAllocator* current = c10::cuda::CUDACachingAllocator::allocator.load();
  if (!is_installed && current->name().find("luggable") != std::string::npos) {
    return lms_fail(LMS_UNSUPPORTED,
                    "a CUDAPluggableAllocator is in use, and LMS works with PyTorch's own CUDA allocators only; do not "
                    "call torch.cuda.memory.change_current_allocator");
  }
  return LMS_OK;
}

lms_status install() {
  if (is_installed) {
    return LMS_OK;
  }
  CUDAAllocator* current = c10::cuda::CUDACachingAllocator::allocator.load();
  stock_allocator.store(current, std::memory_order_release);
  c10::cuda::CUDACachingAllocator::allocator.store(&decorator());
  replace_registered(current, &decorator());
  is_installed = true;
  return LMS_OK;
}

void uninstall() {
  CUDAAllocator* ours = &decorator();
  if (c10::cuda::CUDACachingAllocator::allocator.compare_exchange_strong(ours, stock_object())) {
    replace_registered(&decorator(), stock_object());
    is_installed = false;
  }
}

bool installed() { return is_installed; }

bool tells_peers() { return true; }  // by needsPoolSpecificPeerAccess or enablePeerAccess

bool initialized() { return stock_object()->initialized(); }

int64_t reserved_bytes(int device) {
  return stock_object()->getDeviceStats(static_cast<c10::DeviceIndex>(device)).reserved_bytes[0].current;
}

double memory_fraction(int device) { return ::memory_fraction(stock_object(), device, 0); }

void empty_cache() { stock_object()->emptyCache(); }

void release(void* address) { stock_object()->raw_deleter()(address); }

bool is_out_of_memory(const c10::Error& error) { return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr; }

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // the default stream cannot be asked while others are captured
    return false;
  }
  return status != cudaStreamCaptureStatusNone;
}

bool profiling() { return c10::memoryProfilingEnabled(); }

void report_to_profiler(void* address, int64_t bytes, int device) {
  const auto stats = c10::cuda::CUDACachingAllocator::get()->getDeviceStats(static_cast<c10::DeviceIndex>(device));
  c10::reportMemoryUsageToProfiler(address, bytes, static_cast<size_t>(stats.allocated_bytes[0].current),
                                   static_cast<size_t>(stats.reserved_bytes[0].current), as_device(device));
}

}  // namespace stock
}  // namespace lms_cuda

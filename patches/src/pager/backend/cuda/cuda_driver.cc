#include "cuda_driver.h"

#include <dlfcn.h>

#include <mutex>

namespace lms {

namespace {

constexpr const char* cuda_driver_library = "libcuda.so.1";

std::string cuda_driver_too_old(int version, const std::string& lacks) {
  std::string sentence = "the NVIDIA driver is too old: it ";
  if (version > 0) {
    sentence += "supports CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  } else {
    sentence += "lacks " + lacks;
  }
  return sentence + ", and virtual memory management needs CUDA 10.2 or later; install a newer driver";
}

// Looks symbols up, and remembers the first that is missing.
class CudaSymbols {
 public:
  explicit CudaSymbols(void* library) : library_(library) {}

  template <typename Function>
  void operator()(const char* symbol, Function* function) {
    (*this)(symbol, symbol, function);
  }

  template <typename Function>
  void operator()(const char* symbol, const char* older, Function* function) {
    void* found = dlsym(library_, symbol);
    *function = reinterpret_cast<Function>(found != nullptr ? found : dlsym(library_, older));
    if (*function == nullptr && missing_.empty()) {
      missing_ = symbol;
    }
  }
  // Null where the library has none.
  template <typename Function>
  void if_there(const char* symbol, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, symbol));
  }
  const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

// The name of the first function that the library lacks; empty when there is none.
std::string cuda_driver_resolve(void* library, CudaDriver* driver) {
  CudaSymbols find(library);
  find("cuInit", &driver->init);
  find("cuDriverGetVersion", &driver->driver_get_version);
  find("cuGetErrorName", &driver->get_error_name);
  find("cuDeviceGet", &driver->device_get);
  find("cuDeviceGetCount", &driver->device_get_count);
  find("cuDeviceGetAttribute", &driver->device_get_attribute);
  find("cuDeviceGetPCIBusId", &driver->device_get_pci_bus_id);
  // The second version came with CUDA 11.4: parts of a device (MIG) differ by it.
  find("cuDeviceGetUuid_v2", "cuDeviceGetUuid", &driver->device_get_uuid);
  find("cuDeviceTotalMem_v2", &driver->device_total_mem);
  find("cuDeviceCanAccessPeer", &driver->device_can_access_peer);
  find("cuDevicePrimaryCtxRetain", &driver->device_primary_ctx_retain);
  // The second version came with CUDA 11.0.
  find("cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease", &driver->device_primary_ctx_release);
  find("cuCtxGetCurrent", &driver->ctx_get_current);
  find("cuCtxPushCurrent_v2", &driver->ctx_push_current);
  find("cuCtxPopCurrent_v2", &driver->ctx_pop_current);
  find("cuCtxSynchronize", &driver->ctx_synchronize);
  find("cuThreadExchangeStreamCaptureMode", &driver->thread_exchange_capture_mode);
  find("cuStreamCreateWithPriority", &driver->stream_create_with_priority);
  find("cuCtxGetStreamPriorityRange", &driver->ctx_get_stream_priority_range);
  find("cuStreamDestroy_v2", &driver->stream_destroy);
  find.if_there("cuStreamGetId", &driver->stream_get_id);
  find("cuStreamWaitEvent", &driver->stream_wait_event);
  find("cuStreamIsCapturing", &driver->stream_is_capturing);
  find("cuEventCreate", &driver->event_create);
  find("cuEventDestroy_v2", &driver->event_destroy);
  find("cuEventRecord", &driver->event_record);
  find("cuEventQuery", &driver->event_query);
  find("cuEventSynchronize", &driver->event_synchronize);
  find("cuMemGetInfo_v2", &driver->mem_get_info);
  find("cuMemGetAllocationGranularity", &driver->mem_get_allocation_granularity);
  find("cuMemAddressReserve", &driver->mem_address_reserve);
  find("cuMemAddressFree", &driver->mem_address_free);
  find("cuMemCreate", &driver->mem_create);
  find("cuMemRelease", &driver->mem_release);
  find("cuMemMap", &driver->mem_map);
  find("cuMemUnmap", &driver->mem_unmap);
  find("cuMemSetAccess", &driver->mem_set_access);
  find("cuMemExportToShareableHandle", &driver->mem_export);
  find("cuMemImportFromShareableHandle", &driver->mem_import);
  find("cuMemcpyDtoHAsync_v2", &driver->memcpy_to_host);
  find("cuMemcpyHtoDAsync_v2", &driver->memcpy_to_device);
  find("cuMemHostRegister_v2", &driver->mem_host_register);
  find("cuMemHostUnregister", &driver->mem_host_unregister);
  return find.missing();
}

}  // namespace

const CudaDriver* CudaDriver::load(std::string* error) {
  static std::mutex& lock = *new std::mutex;
  static const CudaDriver* loaded = nullptr;
  const std::lock_guard<std::mutex> guard(lock);
  if (loaded != nullptr) {
    return loaded;
  }
  void* library = dlopen(cuda_driver_library, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    *error = std::string("there is no NVIDIA driver (") + (reason != nullptr ? reason : cuda_driver_library) +
             "); install one, or use device \"cpu\"";
    return nullptr;
  }
  static CudaDriver driver;
  const std::string missing = cuda_driver_resolve(library, &driver);
  int version = 0;
  if (driver.driver_get_version != nullptr && driver.driver_get_version(&version) == cuda::success &&
      version < cuda::version_with_virtual_memory) {
    *error = cuda_driver_too_old(version, missing);
    return nullptr;
  }
  if (!missing.empty()) {
    *error = cuda_driver_too_old(0, missing);
    return nullptr;
  }
  loaded = &driver;
  return loaded;
}

std::string CudaDriver::name(CudaResult result) const {
  const char* text = nullptr;
  if (get_error_name(result, &text) == cuda::success && text != nullptr) {
    return text;
  }
  return "error " + std::to_string(result);
}

}  // namespace lms

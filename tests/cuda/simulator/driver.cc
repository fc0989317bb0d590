// libcuda.so.1: CUDA's driver interface as far as it is simulated. Names, numbers and layouts are those of cuda.h,
// which is not included, so that the library builds anywhere.
#include <cstdio>
#include <cstring>
#include <vector>

#include "api.h"

using namespace sim;  // NOLINT: the whole file is about it

namespace {

using Result = int;

Stream* find_stream(void* handle) { return machine().stream(handle, current_device()); }

struct Location {
  int type;
  int id;
};

struct AllocationProperties {
  int type;
  int handle_types;
  Location location;
  void* win32;
  unsigned char flags[8];
};

struct AccessDescription {
  Location location;
  int flags;
};

// A call for a range costs the host so much for every handle in it; its Site has accounted for one.
void pass_for_handles(const char* function, Address address, std::size_t bytes) {
  const std::uint64_t handles = timed() == nullptr ? 0 : memory().mappings_in(address, bytes);
  if (handles > 1) {
    timed()->pass((handles - 1) * timed()->call_time(function), function, true);
  }
}

struct Module {
  int unused;
};

struct FunctionHandle {
  std::string name;
};

struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

int device_of(void* context) { return static_cast<Device*>(context)->index; }

bool is_context(void* context) {
  for (int i = 0; i < machine().devices(); ++i) {
    if (machine().device(i) == context) {
      return true;
    }
  }
  return false;
}

FunctionHandle* intern(const std::string& name) {
  static std::mutex lock;
  static auto* const all = new std::map<std::string, FunctionHandle>;
  const std::lock_guard<std::mutex> guard(lock);
  FunctionHandle& function = (*all)[name];
  function.name = name;
  return &function;
}

}  // namespace

// Declares, registers for cuGetProcAddress, and begins to define.
#define DRIVER(name, since, ...)                                          \
  extern "C" SIM_PUBLIC Result name(__VA_ARGS__);                         \
  namespace {                                                             \
  const Entry entry_##name(#name, since, reinterpret_cast<void*>(&name)); \
  }                                                                       \
  extern "C" SIM_PUBLIC Result name(__VA_ARGS__)

#define STREAM(variable, handle)                \
  Stream* const variable = find_stream(handle); \
  if (variable == nullptr) {                    \
    return invalid_handle;                      \
  }

constexpr unsigned need_all = need_context | need_sound;

// --- the driver and its devices

DRIVER(cuInit, 2000, unsigned flags) {
  ENTER(need_nothing)
  return flags != 0 ? invalid_value : machine().initialize();
}

DRIVER(cuDriverGetVersion, 2020, int* version) {
  ENTER(need_nothing)
  *version = settings().driver_version;
  return success;
}

DRIVER(cuGetErrorString, 6000, int code, const char** text) {
  ENTER(need_nothing)
  *text = code_sentence(code);
  return *text == nullptr ? invalid_value : success;
}

DRIVER(cuGetErrorName, 6000, int code, const char** text) {
  ENTER(need_nothing)
  *text = code_name(code);
  return *text == nullptr ? invalid_value : success;
}

DRIVER(cuDeviceGet, 2000, int* device, int ordinal) {
  ENTER(need_init)
  if (machine().device(ordinal) == nullptr) {
    return invalid_device;
  }
  *device = ordinal;
  return success;
}

DRIVER(cuDeviceGetCount, 2000, int* count) {
  ENTER(need_init)
  *count = machine().devices();
  return success;
}

DRIVER(cuDeviceGetName, 2000, char* name, int bytes, int device) {
  ENTER(need_init)
  if (machine().device(device) == nullptr) {
    return invalid_device;
  }
  std::snprintf(name, static_cast<std::size_t>(bytes), "Simulated CUDA");
  return success;
}

DRIVER(cuDeviceGetUuid, 9020, unsigned char* uuid, int device) {
  ENTER(need_init)
  std::memset(uuid, device + 1, 16);
  return success;
}

DRIVER(cuDeviceGetUuid_v2, 11040, unsigned char* uuid, int device) {
  ENTER(need_init)
  std::memset(uuid, device + 1, 16);
  return success;
}

DRIVER(cuDeviceTotalMem_v2, 3020, std::size_t* bytes, int device) {
  ENTER(need_init)
  if (machine().device(device) == nullptr) {
    return invalid_device;
  }
  *bytes = settings().memory;
  return success;
}

DRIVER(cuDeviceGetAttribute, 2000, int* value, int attribute, int device) {
  ENTER(need_init)
  return machine().device(device) == nullptr ? invalid_device : api_attribute(device, attribute, value);
}

DRIVER(cuDeviceGetPCIBusId, 4010, char* text, int bytes, int device) {
  ENTER(need_init)
  if (machine().device(device) == nullptr) {
    return invalid_device;
  }
  std::snprintf(text, static_cast<std::size_t>(bytes), "%s", api_pci_bus_id(device).c_str());
  return success;
}

DRIVER(cuDeviceCanAccessPeer, 4000, int* can, int device, int peer) {
  ENTER(need_init)
  if (machine().device(device) == nullptr || machine().device(peer) == nullptr) {
    return invalid_device;
  }
  *can = device != peer ? 1 : 0;
  return success;
}

DRIVER(cuDeviceGetDefaultMemPool, 11020, Pool** pool, int device) {
  ENTER(need_init)
  *pool = api_pool(device);
  return success;
}

// --- contexts

DRIVER(cuDevicePrimaryCtxRetain, 7000, Device** context, int device) {
  ENTER(need_init)
  if (machine().device(device) == nullptr) {
    return invalid_device;
  }
  *context = machine().device(device);
  ++(*context)->references;
  return success;
}

DRIVER(cuDevicePrimaryCtxRelease_v2, 11000, int device) {
  ENTER(need_init)
  Device* found = machine().device(device);
  if (found == nullptr || !found->active()) {
    return found == nullptr ? invalid_device : invalid_context;
  }
  --found->references;
  return success;
}

DRIVER(cuDevicePrimaryCtxGetState, 7000, int device, unsigned* flags, int* active) {
  ENTER(need_init)
  Device* found = machine().device(device);
  if (found == nullptr) {
    return invalid_device;
  }
  *flags = found->flags;
  *active = found->active() ? 1 : 0;
  return success;
}

DRIVER(cuDevicePrimaryCtxSetFlags_v2, 11000, int device, unsigned flags) {
  ENTER(need_init)
  machine().device(device)->flags = flags;
  return success;
}

DRIVER(cuCtxGetCurrent, 4000, void** context) {
  ENTER(need_init)
  *context = current_device();
  return success;
}

DRIVER(cuCtxSetCurrent, 4000, void* context) {
  ENTER(need_init)
  std::vector<Device*>& stack = context_stack();
  if (context == nullptr) {
    if (!stack.empty()) {
      stack.pop_back();
    }
    return success;
  }
  if (!is_context(context)) {
    return invalid_context;
  }
  if (stack.empty()) {
    stack.push_back(static_cast<Device*>(context));
  } else {
    stack.back() = static_cast<Device*>(context);
  }
  return success;
}

DRIVER(cuCtxPushCurrent_v2, 4000, void* context) {
  ENTER(need_init)
  if (!is_context(context)) {
    return invalid_context;
  }
  context_stack().push_back(static_cast<Device*>(context));
  return success;
}

DRIVER(cuCtxPopCurrent_v2, 4000, void** context) {
  ENTER(need_init)
  std::vector<Device*>& stack = context_stack();
  if (stack.empty()) {
    return invalid_context;
  }
  if (context != nullptr) {
    *context = stack.back();
  }
  stack.pop_back();
  return success;
}

DRIVER(cuCtxGetDevice, 2000, int* device) {
  ENTER(need_context)
  *device = current_device()->index;
  return success;
}

DRIVER(cuCtxGetFlags, 7000, unsigned* flags) {
  ENTER(need_context)
  *flags = current_device()->flags;
  return success;
}

DRIVER(cuCtxGetApiVersion, 3020, void* context, unsigned* version) {
  ENTER(need_init)
  (void)context;
  *version = static_cast<unsigned>(settings().driver_version);
  return success;
}

DRIVER(cuCtxSynchronize, 2000, void) {
  ENTER(need_all)
  return machine().synchronize_device(current_device());
}

DRIVER(cuCtxGetStreamPriorityRange, 5050, int* least, int* greatest) {
  ENTER(need_context)
  *least = 0;
  *greatest = -5;
  return success;
}

DRIVER(cuCtxEnablePeerAccess, 4000, void* peer, unsigned flags) {
  ENTER(need_all)
  if (flags != 0 || !is_context(peer)) {
    return invalid_value;
  }
  const int device = current_device()->index;
  if (device == device_of(peer)) {
    return invalid_device;
  }
  if (memory().peer(device, device_of(peer))) {
    return peer_already_enabled;
  }
  memory().set_peer(device, device_of(peer), true);
  return success;
}

// --- memory

DRIVER(cuMemGetInfo_v2, 3020, std::size_t* free, std::size_t* total) {
  ENTER(need_all)
  *total = settings().memory;
  *free = *total - memory().used_by_all(current_device()->index);
  return success;
}

DRIVER(cuMemAlloc_v2, 3020, Address* address, std::size_t bytes) {
  ENTER(need_all)
  return bytes == 0 ? invalid_value : api_allocate(current_device(), bytes, address);
}

DRIVER(cuMemFree_v2, 3020, Address address) {
  ENTER(need_all)
  return api_free(current_device(), address);
}

DRIVER(cuMemGetAddressRange_v2, 3020, Address* base, std::size_t* bytes, Address address) {
  ENTER(need_all)
  const PointerInfo info = api_pointer(address);
  if (info.type == 0) {
    return not_found;
  }
  if (base != nullptr) {
    *base = info.start;
  }
  if (bytes != nullptr) {
    *bytes = info.bytes;
  }
  return success;
}

DRIVER(cuMemAllocHost_v2, 3020, void** address, std::size_t bytes) {
  ENTER(need_all)
  return api_host_allocate(current_device(), bytes, 0, HostKind::allocated, address);
}

DRIVER(cuMemHostAlloc, 2020, void** address, std::size_t bytes, unsigned flags) {
  ENTER(need_all)
  return flags > 7 ? invalid_value : api_host_allocate(current_device(), bytes, flags, HostKind::allocated, address);
}

DRIVER(cuMemFreeHost, 2000, void* address) {
  ENTER(need_all)
  return api_host_free(current_device(), address);
}

DRIVER(cuMemAllocManaged, 6000, Address* address, std::size_t bytes, unsigned flags) {
  ENTER(need_all)
  (void)flags;
  void* at = nullptr;
  const int code = api_host_allocate(current_device(), bytes, 0, HostKind::managed, &at);
  *address = reinterpret_cast<Address>(at);
  return code;
}

DRIVER(cuMemHostRegister_v2, 6050, void* address, std::size_t bytes, unsigned flags) {
  ENTER(need_all)
  if (flags > 15) {
    return invalid_value;
  }
  const int refused = machine().unsafe_call();
  return refused != success ? refused : memory().host_register(address, bytes, flags, current_device()->index);
}

DRIVER(cuMemHostUnregister, 4000, void* address) {
  ENTER(need_all)
  const int refused = machine().unsafe_call();
  return refused != success ? refused : memory().host_unregister(address);
}

DRIVER(cuMemHostGetDevicePointer_v2, 3020, Address* device_address, void* address, unsigned flags) {
  ENTER(need_all)
  (void)flags;
  *device_address = reinterpret_cast<Address>(address);
  return memory().is_pinned(*device_address, 1) ? success : invalid_value;
}

DRIVER(cuMemHostGetFlags, 2030, unsigned* flags, void* address) {
  ENTER(need_all)
  std::uint64_t start = 0;
  HostRange range;
  if (!memory().host_range(reinterpret_cast<Address>(address), &start, &range)) {
    return invalid_value;
  }
  *flags = range.flags;
  return success;
}

// --- virtual memory management: no current context needed

DRIVER(cuMemAddressReserve, 10020, Address* address, std::size_t bytes, std::size_t alignment, Address hint,
       unsigned long long flags) {
  ENTER(need_init | need_sound)
  if (flags != 0) {
    return invalid_value;
  }
  return settings().vmm ? memory().reserve(bytes, alignment, hint, address) : not_supported;
}

DRIVER(cuMemAddressFree, 10020, Address address, std::size_t bytes) {
  ENTER(need_init | need_sound)
  return memory().free_range(address, bytes);
}

DRIVER(cuMemCreate, 10020, std::uint64_t* handle, std::size_t bytes, const AllocationProperties* properties,
       unsigned long long flags) {
  ENTER(need_init | need_sound)
  if (flags != 0 || properties == nullptr || properties->type != 1 || (properties->handle_types & ~1) != 0) {
    return properties != nullptr && properties->type == 1 && flags == 0 ? not_supported : invalid_value;
  }
  return memory().create(bytes, properties->location.type, properties->location.id, properties->handle_types == 1,
                         handle);
}

DRIVER(cuMemRelease, 10020, std::uint64_t handle) {
  ENTER(need_init | need_sound)
  return memory().release(handle);
}

DRIVER(cuMemMap, 10020, Address address, std::size_t bytes, std::size_t offset, std::uint64_t handle,
       unsigned long long flags) {
  ENTER(need_init | need_sound)
  return flags != 0 ? invalid_value : memory().map(address, bytes, offset, handle);
}

DRIVER(cuMemUnmap, 10020, Address address, std::size_t bytes) {
  ENTER(need_init | need_sound)
  pass_for_handles("cuMemUnmap", address, bytes);
  return memory().unmap(address, bytes);
}

DRIVER(cuMemSetAccess, 10020, Address address, std::size_t bytes, const AccessDescription* descriptions,
       std::size_t count) {
  ENTER(need_init | need_sound)
  if (descriptions == nullptr || count == 0) {
    return invalid_value;
  }
  pass_for_handles("cuMemSetAccess", address, bytes);
  for (std::size_t i = 0; i < count; ++i) {
    const Location& location = descriptions[i].location;
    const bool host = location.type == 2 || location.type == 3;
    if (!host && (location.type != 1 || machine().device(location.id) == nullptr)) {
      return invalid_device;
    }
    const int who = host ? host_device : location.id;
    const int access = descriptions[i].flags;
    // What is mapped is taken away and mapped anew: 580.159 does so, by its system calls.
    if (memory().is_accessible_otherwise(address, bytes, who, access) &&
        memory().set_access(address, bytes, who, access_none) == success) {
      machine().pass();
    }
    if (const int code = memory().set_access(address, bytes, who, access)) {
      return code;
    }
  }
  return success;
}

DRIVER(cuMemGetAccess, 10020, unsigned long long* flags, const Location* location, Address address) {
  ENTER(need_init | need_sound)
  int access = 0;
  const int code = memory().get_access(address, location->type == 1 ? location->id : host_device, &access);
  *flags = static_cast<unsigned long long>(access);
  return code;
}

DRIVER(cuMemGetAllocationGranularity, 10020, std::size_t* bytes, const AllocationProperties* properties, int option) {
  ENTER(need_init | need_sound)
  if (properties == nullptr || properties->type != 1 || (option != 0 && option != 1)) {
    return invalid_value;
  }
  if (!settings().vmm || (properties->location.type != 1 && !settings().host_vmm)) {
    return not_supported;
  }
  *bytes = granule;
  return success;
}

DRIVER(cuMemGetAllocationPropertiesFromHandle, 10020, AllocationProperties* properties, std::uint64_t handle) {
  ENTER(need_init | need_sound)
  const std::shared_ptr<Physical> physical = memory().of_handle(handle);
  if (physical == nullptr) {
    return invalid_value;
  }
  *properties = {};
  properties->type = 1;
  properties->handle_types = physical->exportable ? 1 : 0;
  properties->location = {physical->location_type, physical->location_id};
  return success;
}

DRIVER(cuMemRetainAllocationHandle, 11000, std::uint64_t* handle, void* address) {
  ENTER(need_init | need_sound)
  return memory().retain_at(reinterpret_cast<Address>(address), handle);
}

DRIVER(cuMemExportToShareableHandle, 10020, void* out, std::uint64_t handle, int type, unsigned long long flags) {
  ENTER(need_init | need_sound)
  if (flags != 0 || type != 1) {
    return type != 1 ? not_supported : invalid_value;
  }
  return memory().export_fd(handle, static_cast<int*>(out));
}

DRIVER(cuMemImportFromShareableHandle, 10020, std::uint64_t* handle, void* from, int type) {
  ENTER(need_init | need_sound)
  if (type != 1) {
    return not_supported;
  }
  return memory().import_fd(static_cast<int>(reinterpret_cast<std::intptr_t>(from)), handle);
}

// --- copies and fills

DRIVER(cuMemcpy, 4000, Address to, Address from, std::size_t bytes) {
  ENTER(need_all)
  return api_copy(current_device()->legacy, to, from, bytes, false);
}

DRIVER(cuMemcpyHtoD_v2, 3020, Address to, const void* from, std::size_t bytes) {
  ENTER(need_all)
  return api_copy(current_device()->legacy, to, reinterpret_cast<Address>(from), bytes, false);
}

DRIVER(cuMemcpyDtoH_v2, 3020, void* to, Address from, std::size_t bytes) {
  ENTER(need_all)
  return api_copy(current_device()->legacy, reinterpret_cast<Address>(to), from, bytes, false);
}

DRIVER(cuMemcpyDtoD_v2, 3020, Address to, Address from, std::size_t bytes) {
  ENTER(need_all)
  return api_copy(current_device()->legacy, to, from, bytes, false);
}

DRIVER(cuMemcpyAsync, 4000, Address to, Address from, std::size_t bytes, void* handle) {
  ENTER(need_all)
  STREAM(stream, handle)
  return api_copy(stream, to, from, bytes, true);
}

DRIVER(cuMemcpyHtoDAsync_v2, 3020, Address to, const void* from, std::size_t bytes, void* handle) {
  ENTER(need_all)
  STREAM(stream, handle)
  return api_copy(stream, to, reinterpret_cast<Address>(from), bytes, true);
}

DRIVER(cuMemcpyDtoHAsync_v2, 3020, void* to, Address from, std::size_t bytes, void* handle) {
  ENTER(need_all)
  STREAM(stream, handle)
  return api_copy(stream, reinterpret_cast<Address>(to), from, bytes, true);
}

DRIVER(cuMemcpyDtoDAsync_v2, 3020, Address to, Address from, std::size_t bytes, void* handle) {
  ENTER(need_all)
  STREAM(stream, handle)
  return api_copy(stream, to, from, bytes, true);
}

DRIVER(cuMemcpyPeer, 4000, Address to, void* to_context, Address from, void* from_context, std::size_t bytes) {
  ENTER(need_all)
  return is_context(to_context) && is_context(from_context) ? api_copy(current_device()->legacy, to, from, bytes, false)
                                                            : invalid_context;
}

DRIVER(cuMemcpyPeerAsync, 4000, Address to, void* to_context, Address from, void* from_context, std::size_t bytes,
       void* handle) {
  ENTER(need_all)
  STREAM(stream, handle)
  return is_context(to_context) && is_context(from_context) ? api_copy(stream, to, from, bytes, true) : invalid_context;
}

DRIVER(cuMemsetD8_v2, 3020, Address to, unsigned char value, std::size_t count) {
  ENTER(need_all)
  return api_fill(current_device()->legacy, to, value, 1, count);
}

DRIVER(cuMemsetD32_v2, 3020, Address to, unsigned value, std::size_t count) {
  ENTER(need_all)
  return api_fill(current_device()->legacy, to, value, 4, count);
}

DRIVER(cuMemsetD8Async, 3020, Address to, unsigned char value, std::size_t count, void* handle) {
  ENTER(need_all)
  STREAM(stream, handle)
  return api_fill(stream, to, value, 1, count);
}

DRIVER(cuMemsetD16Async, 3020, Address to, unsigned short value, std::size_t count, void* handle) {
  ENTER(need_all)
  STREAM(stream, handle)
  return api_fill(stream, to, value, 2, count);
}

DRIVER(cuMemsetD32Async, 3020, Address to, unsigned value, std::size_t count, void* handle) {
  ENTER(need_all)
  STREAM(stream, handle)
  return api_fill(stream, to, value, 4, count);
}

DRIVER(cuStreamWriteValue32, 8000, void* handle, Address to, unsigned value, unsigned flags) {
  ENTER(need_all)
  (void)flags;
  STREAM(stream, handle)
  return api_fill(stream, to, value, 4, 1);
}

DRIVER(cuStreamWriteValue32_v2, 11070, void* handle, Address to, unsigned value, unsigned flags) {
  ENTER(need_all)
  (void)flags;
  STREAM(stream, handle)
  return api_fill(stream, to, value, 4, 1);
}

// --- memory in the order of streams

DRIVER(cuMemAllocAsync, 11020, Address* address, std::size_t bytes, void* handle) {
  ENTER(need_all)
  STREAM(stream, handle)
  return api_pool_allocate(stream, bytes, address);
}

DRIVER(cuMemFreeAsync, 11020, Address address, void* handle) {
  ENTER(need_all)
  STREAM(stream, handle)
  return api_pool_free(stream, address);
}

// --- streams and events

DRIVER(cuStreamCreate, 2000, void** stream, unsigned flags) {
  ENTER(need_all)
  return flags > 1 ? invalid_value : machine().create_stream(current_device(), flags, 0, stream);
}

DRIVER(cuStreamCreateWithPriority, 5050, void** stream, unsigned flags, int priority) {
  ENTER(need_all)
  return flags > 1 ? invalid_value : machine().create_stream(current_device(), flags, priority, stream);
}

DRIVER(cuStreamDestroy_v2, 4000, void* handle) {
  ENTER(need_all)
  STREAM(stream, handle)
  return machine().destroy_stream(stream);
}

DRIVER(cuStreamQuery, 2000, void* handle) {
  ENTER(need_all)
  STREAM(stream, handle)
  return machine().query_stream(stream);
}

DRIVER(cuStreamSynchronize, 2000, void* handle) {
  ENTER(need_all)
  STREAM(stream, handle)
  return machine().synchronize_stream(stream);
}

DRIVER(cuStreamWaitEvent, 3020, void* handle, Event* event, unsigned flags) {
  ENTER(need_all)
  (void)flags;
  STREAM(stream, handle)
  return machine().wait_event(stream, event, true);
}

DRIVER(cuStreamGetCtx, 9020, void* handle, Device** context) {
  ENTER(need_all)
  STREAM(stream, handle)
  *context = stream->device;
  return success;
}

DRIVER(cuStreamGetFlags, 5050, void* handle, unsigned* flags) {
  ENTER(need_all)
  STREAM(stream, handle)
  *flags = stream->flags;
  return success;
}

DRIVER(cuStreamGetPriority, 5050, void* handle, int* priority) {
  ENTER(need_all)
  STREAM(stream, handle)
  *priority = stream->priority;
  return success;
}

DRIVER(cuStreamGetId, 12000, void* handle, unsigned long long* id) {
  ENTER(need_all)
  STREAM(stream, handle)
  *id = stream->id;
  return success;
}

DRIVER(cuStreamAddCallback, 5000, void* handle, void (*function)(void*, int, void*), void* data, unsigned flags) {
  ENTER(need_all)
  (void)flags;
  STREAM(stream, handle)
  return api_callback(stream, function, handle, data);
}

DRIVER(cuLaunchHostFunc, 10000, void* handle, void (*function)(void*), void* data) {
  ENTER(need_all)
  STREAM(stream, handle)
  return api_host_function(stream, function, data);
}

DRIVER(cuEventCreate, 2000, Event** event, unsigned flags) {
  ENTER(need_all)
  return flags > 7 ? invalid_value : machine().create_event(current_device(), flags, event);
}

DRIVER(cuEventDestroy_v2, 4000, Event* event) {
  ENTER(need_all)
  return machine().destroy_event(event);
}

DRIVER(cuEventRecord, 2000, Event* event, void* handle) {
  ENTER(need_all)
  STREAM(stream, handle)
  return machine().record(event, stream);
}

DRIVER(cuEventRecordWithFlags, 11010, Event* event, void* handle, unsigned flags) {
  ENTER(need_all)
  (void)flags;
  STREAM(stream, handle)
  return machine().record(event, stream);
}

DRIVER(cuEventQuery, 2000, Event* event) {
  ENTER(need_all)
  return machine().query_event(event, true);
}

DRIVER(cuEventSynchronize, 2000, Event* event) {
  ENTER(need_all)
  return machine().synchronize_event(event, true);
}

DRIVER(cuEventElapsedTime, 2000, float* ms, Event* from, Event* to) {
  ENTER(need_all)
  return machine().elapsed(from, to, ms);
}

// --- capture and graphs

DRIVER(cuThreadExchangeStreamCaptureMode, 10010, int* mode) {
  ENTER(need_init)
  return machine().exchange_mode(mode);
}

DRIVER(cuStreamBeginCapture_v2, 10010, void* handle, int mode) {
  ENTER(need_all)
  STREAM(stream, handle)
  return machine().begin_capture(stream, mode, nullptr);
}

DRIVER(cuStreamEndCapture, 10000, void* handle, Graph** graph) {
  ENTER(need_all)
  STREAM(stream, handle)
  return machine().end_capture(stream, graph);
}

DRIVER(cuStreamIsCapturing, 10000, void* handle, int* status) {
  ENTER(need_all)
  STREAM(stream, handle)
  std::uint64_t id = 0;
  Graph* graph = nullptr;
  std::vector<Node*> tail;
  return machine().capture_status(stream, status, &id, &graph, &tail);
}

DRIVER(cuStreamGetCaptureInfo_v2, 11030, void* handle, int* status, unsigned long long* id, Graph** graph, Node*** tail,
       std::size_t* count) {
  ENTER(need_all)
  STREAM(stream, handle)
  return api_capture_info(stream, status, id, graph, tail, nullptr, count);
}

DRIVER(cuStreamGetCaptureInfo_v3, 12030, void* handle, int* status, unsigned long long* id, Graph** graph, Node*** tail,
       void** edges, std::size_t* count) {
  ENTER(need_all)
  STREAM(stream, handle)
  return api_capture_info(stream, status, id, graph, tail, edges, count);
}

DRIVER(cuGraphCreate, 10000, Graph** graph, unsigned flags) {
  ENTER(need_init)
  (void)flags;
  return machine().create_graph(graph);
}

DRIVER(cuGraphDestroy, 10000, Graph* graph) {
  ENTER(need_init)
  return machine().destroy_graph(graph);
}

DRIVER(cuGraphInstantiateWithFlags, 11040, GraphExec** exec, Graph* graph, unsigned long long flags) {
  ENTER(need_all)
  (void)flags;
  return machine().instantiate(graph, exec);
}

DRIVER(cuGraphLaunch, 10000, GraphExec* exec, void* handle) {
  ENTER(need_all)
  STREAM(stream, handle)
  return machine().launch(exec, stream);
}

DRIVER(cuGraphExecDestroy, 10000, GraphExec* exec) {
  ENTER(need_init)
  return machine().destroy_exec(exec);
}

// --- what a pointer is

namespace {

int pointer_attribute(void* data, int attribute, Address address) {
  const PointerInfo info = api_pointer(address);
  const auto put = [data](auto value) {
    std::memcpy(data, &value, sizeof value);
    return static_cast<int>(success);
  };
  if (info.type == 0 && attribute != 13) {
    return invalid_value;
  }
  switch (attribute) {
    case 1:  // context
      return put(machine().device(info.device));
    case 2:  // 1: host, 2: device
      return put(info.type == 1 ? 1U : 2U);
    case 3:
      return put(info.device_pointer);
    case 4:
      return info.host_pointer == 0 ? static_cast<int>(invalid_value) : put(info.host_pointer);
    case 7:  // a number for the allocation
      return put(static_cast<unsigned long long>(info.start));
    case 8:  // managed; written as a 32-bit number
      return put(info.type == 3 ? 1U : 0U);
    case 9:
      return put(info.device);
    case 10: {  // can cudaIpcGetMemHandle be used
      return put(memory().is_plain(info.start) ? 1U : 0U);
    }
    case 11:
    case 19:
      return put(info.start);
    case 12:
    case 18:
      return put(static_cast<std::size_t>(info.bytes));
    case 13:
      return put(info.type != 0 ? 1U : 0U);
    default:
      return not_supported;
  }
}

}  // namespace

DRIVER(cuPointerGetAttribute, 4000, void* data, int attribute, Address address) {
  ENTER(need_all)
  return pointer_attribute(data, attribute, address);
}

DRIVER(cuPointerGetAttributes, 7000, unsigned count, const int* attributes, void** data, Address address) {
  ENTER(need_all)
  for (unsigned i = 0; i < count; ++i) {
    std::memset(data[i], 0, 4);
    pointer_attribute(data[i], attributes[i], address);
  }
  return success;
}

DRIVER(cuPointerSetAttribute, 6000, const void* value, int attribute, Address address) {
  ENTER(need_all)
  (void)value;
  (void)address;
  return attribute == 6 ? success : not_supported;
}

// --- modules and kernels: any image will do, the function's name is what counts

DRIVER(cuModuleLoad, 2000, Module** module, const char* file) {
  ENTER(need_all)
  (void)file;
  *module = new Module{0};
  return success;
}

DRIVER(cuModuleLoadData, 2000, Module** module, const void* image) {
  ENTER(need_all)
  *module = new Module{0};
  return image == nullptr ? invalid_value : success;
}

DRIVER(cuModuleLoadDataEx, 2010, Module** module, const void* image, unsigned count, int* options, void** values) {
  ENTER(need_all)
  (void)count;
  (void)options;
  (void)values;
  *module = new Module{0};
  return image == nullptr ? invalid_value : success;
}

DRIVER(cuModuleUnload, 2000, Module* module) {
  ENTER(need_all)
  delete module;
  return success;
}

DRIVER(cuModuleGetFunction, 2000, FunctionHandle** function, Module* module, const char* name) {
  ENTER(need_all)
  (void)module;
  *function = intern(name);
  return success;
}

DRIVER(cuFuncGetAttribute, 2020, int* value, int attribute, FunctionHandle* function) {
  ENTER(need_all)
  (void)function;
  // 0: threads per block; 4: registers; 5, 6: versions
  *value = attribute == 0                     ? 1024
           : attribute == 4                   ? 32
           : attribute == 5 || attribute == 6 ? settings().capability.load()
                                              : 0;
  return success;
}

DRIVER(cuFuncSetAttribute, 9000, FunctionHandle* function, int attribute, int value) {
  ENTER(need_all)
  (void)function;
  (void)attribute;
  (void)value;
  return success;
}

DRIVER(cuFuncSetCacheConfig, 3000, FunctionHandle* function, int config) {
  ENTER(need_all)
  (void)function;
  (void)config;
  return success;
}

DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, int* blocks, FunctionHandle* function, int block_size,
       std::size_t shared_bytes) {
  ENTER(need_all)
  (void)function;
  (void)block_size;
  (void)shared_bytes;
  *blocks = 2;
  return success;
}

namespace {

int launch(FunctionHandle* function, const unsigned* grid, const unsigned* block, unsigned shared_bytes, void* handle,
           void** arguments, void** extra) {
  STREAM(stream, handle)
  if (extra != nullptr) {
    return not_supported;
  }
  return api_launch(function->name, stream, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared_bytes,
                    arguments);
}

}  // namespace

DRIVER(cuLaunchKernel, 4000, FunctionHandle* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
       unsigned bz, unsigned shared_bytes, void* handle, void** arguments, void** extra) {
  ENTER(need_all)
  const unsigned grid[3] = {gx, gy, gz};
  const unsigned block[3] = {bx, by, bz};
  return launch(function, grid, block, shared_bytes, handle, arguments, extra);
}

DRIVER(cuLaunchCooperativeKernel, 9000, FunctionHandle* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
       unsigned by, unsigned bz, unsigned shared_bytes, void* handle, void** arguments) {
  ENTER(need_all)
  const unsigned grid[3] = {gx, gy, gz};
  const unsigned block[3] = {bx, by, bz};
  return launch(function, grid, block, shared_bytes, handle, arguments, nullptr);
}

DRIVER(cuLaunchKernelEx, 11060, const LaunchConfig* config, FunctionHandle* function, void** arguments, void** extra) {
  ENTER(need_all)
  return launch(function, config->grid, config->block, config->shared_bytes, config->stream, arguments, extra);
}

// --- what libcaffe2_nvrtc.so links to and nothing can do here

DRIVER(cuLinkCreate_v2, 6050, unsigned, int*, void**, void**) {
  ENTER(need_init)
  return not_supported;
}
DRIVER(cuLinkAddData_v2, 6050, void*, int, void*, std::size_t, const char*, unsigned, int*, void**) {
  ENTER(need_init)
  return not_supported;
}
DRIVER(cuLinkComplete, 5050, void*, void**, std::size_t*) {
  ENTER(need_init)
  return not_supported;
}
DRIVER(cuTensorMapEncodeTiled, 12000, void*) {
  ENTER(need_init)
  return not_supported;
}

// --- functions by name

DRIVER(cuGetExportTable, 3000, const void** table, const void* id) {
  ENTER(need_nothing)
  (void)id;
  *table = nullptr;
  return not_found;
}

DRIVER(cuGetProcAddress, 11030, const char* symbol, void** function, int version, std::uint64_t flags) {
  ENTER(need_nothing)
  (void)flags;
  int status = 0;
  *function = api_entry(symbol, version, &status);
  return *function == nullptr ? not_found : success;
}

DRIVER(cuGetProcAddress_v2, 12000, const char* symbol, void** function, int version, std::uint64_t flags, int* status) {
  ENTER(need_nothing)
  (void)flags;
  int found = 0;
  *function = api_entry(symbol, version, &found);
  if (status != nullptr) {
    *status = found;
  }
  return success;
}

// libcudart.so.RELEASE: the runtime interface on top of the same simulation (libcuda.so.1). SIM_CUDART is the version,
// 13000 for example. The other functions that libcudart exports are refused by the generated refused.cc.
#include <cstring>
#include <unordered_map>
#include <vector>

#include "api.h"

using namespace sim;  // NOLINT: the whole file is about it

namespace {

using Result = int;

// Remembers the error for cudaGetLastError.
int keep(int code) {
  if (code != success) {
    last_error() = code;
  }
  return code;
}

// A runtime call gives the thread a context if it needs one.
int prepare(Site* site, unsigned needs) {
  if (const int refused = site->enter()) {
    return refused;
  }
  if ((needs & (need_init | need_context)) == 0) {
    return success;
  }
  if (const int code = machine().initialize()) {
    return code;
  }
  if (settings().driver_version / 1000 < SIM_CUDART / 1000) {
    return insufficient_driver;
  }
  if ((needs & need_context) != 0) {
    std::vector<Device*>& stack = context_stack();
    if (stack.empty()) {
      stack.push_back(machine().device(0));
    }
    if (!stack.back()->active()) {
      ++stack.back()->references;
    }
  }
  if ((needs & need_sound) != 0 && current_device() != nullptr) {
    return current_device()->error;
  }
  return success;
}

Stream* find_stream(void* handle) { return machine().stream(handle, current_device()); }

struct Kernels {
  std::mutex lock;
  std::unordered_map<const void*, std::string> names;  // by the address of the host's function
};

Kernels& kernels() {
  static Kernels* const all = new Kernels;
  return *all;
}

std::string kernel_name(const void* function) {
  const std::lock_guard<std::mutex> guard(kernels().lock);
  const auto found = kernels().names.find(function);
  return found == kernels().names.end() ? std::string("(not registered)") : found->second;
}

struct CallConfiguration {
  Dim grid;
  Dim block;
  std::size_t shared_bytes;
  void* stream;
};

std::vector<CallConfiguration>& configurations() {
  static thread_local std::vector<CallConfiguration> stack;
  return stack;
}

struct UserObject {
  void* pointer;
  void (*destroy)(void*);
  std::atomic<unsigned> references;
};

void drop(void* handle) {
  UserObject* object = static_cast<UserObject*>(handle);
  if (--object->references == 0) {
    object->destroy(object->pointer);
    delete object;
  }
}

struct LaunchConfig {
  Dim grid;
  Dim block;
  std::size_t shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

constexpr unsigned need_all = need_context | need_sound;
constexpr std::size_t ipc_handle_bytes = 64;
static_assert(sizeof(Token) <= ipc_handle_bytes, "a token must fit into a handle");

}  // namespace

#define RUNTIME(name, ...)                        \
  extern "C" SIM_PUBLIC Result name(__VA_ARGS__); \
  extern "C" SIM_PUBLIC Result name(__VA_ARGS__)

#define PREPARE(needs)                                     \
  static Site sim_site(__func__, need_nothing);            \
  if (const int sim_refused = prepare(&sim_site, needs)) { \
    return keep(sim_refused);                              \
  }

#define STREAM(variable, handle)                \
  Stream* const variable = find_stream(handle); \
  if (variable == nullptr) {                    \
    return keep(invalid_handle);                \
  }

// --- errors and versions

RUNTIME(cudaGetLastError, void) {
  const int error = last_error();
  const Device* device = current_device();
  last_error() = success;
  return device != nullptr && device->error != success ? device->error.load() : error;
}

RUNTIME(cudaPeekAtLastError, void) {
  const Device* device = current_device();
  return device != nullptr && device->error != success ? device->error.load() : last_error();
}

extern "C" SIM_PUBLIC const char* cudaGetErrorString(int code);
extern "C" SIM_PUBLIC const char* cudaGetErrorString(int code) {
  const char* text = code_sentence(code);
  return text == nullptr ? "unrecognized error code" : text;
}

extern "C" SIM_PUBLIC const char* cudaGetErrorName(int code);
extern "C" SIM_PUBLIC const char* cudaGetErrorName(int code) {
  const char* text = code_name(code);
  return text == nullptr ? "unrecognized error code" : text;
}

RUNTIME(cudaDriverGetVersion, int* version) {
  PREPARE(need_nothing)
  *version = settings().devices == 0 ? 0 : settings().driver_version.load();
  return success;
}

RUNTIME(cudaRuntimeGetVersion, int* version) {
  *version = SIM_CUDART;
  return success;
}

// --- devices

RUNTIME(cudaGetDeviceCount, int* count) {
  *count = 0;
  PREPARE(need_init)
  *count = machine().devices();
  return success;
}

RUNTIME(cudaGetDevice, int* device) {
  PREPARE(need_init)
  *device = current_device() == nullptr ? 0 : current_device()->index;
  return success;
}

RUNTIME(cudaSetDevice, int device) {
  PREPARE(need_init)
  Device* found = machine().device(device);
  if (found == nullptr) {
    return keep(invalid_device);
  }
  std::vector<Device*>& stack = context_stack();
  if (stack.empty()) {
    stack.push_back(found);
  } else {
    stack.back() = found;
  }
  if (!found->active()) {
    ++found->references;
  }
  return keep(found->error);
}

RUNTIME(cudaInitDevice, int device, unsigned, unsigned) {
  PREPARE(need_init)
  Device* found = machine().device(device);
  if (found == nullptr) {
    return keep(invalid_device);
  }
  if (!found->active()) {
    ++found->references;
  }
  return success;
}

RUNTIME(cudaDeviceSynchronize, void) {
  PREPARE(need_all)
  return keep(machine().synchronize_device(current_device()));
}

RUNTIME(cudaDeviceReset, void) {
  PREPARE(need_context)
  machine().reset_device(current_device());
  return success;
}

RUNTIME(cudaDeviceGetAttribute, int* value, int attribute, int device) {
  PREPARE(need_init)
  return keep(machine().device(device) == nullptr ? static_cast<int>(invalid_device)
                                                  : api_attribute(device, attribute, value));
}

RUNTIME(cudaDeviceGetPCIBusId, char* text, int bytes, int device) {
  PREPARE(need_init)
  std::strncpy(text, api_pci_bus_id(device).c_str(), static_cast<std::size_t>(bytes));
  return success;
}

RUNTIME(cudaDeviceGetStreamPriorityRange, int* least, int* greatest) {
  PREPARE(need_context)
  *least = 0;
  *greatest = -5;
  return success;
}

RUNTIME(cudaDeviceCanAccessPeer, int* can, int device, int peer) {
  PREPARE(need_init)
  *can = device != peer ? 1 : 0;
  return success;
}

RUNTIME(cudaDeviceEnablePeerAccess, int peer, unsigned flags) {
  PREPARE(need_all)
  const int device = current_device()->index;
  if (flags != 0 || machine().device(peer) == nullptr || peer == device) {
    return keep(flags != 0 ? invalid_value : invalid_device);
  }
  if (memory().peer(device, peer)) {
    return keep(peer_already_enabled);
  }
  memory().set_peer(device, peer, true);
  return success;
}

RUNTIME(cudaDeviceDisablePeerAccess, int peer) {
  PREPARE(need_all)
  const int device = current_device()->index;
  if (machine().device(peer) == nullptr || !memory().peer(device, peer)) {
    return keep(peer_not_enabled);
  }
  memory().set_peer(device, peer, false);
  return success;
}

namespace {

// cudaDeviceProp grew, and lies differently since 13: offsets of its members, as the compiler gives them for the
// headers.
int properties(char* to, int device) {
  if (machine().device(device) == nullptr) {
    return invalid_device;
  }
  constexpr bool new_layout = SIM_CUDART >= 13000;
  constexpr std::size_t bytes = new_layout ? 1008 : SIM_CUDART >= 12000 ? 1032 : SIM_CUDART >= 11000 ? 728 : 712;
  std::memset(to, 0, bytes);
  const auto put = [to](std::size_t offset, auto value) { std::memcpy(to + offset, &value, sizeof value); };
  const auto put_attribute = [&](std::size_t offset, int attribute) {
    int value = 0;
    api_attribute(device, attribute, &value);
    put(offset, value);
  };
  std::strcpy(to, "Simulated CUDA");
  std::memset(to + 256, device + 1, 16);  // uuid
  put(288, static_cast<std::size_t>(settings().memory));
  put(296, std::size_t{49152});  // sharedMemPerBlock
  put_attribute(304, 12);        // regsPerBlock
  put_attribute(308, 10);        // warpSize
  put(312, std::size_t{2147483647});
  put_attribute(320, 1);  // maxThreadsPerBlock
  put_attribute(324, 2);  // maxThreadsDim
  put_attribute(328, 3);
  put_attribute(332, 4);
  put_attribute(336, 5);  // maxGridSize
  put_attribute(340, 6);
  put_attribute(344, 7);
  put(352, std::size_t{65536});  // totalConstMem
  put_attribute(360, 75);        // major
  put_attribute(364, 76);        // minor
  put(368, std::size_t{512});    // textureAlignment
  struct Row {
    std::size_t offset_12;
    std::size_t offset_13;
    int attribute;
  };
  static constexpr Row rows[] = {
      {388, 384, 16},   // multiProcessorCount
      {400, 392, 19},   // canMapHostMemory
      {576, 560, 31},   // concurrentKernels
      {584, 568, 33},   // pciBusID
      {600, 584, 40},   // asyncEngineCount
      {604, 588, 41},   // unifiedAddressing
      {612, 592, 37},   // memoryBusWidth
      {616, 596, 38},   // l2CacheSize
      {624, 604, 39},   // maxThreadsPerMultiProcessor
      {648, 632, 82},   // regsPerMultiprocessor
      {652, 636, 83},   // managedMemory
      {688, 668, 95},   // cooperativeLaunch
      {712, 688, 106},  // maxBlocksPerMultiProcessor
      {728, 704, 99},   // hostRegisterSupported
      {744, 720, 115},  // memoryPoolsSupported
  };
  for (const Row& row : rows) {
    const std::size_t offset = new_layout ? row.offset_13 : row.offset_12;
    if (offset < bytes) {
      put_attribute(SIM_CUDART < 11000 && row.attribute == 39 ? offset - 4 : offset, row.attribute);
    }
  }
  put(new_layout ? 624 : 640, std::size_t{167936});  // sharedMemPerMultiprocessor
  put(new_layout ? 672 : 696, std::size_t{167936});  // sharedMemPerBlockOptin
  return success;
}

}  // namespace

#if SIM_CUDART >= 13000 || SIM_CUDART < 12000
RUNTIME(cudaGetDeviceProperties, char* to, int device) {
#else
RUNTIME(cudaGetDeviceProperties_v2, char* to, int device) {
#endif
  PREPARE(need_init)
  return keep(properties(to, device));
}

// --- memory

RUNTIME(cudaMemGetInfo, std::size_t* free, std::size_t* total) {
  PREPARE(need_all)
  *total = settings().memory;
  *free = *total - memory().used_by_all(current_device()->index);
  return success;
}

RUNTIME(cudaMalloc, Address* address, std::size_t bytes) {
  PREPARE(need_all)
  return keep(api_allocate(current_device(), bytes, address));
}

RUNTIME(cudaFree, Address address) {
  PREPARE(need_all)
  return keep(api_free(current_device(), address));
}

RUNTIME(cudaMallocManaged, void** address, std::size_t bytes, unsigned) {
  PREPARE(need_all)
  return keep(api_host_allocate(current_device(), bytes, 0, HostKind::managed, address));
}

RUNTIME(cudaMallocHost, void** address, std::size_t bytes) {
  PREPARE(need_all)
  return keep(api_host_allocate(current_device(), bytes, 0, HostKind::allocated, address));
}

RUNTIME(cudaHostAlloc, void** address, std::size_t bytes, unsigned flags) {
  PREPARE(need_all)
  return keep(flags > 7 ? static_cast<int>(invalid_value)
                        : api_host_allocate(current_device(), bytes, flags, HostKind::allocated, address));
}

RUNTIME(cudaFreeHost, void* address) {
  PREPARE(need_all)
  return keep(api_host_free(current_device(), address));
}

RUNTIME(cudaHostRegister, void* address, std::size_t bytes, unsigned flags) {
  PREPARE(need_all)
  if (flags > 15) {
    return keep(invalid_value);
  }
  const int refused = machine().unsafe_call();
  return keep(refused != success ? refused : memory().host_register(address, bytes, flags, current_device()->index));
}

RUNTIME(cudaHostUnregister, void* address) {
  PREPARE(need_all)
  const int refused = machine().unsafe_call();
  return keep(refused != success ? refused : memory().host_unregister(address));
}

RUNTIME(cudaHostGetDevicePointer, Address* device_address, void* address, unsigned) {
  PREPARE(need_all)
  *device_address = reinterpret_cast<Address>(address);
  return keep(memory().is_pinned(*device_address, 1) ? success : invalid_value);
}

RUNTIME(cudaHostGetFlags, unsigned* flags, void* address) {
  PREPARE(need_all)
  std::uint64_t start = 0;
  HostRange range;
  if (!memory().host_range(reinterpret_cast<Address>(address), &start, &range)) {
    return keep(invalid_value);
  }
  *flags = range.flags;
  return success;
}

RUNTIME(cudaPointerGetAttributes, char* to, Address address) {
  PREPARE(need_all)
  const PointerInfo info = api_pointer(address);
  constexpr bool old_layout =
      SIM_CUDART < 11000;  // begins with an older form of the type, and ends with one more member
  if (old_layout && info.type == 0) {
    return keep(invalid_value);  // ordinary memory was unknown
  }
  std::memset(to, 0, SIM_CUDART >= 13000 ? 88 : old_layout ? 40 : 24);
  std::memcpy(to, &info.type, 4);
  std::memcpy(to + (old_layout ? 4 : 0), &info.type, 4);
  std::memcpy(to + (old_layout ? 8 : 4), &info.device, 4);
  const Address host = info.type == 0 ? address : info.host_pointer;
  std::memcpy(to + (old_layout ? 16 : 8), &info.device_pointer, 8);
  std::memcpy(to + (old_layout ? 24 : 16), &host, 8);
  return success;
}

RUNTIME(cudaIpcGetMemHandle, char* handle, Address address) {
  PREPARE(need_all)
  Token token = {};
  const int code = memory().ipc_token(address, &token);
  std::memset(handle, 0, ipc_handle_bytes);
  std::memcpy(handle, &token, sizeof token);
  return keep(code);
}

struct IpcHandle {
  char bytes[ipc_handle_bytes];
};

RUNTIME(cudaIpcOpenMemHandle, Address* address, IpcHandle handle, unsigned) {
  PREPARE(need_all)
  Token token = {};
  std::memcpy(&token, handle.bytes, sizeof token);
  return keep(memory().ipc_open(token, current_device()->index, address));
}

RUNTIME(cudaIpcCloseMemHandle, Address address) {
  PREPARE(need_all)
  return keep(memory().ipc_close(address));
}

// --- pools

RUNTIME(cudaDeviceGetDefaultMemPool, Pool** pool, int device) {
  PREPARE(need_init)
  *pool = api_pool(device);
  return success;
}

RUNTIME(cudaDeviceGetMemPool, Pool** pool, int device) {
  PREPARE(need_init)
  *pool = api_pool(device);
  return success;
}

RUNTIME(cudaMemPoolGetAttribute, Pool* pool, int attribute, std::uint64_t* value) {
  PREPARE(need_init)
  return keep(api_pool_get(pool, attribute, value));
}

RUNTIME(cudaMemPoolSetAttribute, Pool* pool, int attribute, const void* value) {
  PREPARE(need_init)
  std::uint64_t number = 0;
  std::memcpy(&number, value, attribute >= 4 ? 8 : 4);
  return keep(api_pool_set(pool, attribute, number));
}

RUNTIME(cudaMemPoolSetAccess, Pool*, const void*, std::size_t) {
  PREPARE(need_init)
  return success;
}

RUNTIME(cudaMemPoolTrimTo, Pool*, std::size_t) {
  PREPARE(need_init)
  return success;
}

RUNTIME(cudaMallocAsync, Address* address, std::size_t bytes, void* handle) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(api_pool_allocate(stream, bytes, address));
}

RUNTIME(cudaFreeAsync, Address address, void* handle) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(api_pool_free(stream, address));
}

RUNTIME(cudaDeviceGetGraphMemAttribute, int, int, std::uint64_t* value) {
  PREPARE(need_init)
  *value = 0;
  return success;
}

RUNTIME(cudaDeviceSetGraphMemAttribute, int, int, void*) {
  PREPARE(need_init)
  return success;
}

// --- copies and fills

RUNTIME(cudaMemcpy, Address to, Address from, std::size_t bytes, int) {
  PREPARE(need_all)
  return keep(api_copy(current_device()->legacy, to, from, bytes, false));
}

RUNTIME(cudaMemcpyAsync, Address to, Address from, std::size_t bytes, int, void* handle) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(api_copy(stream, to, from, bytes, true));
}

RUNTIME(cudaMemcpyPeer, Address to, int, Address from, int, std::size_t bytes) {
  PREPARE(need_all)
  return keep(api_copy(current_device()->legacy, to, from, bytes, false));
}

RUNTIME(cudaMemcpyPeerAsync, Address to, int, Address from, int, std::size_t bytes, void* handle) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(api_copy(stream, to, from, bytes, true));
}

RUNTIME(cudaMemcpy2D, Address to, std::size_t to_pitch, Address from, std::size_t from_pitch, std::size_t width,
        std::size_t rows, int) {
  PREPARE(need_all)
  return keep(api_copy_rows(current_device()->legacy, to, to_pitch, from, from_pitch, width, rows, false));
}

RUNTIME(cudaMemcpy2DAsync, Address to, std::size_t to_pitch, Address from, std::size_t from_pitch, std::size_t width,
        std::size_t rows, int, void* handle) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(api_copy_rows(stream, to, to_pitch, from, from_pitch, width, rows, true));
}

RUNTIME(cudaMemset, Address to, int value, std::size_t count) {
  PREPARE(need_all)
  return keep(api_fill(current_device()->legacy, to, static_cast<unsigned char>(value), 1, count));
}

RUNTIME(cudaMemsetAsync, Address to, int value, std::size_t count, void* handle) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(api_fill(stream, to, static_cast<unsigned char>(value), 1, count));
}

// --- streams and events

RUNTIME(cudaStreamCreate, void** stream) {
  PREPARE(need_all)
  return keep(machine().create_stream(current_device(), 0, 0, stream));
}

RUNTIME(cudaStreamCreateWithFlags, void** stream, unsigned flags) {
  PREPARE(need_all)
  return keep(flags > 1 ? static_cast<int>(invalid_value)
                        : machine().create_stream(current_device(), flags, 0, stream));
}

RUNTIME(cudaStreamCreateWithPriority, void** stream, unsigned flags, int priority) {
  PREPARE(need_all)
  return keep(flags > 1 ? static_cast<int>(invalid_value)
                        : machine().create_stream(current_device(), flags, priority, stream));
}

RUNTIME(cudaStreamDestroy, void* handle) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(machine().destroy_stream(stream));
}

RUNTIME(cudaStreamQuery, void* handle) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(machine().query_stream(stream));
}

RUNTIME(cudaStreamSynchronize, void* handle) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(machine().synchronize_stream(stream));
}

RUNTIME(cudaStreamWaitEvent, void* handle, Event* event, unsigned) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(machine().wait_event(stream, event, false));
}

RUNTIME(cudaStreamGetPriority, void* handle, int* priority) {
  PREPARE(need_all)
  STREAM(stream, handle)
  *priority = stream->priority;
  return success;
}

RUNTIME(cudaStreamGetFlags, void* handle, unsigned* flags) {
  PREPARE(need_all)
  STREAM(stream, handle)
  *flags = stream->flags;
  return success;
}

RUNTIME(cudaStreamGetId, void* handle, unsigned long long* id) {
  PREPARE(need_all)
  STREAM(stream, handle)
  *id = stream->id;
  return success;
}

RUNTIME(cudaStreamAddCallback, void* handle, void (*function)(void*, int, void*), void* data, unsigned) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(api_callback(stream, function, handle, data));
}

RUNTIME(cudaLaunchHostFunc, void* handle, void (*function)(void*), void* data) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(api_host_function(stream, function, data));
}

RUNTIME(cudaEventCreate, Event** event) {
  PREPARE(need_all)
  return keep(machine().create_event(current_device(), 0, event));
}

RUNTIME(cudaEventCreateWithFlags, Event** event, unsigned flags) {
  PREPARE(need_all)
  return keep(flags > 7 ? static_cast<int>(invalid_value) : machine().create_event(current_device(), flags, event));
}

RUNTIME(cudaEventDestroy, Event* event) {
  PREPARE(need_all)
  return keep(machine().destroy_event(event));
}

RUNTIME(cudaEventRecord, Event* event, void* handle) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(machine().record(event, stream));
}

RUNTIME(cudaEventRecordWithFlags, Event* event, void* handle, unsigned) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(machine().record(event, stream));
}

RUNTIME(cudaEventQuery, Event* event) {
  PREPARE(need_all)
  return keep(machine().query_event(event, false));
}

RUNTIME(cudaEventSynchronize, Event* event) {
  PREPARE(need_all)
  return keep(machine().synchronize_event(event, false));
}

RUNTIME(cudaEventElapsedTime, float* ms, Event* from, Event* to) {
  PREPARE(need_all)
  return keep(machine().elapsed(from, to, ms));
}

// --- capture and graphs

RUNTIME(cudaThreadExchangeStreamCaptureMode, int* mode) {
  PREPARE(need_init)
  return keep(machine().exchange_mode(mode));
}

RUNTIME(cudaStreamBeginCapture, void* handle, int mode) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(machine().begin_capture(stream, mode, nullptr));
}

RUNTIME(cudaStreamBeginCaptureToGraph, void* handle, Graph* graph, Node* const*, const void*, std::size_t, int mode) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(machine().begin_capture(stream, mode, graph));
}

RUNTIME(cudaStreamEndCapture, void* handle, Graph** graph) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(machine().end_capture(stream, graph));
}

RUNTIME(cudaStreamIsCapturing, void* handle, int* status) {
  PREPARE(need_all)
  STREAM(stream, handle)
  std::uint64_t id = 0;
  Graph* graph = nullptr;
  std::vector<Node*> tail;
  return keep(machine().capture_status(stream, status, &id, &graph, &tail));
}

#if SIM_CUDART >= 13000
RUNTIME(cudaStreamGetCaptureInfo, void* handle, int* status, unsigned long long* id, Graph** graph, Node*** tail,
        void** edges, std::size_t* count) {
#else
RUNTIME(cudaStreamGetCaptureInfo_v3, void* handle, int* status, unsigned long long* id, Graph** graph, Node*** tail,
        void** edges, std::size_t* count) {
#endif
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(api_capture_info(stream, status, id, graph, tail, edges, count));
}

#if SIM_CUDART < 13000
RUNTIME(cudaStreamGetCaptureInfo_v2, void* handle, int* status, unsigned long long* id, Graph** graph, Node*** tail,
        std::size_t* count) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(api_capture_info(stream, status, id, graph, tail, nullptr, count));
}

RUNTIME(cudaStreamGetCaptureInfo, void* handle, int* status, unsigned long long* id) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(api_capture_info(stream, status, id, nullptr, nullptr, nullptr, nullptr));
}
#endif

// flags: 0 adds, 1 replaces
#if SIM_CUDART >= 13000
RUNTIME(cudaStreamUpdateCaptureDependencies, void* handle, Node** nodes, const void*, std::size_t count,
        unsigned flags) {
#else
RUNTIME(cudaStreamUpdateCaptureDependencies, void* handle, Node** nodes, std::size_t count, unsigned flags) {
#endif
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(machine().update_dependencies(stream, {nodes, nodes + count}, flags == 0));
}

RUNTIME(cudaGraphCreate, Graph** graph, unsigned) {
  PREPARE(need_init)
  return keep(machine().create_graph(graph));
}

RUNTIME(cudaGraphDestroy, Graph* graph) {
  PREPARE(need_init)
  return keep(machine().destroy_graph(graph));
}

RUNTIME(cudaGraphInstantiate, GraphExec** exec, Graph* graph, unsigned long long) {
  PREPARE(need_all)
  return keep(machine().instantiate(graph, exec));
}

RUNTIME(cudaGraphInstantiateWithFlags, GraphExec** exec, Graph* graph, unsigned long long) {
  PREPARE(need_all)
  return keep(machine().instantiate(graph, exec));
}

RUNTIME(cudaGraphLaunch, GraphExec* exec, void* handle) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(machine().launch(exec, stream));
}

RUNTIME(cudaGraphExecDestroy, GraphExec* exec) {
  PREPARE(need_init)
  return keep(machine().destroy_exec(exec));
}

RUNTIME(cudaGraphGetNodes, Graph* graph, Node** nodes, std::size_t* count) {
  PREPARE(need_init)
  if (nodes != nullptr) {
    for (std::size_t i = 0; i < *count && i < graph->nodes.size(); ++i) {
      nodes[i] = graph->nodes[i].get();
    }
  }
  *count = graph->nodes.size();
  return success;
}

#if SIM_CUDART >= 13000
RUNTIME(cudaGraphNodeGetDependencies, Node* node, Node** nodes, void*, std::size_t* count) {
#else
RUNTIME(cudaGraphNodeGetDependencies, Node* node, Node** nodes, std::size_t* count) {
#endif
  PREPARE(need_init)
  if (nodes != nullptr) {
    for (std::size_t i = 0; i < *count && i < node->dependencies.size(); ++i) {
      nodes[i] = node->dependencies[i];
    }
  }
  *count = node->dependencies.size();
  return success;
}

RUNTIME(cudaGraphNodeGetType, Node* node, int* type) {
  PREPARE(need_init)
  *type = static_cast<int>(node->kind);
  return success;
}

RUNTIME(cudaUserObjectCreate, UserObject** object, void* pointer, void (*destroy)(void*), unsigned references,
        unsigned) {
  PREPARE(need_init)
  *object = new UserObject{pointer, destroy, {references}};
  return success;
}

RUNTIME(cudaUserObjectRelease, UserObject* object, unsigned count) {
  PREPARE(need_init)
  while (count-- > 0) {
    drop(object);
  }
  return success;
}

RUNTIME(cudaGraphRetainUserObject, Graph* graph, UserObject* object, unsigned count, unsigned flags) {
  PREPARE(need_init)
  if (flags != 1) {  // 1: the caller's references move to the graph
    object->references += count;
  }
  for (unsigned i = 0; i < count; ++i) {
    graph->owned.emplace_back(drop, object);
  }
  return success;
}

// --- kernels

extern "C" SIM_PUBLIC void** __cudaRegisterFatBinary(void* binary);
extern "C" SIM_PUBLIC void** __cudaRegisterFatBinary(void* binary) { return new void*(binary); }
extern "C" SIM_PUBLIC void __cudaRegisterFatBinaryEnd(void** handle);
extern "C" SIM_PUBLIC void __cudaRegisterFatBinaryEnd(void**) {}
extern "C" SIM_PUBLIC void __cudaUnregisterFatBinary(void** handle);
extern "C" SIM_PUBLIC void __cudaUnregisterFatBinary(void** handle) { delete handle; }
extern "C" SIM_PUBLIC char __cudaInitModule(void** handle);
extern "C" SIM_PUBLIC char __cudaInitModule(void**) { return 1; }

extern "C" SIM_PUBLIC void __cudaRegisterFunction(void** handle, const void* function, char* device_function,
                                                  const char* name, int, void*, void*, void*, void*, int*);
extern "C" SIM_PUBLIC void __cudaRegisterFunction(void**, const void* function, char*, const char* name, int, void*,
                                                  void*, void*, void*, int*) {
  const std::lock_guard<std::mutex> guard(kernels().lock);
  kernels().names[function] = name;
}

extern "C" SIM_PUBLIC void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int);
extern "C" SIM_PUBLIC void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
extern "C" SIM_PUBLIC void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, std::size_t, int, int);
extern "C" SIM_PUBLIC void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, std::size_t, int, int) {}

RUNTIME(__cudaGetKernel, const void** kernel, const void* function) {
  *kernel = function;
  return success;
}

extern "C" SIM_PUBLIC unsigned __cudaPushCallConfiguration(Dim grid, Dim block, std::size_t shared_bytes, void* stream);
extern "C" SIM_PUBLIC unsigned __cudaPushCallConfiguration(Dim grid, Dim block, std::size_t shared_bytes,
                                                           void* stream) {
  configurations().push_back(CallConfiguration{grid, block, shared_bytes, stream});
  return 0;
}

RUNTIME(__cudaPopCallConfiguration, Dim* grid, Dim* block, std::size_t* shared_bytes, void** stream) {
  if (configurations().empty()) {
    return keep(52);  // missing configuration
  }
  const CallConfiguration top = configurations().back();
  configurations().pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *stream = top.stream;
  return success;
}

RUNTIME(cudaLaunchKernel, const void* function, Dim grid, Dim block, void** arguments, std::size_t shared_bytes,
        void* handle) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(api_launch(kernel_name(function), stream, grid, block, static_cast<unsigned>(shared_bytes), arguments));
}

RUNTIME(__cudaLaunchKernel, const void* function, Dim grid, Dim block, void** arguments, std::size_t shared_bytes,
        void* handle) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(api_launch(kernel_name(function), stream, grid, block, static_cast<unsigned>(shared_bytes), arguments));
}

RUNTIME(cudaLaunchCooperativeKernel, const void* function, Dim grid, Dim block, void** arguments,
        std::size_t shared_bytes, void* handle) {
  PREPARE(need_all)
  STREAM(stream, handle)
  return keep(api_launch(kernel_name(function), stream, grid, block, static_cast<unsigned>(shared_bytes), arguments));
}

RUNTIME(cudaLaunchKernelExC, const LaunchConfig* config, const void* function, void** arguments) {
  PREPARE(need_all)
  STREAM(stream, config->stream)
  return keep(api_launch(kernel_name(function), stream, config->grid, config->block,
                         static_cast<unsigned>(config->shared_bytes), arguments));
}

RUNTIME(cudaFuncGetAttributes, char* attributes, const void*) {
  PREPARE(need_all)
  std::memset(attributes, 0, 144);
  const int capability = settings().capability;
  const int values[] = {1024, 32, capability, capability};  // threads of a block, registers, PTX and binary version
  std::memcpy(attributes + 24, values, sizeof values);
  return success;
}

RUNTIME(cudaFuncSetAttribute, const void*, int, int) {
  PREPARE(need_all)
  return success;
}

RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessor, int* blocks, const void*, int, std::size_t) {
  PREPARE(need_all)
  *blocks = 2;
  return success;
}

RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, int* blocks, const void*, int, std::size_t, unsigned) {
  PREPARE(need_all)
  *blocks = 2;
  return success;
}

// --- driver functions by name

namespace {

int driver_entry(const char* symbol, void** function, unsigned version, int* status) {
  int found = 0;
  *function = api_entry(symbol, static_cast<int>(version), &found);
  if (status != nullptr) {
    *status = found;
  }
  return success;
}

}  // namespace

RUNTIME(cudaGetDriverEntryPoint, const char* symbol, void** function, unsigned long long, int* status) {
  PREPARE(need_nothing)
  return keep(driver_entry(symbol, function, SIM_CUDART, status));
}

RUNTIME(cudaGetDriverEntryPointByVersion, const char* symbol, void** function, unsigned version, unsigned long long,
        int* status) {
  PREPARE(need_nothing)
  return keep(driver_entry(symbol, function, version, status));
}

RUNTIME(cudaProfilerStart, void) { return success; }
RUNTIME(cudaProfilerStop, void) { return success; }

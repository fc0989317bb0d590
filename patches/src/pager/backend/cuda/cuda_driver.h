// The CUDA driver: its functions, found in libcuda.so.1 at run time, so that the pager needs no CUDA to be built and
// loads on machines without a GPU. The types and values declared here are the driver's, under names of our style.
//
// Thread-safe.
#ifndef LMS_CUDA_DRIVER_H
#define LMS_CUDA_DRIVER_H

#include <cstddef>
#include <cstdint>
#include <string>

namespace lms {

using CudaResult = int;
using CudaDeviceId = int;
using CudaAddress = unsigned long long;
using CudaMemory = unsigned long long;  // physical memory, mapped or not
using CudaContext = struct CudaContextObject*;
using CudaStream = struct CudaStreamObject*;
using CudaEvent = struct CudaEventObject*;

namespace cuda {

enum : CudaResult {
  success = 0,
  out_of_memory = 2,
  no_device = 100,
  invalid_device = 101,
  invalid_value = 1,
  first_of_lost = 700,  // with the context: an illegal address, an assertion of a kernel, a kernel that failed
  context_is_destroyed = 709,
  last_of_lost = 719,
  invalid_handle = 400,
  not_ready = 600,
  not_permitted = 800,
  not_supported = 801,
  stub_library = 34,
  stream_capture_implicit = 906
};

constexpr int version_with_virtual_memory = 10020;  // CUDA 10.2

enum : int {
  has_virtual_memory_management = 102,  // device attributes
  has_posix_file_handles = 103,
  has_virtual_host_memory = 141,
  allocation_pinned = 1,
  location_device = 1,
  location_host_node = 3,  // the number of a NUMA node of the host
  handle_none = 0,
  handle_posix_file = 1,
  access_read = 1,
  access_read_write = 3,
  granularity_minimum = 0,
  capture_none = 0,
  capture_relaxed = 2
};

enum : unsigned {
  stream_non_blocking = 1,
  event_blocking_sync = 1,
  event_disable_timing = 2,
  host_register_portable = 1,
};

// Handles that stand for streams which no call created.
constexpr std::uintptr_t stream_default = 0;
constexpr std::uintptr_t stream_legacy = 1;      // the same stream
constexpr std::uintptr_t stream_per_thread = 2;  // another one in every thread

struct Location {
  int type;
  int id;
};

struct AllocationProperties {
  int type;
  int handle_types;
  Location location;
  void* windows;
  unsigned char flags[8];
};

struct AccessDescription {
  Location location;
  int flags;
};

}  // namespace cuda

// The functions: all of them are in every driver since CUDA 10.2, but for one.
struct CudaDriver {
  CudaResult (*init)(unsigned flags) = nullptr;
  CudaResult (*driver_get_version)(int* version) = nullptr;
  CudaResult (*get_error_name)(CudaResult result, const char** name) = nullptr;
  CudaResult (*device_get)(CudaDeviceId* device, int ordinal) = nullptr;
  CudaResult (*device_get_count)(int* count) = nullptr;
  CudaResult (*device_get_attribute)(int* value, int attribute, CudaDeviceId device) = nullptr;
  CudaResult (*device_get_pci_bus_id)(char* text, int bytes, CudaDeviceId device) = nullptr;
  CudaResult (*device_get_uuid)(unsigned char* bytes, CudaDeviceId device) = nullptr;  // 16 of them
  CudaResult (*device_total_mem)(std::size_t* bytes, CudaDeviceId device) = nullptr;
  CudaResult (*device_can_access_peer)(int* can, CudaDeviceId device, CudaDeviceId peer) = nullptr;
  CudaResult (*device_primary_ctx_retain)(CudaContext* context, CudaDeviceId device) = nullptr;
  CudaResult (*device_primary_ctx_release)(CudaDeviceId device) = nullptr;
  CudaResult (*ctx_get_current)(CudaContext* context) = nullptr;
  CudaResult (*ctx_push_current)(CudaContext context) = nullptr;
  CudaResult (*ctx_pop_current)(CudaContext* context) = nullptr;
  CudaResult (*ctx_synchronize)() = nullptr;
  CudaResult (*thread_exchange_capture_mode)(int* mode) = nullptr;
  CudaResult (*stream_create_with_priority)(CudaStream* stream, unsigned flags, int priority) = nullptr;
  CudaResult (*ctx_get_stream_priority_range)(int* least, int* greatest) = nullptr;
  CudaResult (*stream_destroy)(CudaStream stream) = nullptr;
  CudaResult (*stream_get_id)(CudaStream stream, unsigned long long* id) = nullptr;  // null before CUDA 12.0
  CudaResult (*stream_wait_event)(CudaStream stream, CudaEvent event, unsigned flags) = nullptr;
  CudaResult (*stream_is_capturing)(CudaStream stream, int* status) = nullptr;
  CudaResult (*event_create)(CudaEvent* event, unsigned flags) = nullptr;
  CudaResult (*event_destroy)(CudaEvent event) = nullptr;
  CudaResult (*event_record)(CudaEvent event, CudaStream stream) = nullptr;
  CudaResult (*event_query)(CudaEvent event) = nullptr;
  CudaResult (*event_synchronize)(CudaEvent event) = nullptr;
  CudaResult (*mem_get_info)(std::size_t* free, std::size_t* total) = nullptr;
  CudaResult (*mem_get_allocation_granularity)(std::size_t* bytes, const cuda::AllocationProperties* properties,
                                               int option) = nullptr;
  CudaResult (*mem_address_reserve)(CudaAddress* address, std::size_t bytes, std::size_t alignment, CudaAddress wanted,
                                    unsigned long long flags) = nullptr;
  CudaResult (*mem_address_free)(CudaAddress address, std::size_t bytes) = nullptr;
  CudaResult (*mem_create)(CudaMemory* memory, std::size_t bytes, const cuda::AllocationProperties* properties,
                           unsigned long long flags) = nullptr;
  CudaResult (*mem_release)(CudaMemory memory) = nullptr;
  CudaResult (*mem_map)(CudaAddress address, std::size_t bytes, std::size_t offset, CudaMemory memory,
                        unsigned long long flags) = nullptr;
  CudaResult (*mem_unmap)(CudaAddress address, std::size_t bytes) = nullptr;
  CudaResult (*mem_set_access)(CudaAddress address, std::size_t bytes, const cuda::AccessDescription* descriptions,
                               std::size_t count) = nullptr;
  CudaResult (*mem_export)(void* handle, CudaMemory memory, int handle_type, unsigned long long flags) = nullptr;
  CudaResult (*mem_import)(CudaMemory* memory, void* handle, int handle_type) = nullptr;
  CudaResult (*memcpy_to_host)(void* to, CudaAddress from, std::size_t bytes, CudaStream stream) = nullptr;
  CudaResult (*memcpy_to_device)(CudaAddress to, const void* from, std::size_t bytes, CudaStream stream) = nullptr;
  CudaResult (*mem_host_register)(void* address, std::size_t bytes, unsigned flags) = nullptr;
  CudaResult (*mem_host_unregister)(void* address) = nullptr;

  // Null when there is no driver, or one that is too old; *error is then a sentence that says what to do.
  static const CudaDriver* load(std::string* error);

  // The driver's name of an error.
  std::string name(CudaResult result) const;
};

}  // namespace lms
#endif  // LMS_CUDA_DRIVER_H

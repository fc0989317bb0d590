// What the driver's and the runtime's interfaces have in common. Codes are CUresult, which cudaError_t equals.
#ifndef SIM_API_H
#define SIM_API_H

#include <cstddef>
#include <cstdint>
#include <string>

#include "calls.h"
#include "memory.h"
#include "streams.h"

namespace sim {

using Address = std::uint64_t;

struct Dim {
  unsigned x, y, z;
};

// What the next host function that this thread enqueues stands for; taken by it.
SIM_PUBLIC Cost& api_next_kernel();

SIM_PUBLIC int api_copy(Stream* stream, Address to, Address from, std::uint64_t bytes, bool async);
SIM_PUBLIC int api_copy_rows(Stream* stream, Address to, std::uint64_t to_pitch, Address from, std::uint64_t from_pitch,
                             std::uint64_t width, std::uint64_t rows, bool async);
SIM_PUBLIC int api_fill(Stream* stream, Address to, std::uint64_t value, unsigned width, std::uint64_t count);
SIM_PUBLIC int api_host_function(Stream* stream, void (*function)(void*), void* data);
SIM_PUBLIC int api_callback(Stream* stream, void (*function)(void*, int, void*), void* handle, void* data);

SIM_PUBLIC int api_allocate(Device* device, std::uint64_t bytes, Address* address);
SIM_PUBLIC int api_free(Device* device, Address address);
SIM_PUBLIC int api_host_allocate(Device* device, std::uint64_t bytes, unsigned flags, HostKind kind, void** address);
SIM_PUBLIC int api_host_free(Device* device, void* address);

struct Pool;  // a device's memory pool
SIM_PUBLIC Pool* api_pool(int device);
SIM_PUBLIC int api_pool_allocate(Stream* stream, std::uint64_t bytes, Address* address);
SIM_PUBLIC int api_pool_free(Stream* stream, Address address);
SIM_PUBLIC int api_pool_get(Pool* pool, int attribute, std::uint64_t* value);
SIM_PUBLIC int api_pool_set(Pool* pool, int attribute, std::uint64_t value);

SIM_PUBLIC int api_launch(const std::string& kernel, Stream* stream, Dim grid, Dim block, unsigned shared_bytes,
                          void** arguments);

SIM_PUBLIC int api_attribute(int device, int attribute, int* value);
SIM_PUBLIC std::string api_pci_bus_id(int device);

// What the stream is capturing. Any result may be null but the status; *tail is valid until the thread's next call.
SIM_PUBLIC int api_capture_info(Stream* stream, int* status, unsigned long long* id, Graph** graph, Node*** tail,
                                void** edges, std::size_t* count);

// Type as cudaMemoryType: 0 unregistered, 1 host, 2 device, 3 managed.
struct PointerInfo {
  int type = 0;
  int device = -2;
  Address device_pointer = 0;
  Address host_pointer = 0;
  Address start = 0;
  std::uint64_t bytes = 0;
};
SIM_PUBLIC PointerInfo api_pointer(Address address);

// A driver function by name, as cuGetProcAddress finds it. status: 0 found, 1 no such function, 2 version too low.
SIM_PUBLIC void* api_entry(const char* symbol, int version, int* status);

struct Entry {
  Entry(const char* name, int since, void* function);
};

}  // namespace sim
#endif  // SIM_API_H

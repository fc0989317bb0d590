#include "api.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace sim {

// --- copies and fills

namespace {

// Whether an operation that touches this address can go on after the call has returned.
bool can_be_async(Address address, std::uint64_t bytes) {
  return memory().is_device(address) || memory().is_pinned(address, bytes);
}

}  // namespace

int api_copy(Stream* stream, Address to, Address from, std::uint64_t bytes, bool async) {
  return api_copy_rows(stream, to, bytes, from, bytes, bytes, 1, async);
}

int api_copy_rows(Stream* stream, Address to, std::uint64_t to_pitch, Address from, std::uint64_t from_pitch,
                  std::uint64_t width, std::uint64_t rows, bool async) {
  if (width == 0 || rows == 0) {
    return success;
  }
  if (to == 0 || from == 0 || to_pitch < width || from_pitch < width) {
    return invalid_value;
  }
  const bool pinned =
      can_be_async(to, to_pitch * (rows - 1) + width) && can_be_async(from, from_pitch * (rows - 1) + width);
  const bool between_devices = memory().is_device(to) && memory().is_device(from);
  const int device = stream->device->index;
  Cost cost;
  if (timed() != nullptr) {
    cost = timed()->copy(memory().device_of(from), memory().device_of(to), width * rows);
  }
  const bool idle = settings().leaves_out(width * rows);
  Work work = [=] {
    if (idle) {
      return true;
    }
    for (std::uint64_t row = 0; row < rows; ++row) {
      if (!memory().copy(device, to + row * to_pitch, from + row * from_pitch, width, pinned)) {
        return false;
      }
    }
    return true;
  };
  // As documented: pageable memory is read or written before the call returns, unless the call is captured.
  if (between_devices || (async && (pinned || stream->capture != nullptr))) {
    return machine().enqueue(stream, NodeKind::copy, std::move(work), std::move(cost));
  }
  return machine().run_now(stream, std::move(work), std::move(cost));
}

int api_fill(Stream* stream, Address to, std::uint64_t value, unsigned width, std::uint64_t count) {
  if (count == 0) {
    return success;
  }
  if (to == 0 || to % width != 0) {
    return invalid_value;
  }
  const int device = stream->device->index;
  const bool idle = settings().leaves_out(width * count);
  return machine().enqueue(
      stream, NodeKind::fill, [=] { return idle || memory().fill(device, to, value, width, count); },
      timed() == nullptr ? Cost() : timed()->fill(width * count));
}

Cost& api_next_kernel() {
  static thread_local Cost cost;
  return cost;
}

int api_host_function(Stream* stream, void (*function)(void*), void* data) {
  Work work = [=] {
    in_callback() = true;
    function(data);
    in_callback() = false;
    return true;
  };
  return machine().enqueue(stream, NodeKind::host, std::move(work), std::exchange(api_next_kernel(), Cost()));
}

int api_callback(Stream* stream, void (*function)(void*, int, void*), void* handle, void* data) {
  return machine().enqueue(stream, NodeKind::host, [=] {
    in_callback() = true;
    function(handle, success, data);
    in_callback() = false;
    return true;
  });
}

// --- memory

int api_allocate(Device* device, std::uint64_t bytes, Address* address) {
  if (const int refused = machine().unsafe_call()) {
    return refused;
  }
  if (bytes == 0) {
    *address = 0;
    return success;
  }
  return memory().allocate(device->index, bytes, address);
}

// Waits for the device, as cudaFree does.
int api_free(Device* device, Address address) {
  if (address == 0) {
    return success;
  }
  if (!memory().is_plain(address)) {
    return invalid_value;
  }
  if (const int refused = machine().unsafe_call()) {
    return refused;
  }
  if (const int code = machine().synchronize_device(device)) {
    return code;
  }
  return memory().free(address);
}

int api_host_allocate(Device* device, std::uint64_t bytes, unsigned flags, HostKind kind, void** address) {
  if (const int refused = machine().unsafe_call()) {
    return refused;
  }
  return memory().host_allocate(bytes, flags, kind, device->index, address);
}

int api_host_free(Device* device, void* address) {
  if (address == nullptr) {
    return success;
  }
  if (const int refused = machine().unsafe_call()) {
    return refused;
  }
  if (const int code = machine().synchronize_device(device)) {
    return code;
  }
  return memory().host_free(address);
}

struct Pool {
  std::mutex lock;
  std::uint64_t release_threshold = 0;
  std::uint64_t used = 0;
  std::uint64_t used_peak = 0;
  std::map<Address, std::uint64_t> live;
};

Pool* api_pool(int device) {
  static Pool* const pools = new Pool[16];
  return &pools[device];
}

int api_pool_allocate(Stream* stream, std::uint64_t bytes, Address* address) {
  Device* device = stream->device;
  int code = memory().allocate(device->index, bytes, address);
  if (code == out_of_memory && stream->capture == nullptr) {
    // What other streams are about to free can be waited for.
    if ((code = machine().synchronize_device(device)) == success) {
      code = memory().allocate(device->index, bytes, address);
    }
  }
  if (code == success) {
    Pool& pool = *api_pool(device->index);
    const std::lock_guard<std::mutex> guard(pool.lock);
    pool.live[*address] = bytes;
    pool.used += bytes;
    pool.used_peak = std::max(pool.used_peak, pool.used);
  }
  return code;
}

int api_pool_free(Stream* stream, Address address) {
  if (!memory().is_plain(address)) {
    return invalid_value;
  }
  Pool& pool = *api_pool(stream->device->index);
  {
    const std::lock_guard<std::mutex> guard(pool.lock);
    const auto found = pool.live.find(address);
    if (found != pool.live.end()) {
      pool.used -= found->second;
      pool.live.erase(found);
    }
  }
  if (stream->capture != nullptr) {
    return success;  // stays as it is for the replays
  }
  return machine().enqueue(stream, NodeKind::empty, [=] { return memory().free(address) == success; });
}

int api_pool_get(Pool* pool, int attribute, std::uint64_t* value) {
  const std::lock_guard<std::mutex> guard(pool->lock);
  switch (attribute) {
    case 1:  // reuse policies
    case 2:
    case 3: {
      const int enabled = 1;
      std::memcpy(value, &enabled, sizeof enabled);
      return success;
    }
    case 4:
      *value = pool->release_threshold;
      return success;
    case 5:  // reserved
    case 7:  // used
      *value = pool->used;
      return success;
    case 6:
    case 8:
      *value = pool->used_peak;
      return success;
    default:
      return invalid_value;
  }
}

int api_pool_set(Pool* pool, int attribute, std::uint64_t value) {
  const std::lock_guard<std::mutex> guard(pool->lock);
  if (attribute == 4) {
    pool->release_threshold = value;
  } else if (attribute == 6 || attribute == 8) {
    pool->used_peak = pool->used;
  } else if (attribute < 1 || attribute > 8) {
    return invalid_value;
  }
  return success;
}

// --- kernels

namespace {

struct Kernel {
  sim_kernel function;
  std::vector<std::size_t> sizes;
};

struct Kernels {
  std::mutex lock;
  std::map<std::string, Kernel> registered;
  std::set<std::string> refused;
  std::string text;
};

Kernels& kernels() {
  static Kernels* const all = new Kernels;
  return *all;
}

}  // namespace

int api_launch(const std::string& kernel, Stream* stream, Dim grid, Dim block, unsigned shared_bytes,
               void** arguments) {
  Kernel found;
  {
    const std::lock_guard<std::mutex> guard(kernels().lock);
    const auto entry = kernels().registered.find(kernel);
    if (entry == kernels().registered.end()) {
      if (kernels().refused.insert(kernel).second) {
        std::fprintf(stderr, "simulated CUDA: no CPU function is registered for the kernel %s\n", kernel.c_str());
      }
      return not_supported;
    }
    found = entry->second;
  }
  auto copies = std::make_shared<std::vector<std::vector<char>>>();
  for (std::size_t i = 0; i < found.sizes.size(); ++i) {
    const char* from = static_cast<const char*>(arguments[i]);
    copies->emplace_back(from, from + found.sizes[i]);
  }
  const sim_launch launch = {
      {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes, stream->device->index};
  return machine().enqueue(stream, NodeKind::kernel, [copies, launch, found] {
    std::vector<void*> pointers;
    for (std::vector<char>& copy : *copies) {
      pointers.push_back(copy.data());
    }
    in_callback() = true;
    found.function(pointers.data(), &launch);
    in_callback() = false;
    return true;
  });
}

// --- what devices and pointers are

std::string api_pci_bus_id(int device) {
  char text[32];
  std::snprintf(text, sizeof text, "0000:%02x:00.0", device + 1);
  return text;
}

int api_attribute(int device, int attribute, int* value) {
  const Settings& set = settings();
  switch (attribute) {
    case 1:  // threads per block
    case 2:
    case 3:
      *value = 1024;
      break;
    case 4:
      *value = 64;
      break;
    case 5:
      *value = 2147483647;
      break;
    case 6:
    case 7:
      *value = 65535;
      break;
    case 8:  // shared memory per block
      *value = 49152;
      break;
    case 9:  // constant memory
      *value = 65536;
      break;
    case 10:  // threads of a warp
      *value = 32;
      break;
    case 12:  // registers
    case 82:
      *value = 65536;
      break;
    case 13:  // clock rates, kHz
    case 36:
      *value = 1000000;
      break;
    case 14:  // texture alignment
      *value = 512;
      break;
    case 16:  // multiprocessors
      *value = 16;
      break;
    case 19:  // can map host memory
    case 31:  // concurrent kernels
    case 41:  // unified addressing
    case 78:  // stream priorities
    case 83:  // managed memory
    case 91:  // registered memory at its own address
    case 95:  // cooperative launch
    case 99:  // host registration
    case 103:  // handles as file descriptors
    case 115:  // memory pools
    case 119:  // their handle types
      *value = 1;
      break;
    case 33:  // PCI bus
      *value = device + 1;
      break;
    case 37:  // memory bus width
      *value = 4096;
      break;
    case 38:  // L2 cache
      *value = 4 << 20;
      break;
    case 39:  // threads per multiprocessor
      *value = 2048;
      break;
    case 15:  // copies and kernels overlap
      *value = 1;
      break;
    case 40:  // copy engines
      *value = 2;
      break;
    case 75:
      *value = set.capability / 10;
      break;
    case 76:
      *value = set.capability % 10;
      break;
    case 81:  // shared memory per multiprocessor
    case 97:
      *value = 167936;
      break;
    case 102:  // virtual memory management
      *value = set.vmm ? 1 : 0;
      break;
    case 106:  // blocks per multiprocessor
      *value = 32;
      break;
    case 134:  // NUMA node of the host
      *value = 0;
      break;
    case 141:  // virtual memory management of host memory
    case 145:
      *value = set.vmm && set.host_vmm ? 1 : 0;
      break;
    default:
      if (attribute < 1 || attribute > 200) {
        return invalid_value;
      }
      *value = 0;
  }
  return success;
}

int api_capture_info(Stream* stream, int* status, unsigned long long* id, Graph** graph, Node*** tail, void** edges,
                     std::size_t* count) {
  static thread_local std::vector<Node*> nodes;
  nodes.clear();
  std::uint64_t number = 0;
  Graph* captured = nullptr;
  const int code = machine().capture_status(stream, status, &number, &captured, &nodes);
  if (id != nullptr) {
    *id = number;
  }
  if (graph != nullptr) {
    *graph = captured;
  }
  if (tail != nullptr) {
    *tail = nodes.data();
  }
  if (edges != nullptr) {
    *edges = nullptr;
  }
  if (count != nullptr) {
    *count = nodes.size();
  }
  return code;
}

PointerInfo api_pointer(Address address) {
  PointerInfo info;
  std::uint64_t start = 0;
  Mapping mapping;
  HostRange range;
  if (memory().mapping(address, &start, &mapping)) {
    info.type = mapping.physical->device == host_device ? 1 : 2;
    info.device = mapping.physical->device == host_device ? 0 : mapping.physical->device;
    info.device_pointer = address;
    info.host_pointer = info.type == 1 ? address : 0;
    info.start = start;
    info.bytes = mapping.bytes;
  } else if (memory().host_range(address, &start, &range)) {
    info.type = range.kind == HostKind::managed ? 3 : 1;
    info.device = range.device;
    info.device_pointer = address;
    info.host_pointer = address;
    info.start = start;
    info.bytes = range.bytes;
  }
  return info;
}

// --- driver functions by name

namespace {

struct Found {
  std::string name;
  int since;
  void* function;
};

std::multimap<std::string, Found>& entries() {
  static auto* const all = new std::multimap<std::string, Found>;
  return *all;
}

}  // namespace

Entry::Entry(const char* name, int since, void* function) {
#ifdef SIM_WITHOUT
  static const std::set<std::string> without = SIM_WITHOUT;  // what an older driver does not have
  if (without.count(name) != 0) {
    return;
  }
#endif
  entries().emplace(plain_name(name), Found{name, since, function});
}

void* api_entry(const char* symbol, int version, int* status) {
  const auto range = entries().equal_range(plain_name(symbol));
  const int newest = settings().driver_version;
  const Found* best = nullptr;
  *status = 1;
  for (auto entry = range.first; entry != range.second; ++entry) {
    if (entry->second.since > newest || (symbol != entry->first && symbol != entry->second.name)) {
      continue;
    }
    if (entry->second.since > version) {
      *status = 2;
      continue;
    }
    if (best == nullptr || entry->second.since > best->since) {
      best = &entry->second;
    }
  }
  if (best == nullptr) {
    return nullptr;
  }
  *status = 0;
  return best->function;
}

}  // namespace sim

extern "C" {

SIM_PUBLIC uint64_t sim_next_kernel(const char* name, double flop, const char* peak, uint64_t bytes) {
  if (sim::timed() != nullptr) {
    sim::timed()->pass(sim::timed()->operator_time(), name, false);
    sim::api_next_kernel() = sim::timed()->kernel(name, flop, peak, bytes);
  }
  return sim::api_next_kernel().time;
}

SIM_PUBLIC void sim_register_kernel(const char* name, sim_kernel function, unsigned count, const size_t* sizes) {
  const std::lock_guard<std::mutex> guard(sim::kernels().lock);
  if (function == nullptr) {
    sim::kernels().registered.erase(name);
  } else {
    sim::kernels().registered[name] = sim::Kernel{function, {sizes, sizes + count}};
  }
}

SIM_PUBLIC const char* sim_refused_kernels(void) {
  const std::lock_guard<std::mutex> guard(sim::kernels().lock);
  std::string& text = sim::kernels().text;
  text.clear();
  for (const std::string& name : sim::kernels().refused) {
    text += name + "\n";
  }
  return text.c_str();
}
}

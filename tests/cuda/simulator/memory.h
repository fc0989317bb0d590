// Device memory: physical granules behind a memfd for each device, address ranges, and what is mapped where; also which
// host memory is page-locked.
//
// Physical memory is mapped once, as a whole, at addresses that are known here only ("direct"). Copies go there, after
// the device address was looked up, so the same byte always has the same CPU address, which is what ThreadSanitizer
// needs to see a race. Return codes are CUresult. Thread-safe; takes no other lock inside its own.
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "settings.h"
#include "sharers.h"

namespace sim {

enum Access { access_none = 0, access_read = 1, access_write = 3 };

constexpr int host_device = -1;
constexpr int any_device = -2;  // as a copy does: the device of the stream, or the one that owns the memory

// One physical allocation.
struct Physical {
  ~Physical();
  int device = 0;  // host_device: host memory
  int location_type = 1;
  int location_id = 0;
  std::uint64_t id = 0;
  int fd = -1;
  std::uint64_t offset = 0;  // in fd
  std::uint64_t bytes = 0;
  char* direct = nullptr;
  bool exportable = false;
  bool foreign = false;  // another process's
};

struct Mapping {
  std::uint64_t bytes = 0;
  std::shared_ptr<Physical> physical;
  std::vector<std::uint8_t> access;  // by device; last: host
  bool plain = false;  // made by cudaMalloc and its like, not by cuMemMap
};

enum class HostKind { allocated, registered, managed };

struct HostRange {
  std::uint64_t bytes = 0;
  HostKind kind = HostKind::allocated;
  unsigned flags = 0;
  int device = 0;
};

struct Piece {
  char* pointer;
  std::uint64_t bytes;
};
using Pieces = std::vector<Piece>;

// What an IPC handle and an exported file descriptor hold.
struct Token {
  std::uint64_t magic;
  std::uint64_t id;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::int32_t pid;
  std::int32_t fd;
  std::int32_t device;
  std::int32_t location_type;
};

class __attribute__((visibility("default"))) Memory {
 public:
  // Address ranges.
  int reserve(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t hint, std::uint64_t* address);
  int free_range(std::uint64_t address, std::uint64_t bytes);

  // Handles of physical memory; location_type and id as CUmemLocation.
  int create(std::uint64_t bytes, int location_type, int location_id, bool exportable, std::uint64_t* handle);
  int release(std::uint64_t handle);
  int retain_at(std::uint64_t address, std::uint64_t* handle);
  int export_fd(std::uint64_t handle, int* fd);
  int import_fd(int fd, std::uint64_t* handle);
  std::shared_ptr<Physical> of_handle(std::uint64_t handle);

  int map(std::uint64_t address, std::uint64_t bytes, std::uint64_t offset, std::uint64_t handle);
  int unmap(std::uint64_t address, std::uint64_t bytes);
  int set_access(std::uint64_t address, std::uint64_t bytes, int device, int access);
  int get_access(std::uint64_t address, int device, int* access);
  // Whether the device may access a mapping there by now, and otherwise than so.
  bool is_accessible_otherwise(std::uint64_t address, std::uint64_t bytes, int device, int access);

  // cudaMalloc, cudaFree and IPC.
  int allocate(int device, std::uint64_t bytes, std::uint64_t* address);
  int free(std::uint64_t address);
  bool is_plain(std::uint64_t address);  // the start of a range that allocate gave
  int ipc_token(std::uint64_t address, Token* token);
  int ipc_open(const Token& token, int device, std::uint64_t* address);
  int ipc_close(std::uint64_t address);

  // Host memory.
  int host_allocate(std::uint64_t bytes, unsigned flags, HostKind kind, int device, void** address);
  int host_free(void* address);
  int host_register(void* address, std::uint64_t bytes, unsigned flags, int device);
  int host_unregister(void* address);
  bool host_range(std::uint64_t address, std::uint64_t* start, HostRange* range);
  bool is_pinned(std::uint64_t address, std::uint64_t bytes);

  // Whether the address lies where device addresses are, mapped or not.
  bool is_device(std::uint64_t address) const;

  // Whose memory it leads to; host_device where it is the host's, or nothing is mapped.
  int device_of(std::uint64_t address);

  // The mapping that holds the address.
  bool mapping(std::uint64_t address, std::uint64_t* start, Mapping* found);
  bool resolve(int device, std::uint64_t address, std::uint64_t bytes, int access, Pieces* pieces);

  // Whole operations; false: an illegal access, nothing was done. `device` is the stream's; `pinned`: the host side was
  // page-locked when the copy was enqueued, and must still be.
  bool copy(int device, std::uint64_t to, std::uint64_t from, std::uint64_t bytes, bool pinned);
  bool fill(int device, std::uint64_t to, std::uint64_t value, unsigned width, std::uint64_t count);

  std::uint64_t used(int device);
  std::uint64_t used_by_all(int device);  // processes that share the device
  std::uint64_t pinned_bytes();
  std::uint64_t mappings();
  // Those that begin in the range.
  std::uint64_t mappings_in(std::uint64_t address, std::uint64_t bytes);
  void set_peer(int device, int peer, bool enabled);
  bool peer(int device, int peer);

  void before_fork() { lock_.lock(); }
  void after_fork(bool child);

 private:
  friend struct Physical;
  friend Memory& memory();

  struct Bank {
    int fd = -1;
    char* direct = nullptr;
    std::uint64_t capacity = 0;
    std::uint64_t used = 0;
    std::uint64_t touched = 0;  // offsets from here on were never used
    std::map<std::uint64_t, std::uint64_t> free;  // offset, bytes
  };

  Memory();
  std::shared_ptr<Physical> take(int device, std::uint64_t bytes);
  std::shared_ptr<Physical> adopt(const Token& token);
  void give_back(const Physical& physical);
  void garbage(char* to, std::uint64_t bytes);
  bool range_holds(std::uint64_t address, std::uint64_t bytes);
  bool whole_mappings(std::uint64_t address, std::uint64_t bytes);
  int reserve_locked(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t hint, std::uint64_t* address);
  void show(std::uint64_t address, const Mapping& mapping);
  void hide(std::uint64_t address, std::uint64_t bytes);
  bool may(const Mapping& mapping, int device, int access);

  std::recursive_mutex lock_;  // recursive: the thread that drops the last reference to a Physical may hold it or not
  std::vector<Bank> banks_;  // by device; last: host
  Sharers* const sharers_ = Sharers::of(settings().shared);  // null: there are none
  std::uint64_t space_start_ = 0;  // device addresses, one range of the process's
  std::map<std::uint64_t, std::uint64_t> space_;  // what is free of it
  std::map<std::uint64_t, std::uint64_t> ranges_;  // what is reserved
  std::map<std::uint64_t, Mapping> mappings_;
  std::map<std::uint64_t, HostRange> host_;
  std::uint64_t pinned_ = 0;
  struct Handle {
    std::shared_ptr<Physical> physical;
    std::uint64_t references = 0;
  };
  std::unordered_map<std::uint64_t, Handle> handles_;
  std::vector<std::vector<bool>> peers_;
  std::uint64_t next_id_ = 1;
  std::vector<char> pattern_;
  std::uint64_t pattern_seed_ = 0;
};

__attribute__((visibility("default"))) Memory& memory();

}  // namespace sim
#endif  // SIM_MEMORY_H

#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "codes.h"

namespace sim {

namespace {

constexpr std::uint64_t token_magic = 0x53494d4355444131;
// A bank's offsets span more than its capacity, so that a request that fits never fails for want of a contiguous range.
constexpr std::uint64_t spread = 16;
// Host memory that cuMemCreate makes may take this part of what the option address_space says.
constexpr std::uint64_t host_part = 8;
constexpr std::uint64_t sampled_bytes = 64;

std::uint64_t up(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

[[noreturn]] void out_of(const char* what) {
  std::perror(what);
  std::abort();
}

// Adds a free range and joins it with its neighbours.
void insert(std::map<std::uint64_t, std::uint64_t>* ranges, std::uint64_t start, std::uint64_t bytes) {
  auto next = ranges->lower_bound(start);
  if (next != ranges->begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == start) {
      start = previous->first;
      bytes += previous->second;
      ranges->erase(previous);
    }
  }
  if (next != ranges->end() && start + bytes == next->first) {
    bytes += next->second;
    ranges->erase(next);
  }
  ranges->emplace(start, bytes);
}

// Walks two lists of pieces side by side.
template <class Do>
void walk(const Pieces& to, const Pieces& from, Do act) {
  std::size_t i = 0;
  std::size_t j = 0;
  std::uint64_t done_i = 0;
  std::uint64_t done_j = 0;
  while (i < to.size() && j < from.size()) {
    const std::uint64_t bytes = std::min(to[i].bytes - done_i, from[j].bytes - done_j);
    act(to[i].pointer + done_i, from[j].pointer + done_j, bytes);
    done_i += bytes;
    done_j += bytes;
    if (done_i == to[i].bytes) {
      ++i;
      done_i = 0;
    }
    if (done_j == from[j].bytes) {
      ++j;
      done_j = 0;
    }
  }
}

// Calls act(offset, bytes) for what a sampled operation touches of [address, address + bytes), offsets from address.
template <class Do>
void for_samples(std::uint64_t address, std::uint64_t bytes, std::uint64_t unit, Do act) {
  if (unit == 0) {
    act(std::uint64_t{0}, bytes);
    return;
  }
  for (std::uint64_t start = address / unit * unit; start < address + bytes; start += unit) {
    const std::uint64_t begin = std::max(start, address);
    const std::uint64_t end = std::min(start + sampled_bytes, address + bytes);
    if (begin < end) {
      act(begin - address, end - begin);
    }
  }
}

}  // namespace

Physical::~Physical() { memory().give_back(*this); }

Memory& memory() {
  static Memory* const all = new Memory;
  return *all;
}

Memory::Memory() {
  const int devices = settings().devices;
  for (int i = 0; i <= devices; ++i) {
    Bank bank;
    bank.capacity = i < devices ? settings().memory : settings().address_space / host_part;
    const std::uint64_t span = i < devices ? bank.capacity * spread : bank.capacity;
    bank.fd = static_cast<int>(syscall(SYS_memfd_create, "simulated CUDA", 1U /* close on exec */));
    if (bank.fd < 0 || ftruncate(bank.fd, static_cast<off_t>(span)) != 0) {
      out_of("simulated CUDA: memfd");
    }
    void* direct = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, bank.fd, 0);
    if (direct == MAP_FAILED || madvise(direct, span, MADV_DONTFORK) != 0) {
      out_of("simulated CUDA: mapping of physical memory");
    }
    bank.direct = static_cast<char*>(direct);
    bank.free.emplace(0, span);
    banks_.push_back(bank);
  }
  const std::uint64_t space_bytes = settings().address_space;
  void* space = mmap(nullptr, space_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) {
    out_of("simulated CUDA: address space");
  }
  space_start_ = up(reinterpret_cast<std::uint64_t>(space), granule);
  space_.emplace(space_start_, space_bytes - granule);
  peers_.assign(static_cast<std::size_t>(devices), std::vector<bool>(static_cast<std::size_t>(devices), false));
}

// Fills with what no program wrote; sampled as copies are, since a test that samples looks nowhere else.
void Memory::garbage(char* to, std::uint64_t bytes) {
  if (!settings().work) {
    return;
  }
  const std::uint64_t seed = settings().seed;
  if (pattern_.empty() || pattern_seed_ != seed) {
    std::mt19937_64 random(seed * 7919 + 1);
    pattern_.resize(granule);
    for (std::size_t i = 0; i < pattern_.size(); i += 8) {
      const std::uint64_t word = random();
      std::memcpy(&pattern_[i], &word, 8);
    }
    pattern_seed_ = seed;
  }
  for_samples(0, bytes, settings().sample, [&](std::uint64_t offset, std::uint64_t count) {
    for (std::uint64_t done = 0; done < count;) {
      const std::uint64_t at = (offset + done) % granule;
      const std::uint64_t part = std::min(count - done, granule - at);
      std::memcpy(to + offset + done, &pattern_[at], part);
      done += part;
    }
  });
}

std::shared_ptr<Physical> Memory::take(int device, std::uint64_t bytes) {
  Bank& bank = device == host_device ? banks_.back() : banks_[static_cast<std::size_t>(device)];
  if (bytes > bank.capacity - bank.used) {
    return nullptr;
  }
  if (sharers_ != nullptr && device != host_device && !sharers_->take(device, bytes, bank.capacity)) {
    return nullptr;
  }
  for (auto range = bank.free.begin(); range != bank.free.end(); ++range) {
    if (range->second < bytes) {
      continue;
    }
    const std::uint64_t offset = range->first;
    const std::uint64_t rest = range->second - bytes;
    bank.free.erase(range);
    if (rest > 0) {
      bank.free.emplace(offset + bytes, rest);
    }
    bank.used += bytes;
    if (offset + bytes > bank.touched) {
      // What was used before holds garbage since it was given back.
      const std::uint64_t from = std::max(offset, bank.touched);
      garbage(bank.direct + from, offset + bytes - from);
      bank.touched = offset + bytes;
    }
    auto physical = std::make_shared<Physical>();
    physical->device = device;
    physical->location_type = device == host_device ? 2 : 1;
    physical->location_id = device == host_device ? 0 : device;
    physical->id = next_id_++;
    physical->fd = bank.fd;
    physical->offset = offset;
    physical->bytes = bytes;
    physical->direct = bank.direct + offset;
    return physical;
  }
  if (sharers_ != nullptr && device != host_device) {
    sharers_->give(device, bytes);
  }
  return nullptr;
}

// Called when the last reference is dropped, with the lock held.
void Memory::give_back(const Physical& physical) {
  if (physical.bytes == 0) {
    return;
  }
  if (physical.foreign) {
    munmap(physical.direct, physical.bytes);
    close(physical.fd);
    return;
  }
  Bank& bank = physical.device == host_device ? banks_.back() : banks_[static_cast<std::size_t>(physical.device)];
  garbage(physical.direct, physical.bytes);
  bank.used -= physical.bytes;
  if (sharers_ != nullptr && physical.device != host_device) {
    sharers_->give(physical.device, physical.bytes);
  }
  insert(&bank.free, physical.offset, physical.bytes);
}

int Memory::reserve(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t hint, std::uint64_t* address) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  return reserve_locked(bytes, alignment, hint, address);
}

int Memory::reserve_locked(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t hint, std::uint64_t* address) {
  if (bytes == 0 || bytes % granule != 0 || (alignment & (alignment - 1)) != 0) {
    return invalid_value;
  }
  alignment = std::max(alignment, granule);
  auto range = space_.end();
  std::uint64_t start = 0;
  if (hint != 0 && hint % alignment == 0) {
    range = space_.upper_bound(hint);
    range = range == space_.begin() ? space_.end() : std::prev(range);
    if (range != space_.end() &&
        (hint < range->first || bytes > range->second || hint - range->first > range->second - bytes)) {
      range = space_.end();
    }
    start = hint;
  }
  for (auto next = space_.begin(); range == space_.end() && next != space_.end(); ++next) {
    start = up(next->first, alignment);
    if (start - next->first <= next->second && bytes <= next->second - (start - next->first)) {
      range = next;
    }
  }
  if (range == space_.end()) {
    return out_of_memory;
  }
  const std::uint64_t before = start - range->first;
  const std::uint64_t after = range->second - before - bytes;
  if (before > 0) {
    range->second = before;
  } else {
    space_.erase(range);
  }
  if (after > 0) {
    space_.emplace(start + bytes, after);
  }
  ranges_[start] = bytes;
  *address = start;
  return success;
}

int Memory::free_range(std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  const auto range = ranges_.find(address);
  if (range == ranges_.end() || range->second != bytes) {
    return invalid_value;
  }
  const auto mapping = mappings_.lower_bound(address);
  if (mapping != mappings_.end() && mapping->first < address + bytes) {
    return invalid_value;  // something is still mapped there
  }
  ranges_.erase(range);
  insert(&space_, address, bytes);
  return success;
}

int Memory::create(std::uint64_t bytes, int location_type, int location_id, bool exportable, std::uint64_t* handle) {
  if (bytes == 0 || bytes % granule != 0) {
    return invalid_value;
  }
  const bool host = location_type == 2 || location_type == 3 || location_type == 4;
  if (!host && location_type != 1) {
    return invalid_value;
  }
  if (!host && (location_id < 0 || location_id >= settings().devices)) {
    return invalid_device;
  }
  if (!settings().vmm || (host && !settings().host_vmm)) {
    return not_supported;
  }
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  std::shared_ptr<Physical> physical = take(host ? host_device : location_id, bytes);
  if (physical == nullptr) {
    return out_of_memory;
  }
  physical->location_type = location_type;
  physical->location_id = location_id;
  physical->exportable = exportable;
  *handle = physical->id;
  handles_[*handle] = Handle{std::move(physical), 1};
  return success;
}

int Memory::release(std::uint64_t handle) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  const auto found = handles_.find(handle);
  if (found == handles_.end()) {
    return invalid_value;
  }
  if (--found->second.references == 0) {
    handles_.erase(found);
  }
  return success;
}

int Memory::retain_at(std::uint64_t address, std::uint64_t* handle) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  auto mapping = mappings_.upper_bound(address);
  if (mapping == mappings_.begin()) {
    return invalid_value;
  }
  --mapping;
  if (address >= mapping->first + mapping->second.bytes || mapping->second.plain) {
    return invalid_value;
  }
  const std::shared_ptr<Physical>& physical = mapping->second.physical;
  Handle& entry = handles_[physical->id];
  entry.physical = physical;
  ++entry.references;
  *handle = physical->id;
  return success;
}

std::shared_ptr<Physical> Memory::of_handle(std::uint64_t handle) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  const auto found = handles_.find(handle);
  return found == handles_.end() ? nullptr : found->second.physical;
}

int Memory::export_fd(std::uint64_t handle, int* fd) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  const auto found = handles_.find(handle);
  if (found == handles_.end() || !found->second.physical->exportable) {
    return invalid_value;
  }
  const Physical& physical = *found->second.physical;
  const Token token = {token_magic, physical.id, physical.offset, physical.bytes,
                       getpid(),    physical.fd, physical.device, physical.location_type};
  *fd = static_cast<int>(syscall(SYS_memfd_create, "simulated CUDA handle", 1U));
  if (*fd < 0 || write(*fd, &token, sizeof token) != static_cast<ssize_t>(sizeof token)) {
    return operating_system;
  }
  return success;
}

// With the lock held. Null when it is not there any more.
std::shared_ptr<Physical> Memory::adopt(const Token& token) {
  if (token.pid == getpid()) {
    for (const auto& entry : handles_) {
      if (entry.second.physical->id == token.id) {
        return entry.second.physical;
      }
    }
    for (const auto& entry : mappings_) {
      if (entry.second.physical->id == token.id) {
        return entry.second.physical;
      }
    }
    return nullptr;
  }
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", token.pid, token.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return nullptr;
  }
  void* direct = mmap(nullptr, token.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(token.offset));
  if (direct == MAP_FAILED) {
    close(fd);
    return nullptr;
  }
  auto physical = std::make_shared<Physical>();
  physical->device = token.device;
  physical->location_type = token.location_type;
  physical->location_id = token.device;
  physical->id = next_id_++;
  physical->fd = fd;
  physical->offset = token.offset;
  physical->bytes = token.bytes;
  physical->direct = static_cast<char*>(direct);
  physical->foreign = true;
  return physical;
}

int Memory::import_fd(int fd, std::uint64_t* handle) {
  Token token = {};
  if (pread(fd, &token, sizeof token, 0) != static_cast<ssize_t>(sizeof token) || token.magic != token_magic ||
      token.device >= settings().devices) {
    return invalid_value;
  }
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  std::shared_ptr<Physical> physical = adopt(token);
  if (physical == nullptr) {
    return invalid_value;
  }
  *handle = physical->id;
  Handle& entry = handles_[*handle];
  entry.physical = std::move(physical);
  ++entry.references;
  return success;
}

bool Memory::range_holds(std::uint64_t address, std::uint64_t bytes) {
  auto range = ranges_.upper_bound(address);
  if (range == ranges_.begin()) {
    return false;
  }
  --range;
  return address - range->first <= range->second && bytes <= range->second - (address - range->first);
}

int Memory::map(std::uint64_t address, std::uint64_t bytes, std::uint64_t offset, std::uint64_t handle) {
  if (address % granule != 0 || bytes % granule != 0 || bytes == 0 || offset != 0) {
    return invalid_value;
  }
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  const auto found = handles_.find(handle);
  if (found == handles_.end() || bytes > found->second.physical->bytes || !range_holds(address, bytes)) {
    return invalid_value;
  }
  const auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first < address + bytes) {
    return already_mapped;
  }
  if (next != mappings_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second.bytes > address) {
      return already_mapped;
    }
  }
  Mapping mapping;
  mapping.bytes = bytes;
  mapping.physical = found->second.physical;
  mapping.access.assign(banks_.size(), access_none);
  show(address, mapping);
  mappings_.emplace(address, std::move(mapping));
  return success;
}

// Whether mappings cover [address, address + bytes) exactly, without a hole.
bool Memory::whole_mappings(std::uint64_t address, std::uint64_t bytes) {
  const std::uint64_t end = address + bytes;
  auto mapping = mappings_.find(address);
  while (address < end) {
    if (mapping == mappings_.end() || mapping->first != address) {
      return false;
    }
    address += mapping->second.bytes;
    ++mapping;
  }
  return address == end;
}

int Memory::unmap(std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  if (bytes == 0 || !whole_mappings(address, bytes)) {
    return invalid_value;
  }
  const auto first = mappings_.find(address);
  const auto last = mappings_.lower_bound(address + bytes);
  for (auto mapping = first; mapping != last; ++mapping) {
    if (mapping->second.plain) {
      return invalid_value;
    }
  }
  hide(address, bytes);
  mappings_.erase(first, last);
  return success;
}

int Memory::set_access(std::uint64_t address, std::uint64_t bytes, int device, int access) {
  if (access != access_none && access != access_read && access != access_write) {
    return invalid_value;
  }
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  if (bytes == 0 || !whole_mappings(address, bytes)) {
    return invalid_value;
  }
  const std::size_t index = device == host_device ? banks_.size() - 1 : static_cast<std::size_t>(device);
  for (auto mapping = mappings_.find(address); mapping != mappings_.end() && mapping->first < address + bytes;
       ++mapping) {
    if (mapping->second.plain) {
      return invalid_value;
    }
    std::uint8_t& now = mapping->second.access[index];
    if (now != access) {
      now = static_cast<std::uint8_t>(access);
      show(mapping->first, mapping->second);
    }
  }
  return success;
}

bool Memory::is_accessible_otherwise(std::uint64_t address, std::uint64_t bytes, int device, int access) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  const std::size_t index = device == host_device ? banks_.size() - 1 : static_cast<std::size_t>(device);
  return std::any_of(mappings_.lower_bound(address), mappings_.lower_bound(address + bytes), [&](const auto& one) {
    return one.second.access[index] != access_none && one.second.access[index] != access;
  });
}

int Memory::get_access(std::uint64_t address, int device, int* access) {
  Mapping found;
  std::uint64_t start = 0;
  if (!mapping(address, &start, &found) || found.plain) {
    return invalid_value;
  }
  *access = device == host_device ? found.access.back() : found.access[static_cast<std::size_t>(device)];
  return success;
}

// Makes the mapping real, as far as that is wanted.
void Memory::show(std::uint64_t address, const Mapping& mapping) {
  if (!settings().host_access) {
    return;
  }
  int access = 0;
  for (const std::uint8_t one : mapping.access) {
    access |= one;
  }
  const int protection = access == access_none ? PROT_NONE : access == access_read ? PROT_READ : PROT_READ | PROT_WRITE;
  if (mmap(reinterpret_cast<void*>(address), mapping.bytes, protection, MAP_SHARED | MAP_FIXED, mapping.physical->fd,
           static_cast<off_t>(mapping.physical->offset)) == MAP_FAILED) {
    out_of("simulated CUDA: mmap of a device address");
  }
}

void Memory::hide(std::uint64_t address, std::uint64_t bytes) {
  if (settings().host_access && mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    out_of("simulated CUDA: mmap of an address range");
  }
}

int Memory::allocate(int device, std::uint64_t bytes, std::uint64_t* address) {
  bytes = up(std::max<std::uint64_t>(bytes, 1), granule);
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  std::shared_ptr<Physical> physical = take(device, bytes);
  if (physical == nullptr || reserve_locked(bytes, granule, 0, address) != success) {
    return out_of_memory;
  }
  Mapping mapping;
  mapping.bytes = bytes;
  mapping.physical = std::move(physical);
  mapping.access.assign(banks_.size(), access_none);
  mapping.access[static_cast<std::size_t>(device)] = access_write;
  mapping.plain = true;
  show(*address, mapping);
  mappings_.emplace(*address, std::move(mapping));
  return success;
}

int Memory::free(std::uint64_t address) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  const auto mapping = mappings_.find(address);
  if (mapping == mappings_.end() || !mapping->second.plain) {
    return invalid_value;
  }
  const std::uint64_t bytes = mapping->second.bytes;
  hide(address, bytes);
  mappings_.erase(mapping);
  ranges_.erase(address);
  insert(&space_, address, bytes);
  return success;
}

bool Memory::is_plain(std::uint64_t address) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  const auto mapping = mappings_.find(address);
  return mapping != mappings_.end() && mapping->second.plain;
}

int Memory::ipc_token(std::uint64_t address, Token* token) {
  Mapping found;
  std::uint64_t start = 0;
  if (!mapping(address, &start, &found) || !found.plain) {
    return invalid_value;
  }
  const Physical& physical = *found.physical;
  *token = {token_magic, physical.id, physical.offset, physical.bytes,
            getpid(),    physical.fd, physical.device, physical.location_type};
  return success;
}

int Memory::ipc_open(const Token& token, int device, std::uint64_t* address) {
  if (token.magic != token_magic || token.device >= settings().devices) {
    return invalid_value;
  }
  if (token.pid == getpid()) {
    return invalid_context;  // a process cannot open its own
  }
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  Mapping mapping;
  mapping.physical = adopt(token);
  if (mapping.physical == nullptr) {
    return invalid_value;
  }
  mapping.bytes = mapping.physical->bytes;
  if (reserve_locked(mapping.bytes, granule, 0, address) != success) {
    return out_of_memory;
  }
  mapping.access.assign(banks_.size(), access_none);
  mapping.access[static_cast<std::size_t>(device)] = access_write;
  mapping.plain = true;
  show(*address, mapping);
  mappings_.emplace(*address, std::move(mapping));
  return success;
}

int Memory::ipc_close(std::uint64_t address) { return free(address); }

int Memory::host_allocate(std::uint64_t bytes, unsigned flags, HostKind kind, int device, void** address) {
  if (bytes == 0) {
    return invalid_value;
  }
  const std::uint64_t whole = up(bytes, 4096);
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  if (whole > settings().pinned_limit - std::min<std::uint64_t>(pinned_, settings().pinned_limit)) {
    return out_of_memory;
  }
  void* at = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    return out_of_memory;
  }
  pinned_ += whole;
  host_[reinterpret_cast<std::uint64_t>(at)] = HostRange{whole, kind, flags, device};
  *address = at;
  return success;
}

int Memory::host_free(void* address) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  const auto range = host_.find(reinterpret_cast<std::uint64_t>(address));
  if (range == host_.end() || range->second.kind == HostKind::registered) {
    return invalid_value;
  }
  pinned_ -= range->second.bytes;
  munmap(address, range->second.bytes);
  host_.erase(range);
  return success;
}

int Memory::host_register(void* address, std::uint64_t bytes, unsigned flags, int device) {
  const auto start = reinterpret_cast<std::uint64_t>(address);
  if (start == 0 || bytes == 0) {
    return invalid_value;
  }
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  const auto next = host_.lower_bound(start);
  if (next != host_.end() && next->first < start + bytes) {
    return already_registered;
  }
  if (next != host_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second.bytes > start) {
      return already_registered;
    }
  }
  if (bytes > settings().pinned_limit - std::min<std::uint64_t>(pinned_, settings().pinned_limit)) {
    return out_of_memory;
  }
  pinned_ += bytes;
  host_[start] = HostRange{bytes, HostKind::registered, flags, device};
  return success;
}

int Memory::host_unregister(void* address) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  const auto range = host_.find(reinterpret_cast<std::uint64_t>(address));
  if (range == host_.end() || range->second.kind != HostKind::registered) {
    return not_registered;
  }
  pinned_ -= range->second.bytes;
  host_.erase(range);
  return success;
}

bool Memory::host_range(std::uint64_t address, std::uint64_t* start, HostRange* found) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  auto range = host_.upper_bound(address);
  if (range == host_.begin()) {
    return false;
  }
  --range;
  if (address >= range->first + range->second.bytes) {
    return false;
  }
  *start = range->first;
  *found = range->second;
  return true;
}

bool Memory::is_pinned(std::uint64_t address, std::uint64_t bytes) {
  // Ranges registered side by side count as one.
  while (bytes > 0) {
    std::uint64_t start = 0;
    HostRange range;
    if (!host_range(address, &start, &range)) {
      return false;
    }
    const std::uint64_t part = std::min(bytes, start + range.bytes - address);
    address += part;
    bytes -= part;
  }
  return true;
}

bool Memory::is_device(std::uint64_t address) const {
  return address >= space_start_ && address - space_start_ < settings().address_space - granule;
}

int Memory::device_of(std::uint64_t address) {
  std::uint64_t start = 0;
  Mapping found;
  return mapping(address, &start, &found) ? found.physical->device : host_device;
}

bool Memory::mapping(std::uint64_t address, std::uint64_t* start, Mapping* found) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  auto mapping = mappings_.upper_bound(address);
  if (mapping == mappings_.begin()) {
    return false;
  }
  --mapping;
  if (address >= mapping->first + mapping->second.bytes) {
    return false;
  }
  *start = mapping->first;
  *found = mapping->second;
  return true;
}

bool Memory::may(const Mapping& mapping, int device, int access) {
  const auto allowed = [&](int who) {
    return who >= 0 && (mapping.access[static_cast<std::size_t>(who)] & access) == access;
  };
  const int owner = mapping.physical->device;
  if (device == any_device) {
    return std::any_of(mapping.access.begin(), mapping.access.end() - 1,
                       [&](std::uint8_t one) { return (one & access) == access; });
  }
  return allowed(device) || (mapping.plain && owner >= 0 && allowed(owner) &&
                             peers_[static_cast<std::size_t>(device)][static_cast<std::size_t>(owner)]);
}

bool Memory::resolve(int device, std::uint64_t address, std::uint64_t bytes, int access, Pieces* pieces) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  while (bytes > 0) {
    auto mapping = mappings_.upper_bound(address);
    if (mapping == mappings_.begin()) {
      return false;
    }
    --mapping;
    const std::uint64_t inside = address - mapping->first;
    if (inside >= mapping->second.bytes || !may(mapping->second, device, access)) {
      return false;
    }
    const std::uint64_t part = std::min(bytes, mapping->second.bytes - inside);
    pieces->push_back(Piece{mapping->second.physical->direct + inside, part});
    address += part;
    bytes -= part;
  }
  return true;
}

bool Memory::copy(int device, std::uint64_t to, std::uint64_t from, std::uint64_t bytes, bool pinned) {
  const bool to_device = is_device(to);
  const bool from_device = is_device(from);
  Pieces targets;
  Pieces sources;
  const auto side = [&](std::uint64_t address, bool on_device, int access, Pieces* pieces) {
    if (!on_device) {
      pieces->push_back(Piece{reinterpret_cast<char*>(address), bytes});
      return !pinned || is_pinned(address, bytes);
    }
    // The copy engine of this device, or of the one that owns the memory.
    if (resolve(device, address, bytes, access, pieces)) {
      return true;
    }
    pieces->clear();
    return resolve(any_device, address, bytes, access, pieces);
  };
  if (!side(to, to_device, access_write, &targets) || !side(from, from_device, access_read, &sources)) {
    return false;
  }
  const std::uint64_t unit = to_device || from_device ? settings().sample.load() : 0;
  std::uint64_t where = to_device ? to : from;
  walk(targets, sources, [&](char* target, const char* source, std::uint64_t part) {
    for_samples(where, part, unit, [&](std::uint64_t offset, std::uint64_t count) {
      std::memmove(target + offset, source + offset, count);
    });
    where += part;
  });
  return true;
}

bool Memory::fill(int device, std::uint64_t to, std::uint64_t value, unsigned width, std::uint64_t count) {
  const std::uint64_t bytes = count * width;
  Pieces targets;
  std::uint64_t unit = 0;
  if (is_device(to)) {
    unit = settings().sample;
    if (!resolve(device, to, bytes, access_write, &targets)) {
      return false;
    }
  } else if (is_pinned(to, bytes)) {
    targets.push_back(Piece{reinterpret_cast<char*>(to), bytes});
  } else {
    return false;
  }
  std::uint64_t where = to;
  std::uint64_t done = 0;
  for (const Piece& piece : targets) {
    for_samples(where, piece.bytes, unit, [&](std::uint64_t offset, std::uint64_t part) {
      if (width == 1) {
        std::memset(piece.pointer + offset, static_cast<int>(value & 0xff), part);
        return;
      }
      for (std::uint64_t i = 0; i < part; ++i) {
        piece.pointer[offset + i] = static_cast<char>(value >> ((done + offset + i) % width * 8));
      }
    });
    where += piece.bytes;
    done += piece.bytes;
  }
  return true;
}

std::uint64_t Memory::used(int device) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  return banks_[static_cast<std::size_t>(device)].used;
}

std::uint64_t Memory::used_by_all(int device) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  return sharers_ != nullptr ? sharers_->used(device) : banks_[static_cast<std::size_t>(device)].used;
}

std::uint64_t Memory::pinned_bytes() {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  return pinned_;
}

std::uint64_t Memory::mappings_in(std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  return static_cast<std::uint64_t>(
      std::distance(mappings_.lower_bound(address), mappings_.lower_bound(address + bytes)));
}

std::uint64_t Memory::mappings() {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  return mappings_.size();
}

void Memory::set_peer(int device, int peer, bool enabled) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  peers_[static_cast<std::size_t>(device)][static_cast<std::size_t>(peer)] = enabled;
}

bool Memory::peer(int device, int peer) {
  const std::lock_guard<std::recursive_mutex> guard(lock_);
  return peers_[static_cast<std::size_t>(device)][static_cast<std::size_t>(peer)];
}

void Memory::after_fork(bool child) {
  if (child) {
    // A device's memory does not come along.
    if (sharers_ != nullptr) {
      sharers_->forget();
    }
    for (const auto& range : ranges_) {
      mmap(reinterpret_cast<void*>(range.first), range.second, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }
  }
  lock_.unlock();
}

}  // namespace sim

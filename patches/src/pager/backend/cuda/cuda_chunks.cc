#include "cuda_chunks.h"

#include <algorithm>
#include <string>
#include <utility>

namespace lms {

namespace {

bool cuda_same(const Uses& left, const Uses& right) {
  return left.streams == right.streams && left.until == right.until;
}

}  // namespace

CudaChunks::CudaChunks(std::shared_ptr<CudaDevice> device, CudaStreams* streams, std::function<void()> before_release)
    : device_(std::move(device)),
      driver_(device_->driver),
      streams_(streams),
      before_release_(std::move(before_release)),
      alias_bytes_((device_->total_bytes() + cuda_largest_chunk - 1) / cuda_largest_chunk * cuda_largest_chunk),
      handle_types_(device_->attribute(cuda::has_posix_file_handles) != 0 ? cuda::handle_posix_file
                                                                          : cuda::handle_none) {}

CudaChunks::~CudaChunks() {
  const CudaScope scope(*device_);
  if (!scope.ok()) {
    return;
  }
  for (const Size& size : sizes_) {
    for (const auto& chunk : size.free) {
      destroy(*chunk);
    }
    if (size.aliases != 0) {
      driver_.mem_address_free(size.aliases, alias_bytes_);
    }
  }
}

bool CudaChunks::take(std::size_t bytes, CudaChunkList* chunks, bool* refused) {
  *refused = false;
  Lock lock(lock_);
  taken_ += bytes;
  allowance_ = std::max(allowance_, taken_);
  std::size_t missing = bytes;
  while (missing > 0) {
    std::unique_ptr<CudaChunk> chunk = make(&lock, std::min(missing, cuda_largest_chunk), refused);
    if (chunk == nullptr) {
      taken_ -= missing;
      lock.unlock();
      give_unused(chunks);
      lock.lock();
      allowance_ = std::max(taken_, physical_);
      return false;
    }
    missing -= chunk->bytes;
    chunks->push_back(std::move(chunk));
  }
  return true;
}

// A chunk of just that size, free or new.
std::unique_ptr<CudaChunk> CudaChunks::make(Lock* lock, std::size_t bytes, bool* refused) {
  while (true) {  // where the lock was let go: look again at what there is
    std::unique_ptr<CudaChunk> chunk = take_free(bytes);
    if (chunk != nullptr) {
      return chunk;
    }
    if (physical_ + bytes > allowance_ && destroy_one(lock, bytes)) {
      continue;
    }
    chunk = create(lock, bytes, refused);
    if (chunk != nullptr || !*refused || !destroy_one(lock, bytes)) {
      return chunk;
    }
  }
}

std::unique_ptr<CudaChunk> CudaChunks::take_free(std::size_t bytes) {
  Size& size = size_of(bytes);
  if (size.free.empty()) {
    return nullptr;
  }
  std::unique_ptr<CudaChunk> chunk = std::move(size.free.front());
  size.free.pop_front();
  return chunk;
}

std::unique_ptr<CudaChunk> CudaChunks::create(Lock* lock, std::size_t bytes, bool* refused) {
  auto chunk = std::make_unique<CudaChunk>();
  chunk->bytes = bytes;
  physical_ += bytes;
  lock->unlock();
  bool created = false;
  {
    const CudaScope scope(*device_);
    created = scope.ok() && create_memory(chunk.get(), refused);
  }
  lock->lock();
  if (!created) {
    physical_ -= bytes;
    return nullptr;
  }
  return chunk;
}

bool CudaChunks::create_memory(CudaChunk* chunk, bool* refused) {
  CudaResult result;
  bool again = false;
  do {
    cuda::AllocationProperties properties = {};
    properties.type = cuda::allocation_pinned;
    properties.location = cuda::Location{cuda::location_device, device_->id};
    properties.handle_types = handle_types_.load(std::memory_order_relaxed);
    result = driver_.mem_create(&chunk->memory, chunk->bytes, &properties, 0);
    // A driver may know of file handles and yet refuse them, in a container for instance: do without.
    again = (result == cuda::not_permitted || result == cuda::not_supported || result == cuda::invalid_value) &&
            properties.handle_types != cuda::handle_none;
    if (again) {
      handle_types_.store(cuda::handle_none, std::memory_order_relaxed);
    }
  } while (again);
  *refused = result == cuda::out_of_memory;
  return device_->check(result, "cuMemCreate");
}

bool CudaChunks::map_aliases(const CudaChunkList& chunks) {
  return std::all_of(chunks.begin(), chunks.end(), [this](const auto& chunk) { return map_alias(chunk.get()); });
}

bool CudaChunks::map_alias(CudaChunk* chunk) {
  if (chunk->alias != 0) {
    return true;
  }
  CudaAddress alias = 0;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    alias = take_alias(chunk->bytes);
  }
  const cuda::AccessDescription access = {{cuda::location_device, device_->id}, cuda::access_read_write};
  if (alias == 0) {
    return false;
  }
  if (device_->map(alias, chunk->bytes, chunk->memory)) {
    if (device_->set_access(alias, chunk->bytes, &access, 1)) {
      chunk->alias = alias;
      return true;
    }
    const std::string reason = cuda_failure();
    device_->unmap(alias, chunk->bytes);
    cuda_fail(reason);
  }
  const std::lock_guard<std::mutex> guard(lock_);
  size_of(chunk->bytes).idle_aliases.push_back(alias);
  return false;
}

// Addresses for a chunk of that size; 0 with the failure set when there are none.
CudaAddress CudaChunks::take_alias(std::size_t bytes) {
  Size& size = size_of(bytes);
  if (!size.idle_aliases.empty()) {
    const CudaAddress alias = size.idle_aliases.back();
    size.idle_aliases.pop_back();
    return alias;
  }
  if (size.aliases == 0 &&
      !device_->check(driver_.mem_address_reserve(&size.aliases, alias_bytes_, cuda_page_bytes, 0, 0),
                      "cuMemAddressReserve")) {
    return 0;
  }
  if (size.used_aliases + bytes > alias_bytes_) {
    cuda_fail("more memory would be in use than the device has");
    return 0;
  }
  size.used_aliases += bytes;
  return size.aliases + size.used_aliases - bytes;
}

void CudaChunks::destroy(const CudaChunk& chunk) {
  const CudaScope scope(*device_);
  if (scope.ok()) {
    if (chunk.alias != 0) {
      device_->unmap(chunk.alias, chunk.bytes);
    }
    driver_.mem_release(chunk.memory);
  }
}

// Where a free chunk may go that makes room for `bytes`: one that nothing has to wait for, and rather the smallest that
// is large enough, or else the largest. Null when none is free.
CudaChunks::Size* CudaChunks::find_destroyable(std::size_t bytes) {
  const std::size_t least = index_of(bytes);
  for (const bool wait : {false, true}) {
    const auto fits = [&](std::size_t index) {
      return !sizes_[index].free.empty() && (wait || streams_->over(sizes_[index].free.front()->ready));
    };
    for (std::size_t index = least; index < sizes; ++index) {
      if (fits(index)) {
        return &sizes_[index];
      }
    }
    for (std::size_t index = least; index-- > 0;) {
      if (fits(index)) {
        return &sizes_[index];
      }
    }
  }
  return nullptr;
}

// Destroys a free chunk to make room for `bytes`, or waits until another thread has destroyed one. False when there is
// none, or the device fails.
bool CudaChunks::destroy_one(Lock* lock, std::size_t bytes) {
  if (Size* size = find_destroyable(bytes)) {
    return destroy_front(lock, size);
  }
  if (destroying_ > 0) {
    destroyed_.wait(lock);
    return true;
  }
  return false;
}

bool CudaChunks::destroy_front(Lock* lock, Size* size) {
  std::unique_ptr<CudaChunk> chunk = std::move(size->free.front());
  size->free.pop_front();
  ++destroying_;
  lock->unlock();
  const bool ready = streams_->order(chunk->ready, host_stream);
  if (ready) {
    before_release_();
    destroy(*chunk);
  }
  lock->lock();
  --destroying_;
  destroyed_.notify_all();
  if (!ready) {
    size->free.push_front(std::move(chunk));
    return false;
  }
  physical_ -= chunk->bytes;
  if (chunk->alias != 0) {
    size->idle_aliases.push_back(chunk->alias);
  }
  return true;
}

bool CudaChunks::order(const CudaChunkList& chunks, StreamId user) {
  Uses ordered;
  for (const auto& chunk : chunks) {
    if (!cuda_same(chunk->ready, ordered)) {
      ordered = chunk->ready;
      if (!streams_->order(ordered, user)) {
        return false;
      }
    }
  }
  return true;
}

void CudaChunks::give(CudaChunkList* chunks, const Uses& uses) {
  for (const auto& chunk : *chunks) {
    chunk->ready = uses;
  }
  give_unused(chunks);
}

void CudaChunks::give_unused(CudaChunkList* chunks) {
  const std::lock_guard<std::mutex> guard(lock_);
  for (auto& chunk : *chunks) {
    taken_ -= chunk->bytes;
    size_of(chunk->bytes).free.push_back(std::move(chunk));
  }
  chunks->clear();
}

std::uint64_t CudaChunks::kept_bytes() {
  const std::lock_guard<std::mutex> guard(lock_);
  return physical_ - std::min(physical_, taken_);
}

std::uint64_t CudaChunks::trim(std::uint64_t bytes) {
  Lock lock(lock_);
  std::uint64_t released = 0;
  for (const bool wait : {false, true}) {
    for (std::size_t index = sizes; index-- > 0;) {
      Size& size = sizes_[index];
      while (released < bytes && !size.free.empty() && (wait || streams_->over(size.free.front()->ready)) &&
             destroy_front(&lock, &size)) {
        released += (index + 1) * cuda_page_bytes;
      }
    }
  }
  allowance_ = std::max(taken_, physical_);
  return released;
}

}  // namespace lms

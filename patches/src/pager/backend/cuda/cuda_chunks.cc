#include "cuda_chunks.h"

#include <algorithm>
#include <utility>

namespace lms {

namespace {

std::size_t cuda_size_index(std::size_t bytes) {
  return static_cast<std::size_t>(std::find(cuda_chunk_sizes.begin(), cuda_chunk_sizes.end(), bytes) -
                                  cuda_chunk_sizes.begin());
}

bool cuda_same(const Uses& left, const Uses& right) {
  return left.streams == right.streams && left.until == right.until;
}

}  // namespace

std::unique_ptr<CudaChunks> CudaChunks::make(const std::shared_ptr<CudaDevice>& device, CudaStreams* streams,
                                             std::function<void()> before_release) {
  const CudaScope scope(*device);
  if (!scope.ok()) {
    return nullptr;
  }
  // Room for all of the device's memory in chunks of any one size.
  const std::uint64_t largest = cuda_chunk_sizes.front();
  const std::uint64_t bytes = (device->total_bytes() + largest - 1) / largest * largest;
  CudaAddress aliases = 0;
  if (!device->check(device->driver.mem_address_reserve(&aliases, bytes * sizes, cuda_page_bytes, 0, 0),
                     "cuMemAddressReserve")) {
    return nullptr;
  }
  return std::make_unique<CudaChunks>(device, streams, std::move(before_release), aliases, bytes);
}

CudaChunks::CudaChunks(std::shared_ptr<CudaDevice> device, CudaStreams* streams, std::function<void()> before_release,
                       CudaAddress aliases, std::uint64_t aliases_of_a_size)
    : device_(std::move(device)),
      driver_(device_->driver),
      streams_(streams),
      before_release_(std::move(before_release)),
      aliases_(aliases),
      aliases_of_a_size_(aliases_of_a_size),
      handle_types_(device_->attribute(cuda::has_posix_file_handles) != 0 ? cuda::handle_posix_file
                                                                          : cuda::handle_none),
      rdma_capable_(device_->attribute(cuda::has_rdma_with_virtual_memory) != 0) {}

CudaChunks::~CudaChunks() {
  const CudaScope scope(*device_);
  if (!scope.ok()) {
    return;
  }
  for (const auto& list : free_) {
    for (const auto& chunk : list) {
      destroy(*chunk);
    }
  }
  driver_.mem_address_free(aliases_, aliases_of_a_size_ * sizes);
}

bool CudaChunks::take(std::size_t bytes, CudaChunkList* chunks, bool* refused) {
  *refused = false;
  Lock lock(lock_);
  taken_ += bytes;
  allowance_ = std::max(allowance_, taken_);
  std::size_t missing = bytes;
  while (missing > 0) {
    std::unique_ptr<CudaChunk> chunk = take_free(missing);
    if (chunk == nullptr) {
      const std::size_t size = *std::find_if(cuda_chunk_sizes.begin(), cuda_chunk_sizes.end(),
                                             [&](std::size_t one) { return one <= missing; });
      if (physical_ + size > allowance_ && destroy_one(&lock)) {
        continue;  // the lock was let go: look again at what there is
      }
      chunk = create(&lock, size, refused);
      if (chunk == nullptr && *refused && destroy_one(&lock)) {
        continue;
      }
    }
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

// The largest free chunk of no more than `most` bytes, given back longest ago, or null.
std::unique_ptr<CudaChunk> CudaChunks::take_free(std::size_t most) {
  for (std::size_t size = 0; size < sizes; ++size) {
    if (cuda_chunk_sizes[size] <= most && !free_[size].empty()) {
      std::unique_ptr<CudaChunk> chunk = std::move(free_[size].front());
      free_[size].pop_front();
      return chunk;
    }
  }
  return nullptr;
}

std::unique_ptr<CudaChunk> CudaChunks::create(Lock* lock, std::size_t size, bool* refused) {
  const std::size_t index = cuda_size_index(size);
  auto chunk = std::make_unique<CudaChunk>();
  if (!idle_aliases_[index].empty()) {
    chunk->alias = idle_aliases_[index].back();
    idle_aliases_[index].pop_back();
  } else if (used_aliases_[index] + size <= aliases_of_a_size_) {
    chunk->alias = aliases_ + index * aliases_of_a_size_ + used_aliases_[index];
    used_aliases_[index] += size;
  } else {
    *refused = true;
    cuda_fail("more memory would be in use than the device has");
    return nullptr;
  }
  physical_ += size;
  lock->unlock();
  bool created = false;
  {
    const CudaScope scope(*device_);
    created = scope.ok() && create_memory(chunk.get(), size, refused) && map_alias(chunk.get());
  }
  lock->lock();
  if (!created) {
    physical_ -= size;
    idle_aliases_[index].push_back(chunk->alias);
    return nullptr;
  }
  return chunk;
}

bool CudaChunks::create_memory(CudaChunk* chunk, std::size_t size, bool* refused) {
  chunk->bytes = size;
  CudaResult result;
  bool again = false;
  do {
    cuda::AllocationProperties properties = {};
    properties.type = cuda::allocation_pinned;
    properties.location = cuda::Location{cuda::location_device, device_->id};
    properties.handle_types = handle_types_.load(std::memory_order_relaxed);
    properties.flags.rdma_capable = rdma_capable_.load(std::memory_order_relaxed) ? 1 : 0;
    result = driver_.mem_create(&chunk->memory, size, &properties, 0);
    // A driver may know of a feature and yet refuse it, in a container for instance: do without.
    again = (result == cuda::not_permitted || result == cuda::not_supported || result == cuda::invalid_value) &&
            (properties.handle_types != cuda::handle_none || properties.flags.rdma_capable != 0);
    if (again) {
      handle_types_.store(cuda::handle_none, std::memory_order_relaxed);
      rdma_capable_.store(false, std::memory_order_relaxed);
    }
  } while (again);
  *refused = result == cuda::out_of_memory;
  return device_->check(result, "cuMemCreate");
}

bool CudaChunks::map_alias(CudaChunk* chunk) {
  const cuda::AccessDescription access = {{cuda::location_device, device_->id}, cuda::access_read_write};
  if (!device_->map(chunk->alias, chunk->bytes, chunk->memory)) {
    driver_.mem_release(chunk->memory);
    return false;
  }
  if (!device_->set_access(chunk->alias, chunk->bytes, &access, 1)) {
    device_->unmap(chunk->alias, chunk->bytes);
    driver_.mem_release(chunk->memory);
    return false;
  }
  return true;
}

void CudaChunks::destroy(const CudaChunk& chunk) {
  const CudaScope scope(*device_);
  if (scope.ok()) {
    device_->unmap(chunk.alias, chunk.bytes);
    driver_.mem_release(chunk.memory);
  }
}

// Destroys a free chunk, the largest that there is, or waits until another thread has destroyed one. False when there
// is none, or the device fails.
bool CudaChunks::destroy_one(Lock* lock) {
  for (std::size_t size = 0; size < sizes; ++size) {
    if (!free_[size].empty()) {
      return destroy_front(lock, size);
    }
  }
  if (destroying_ > 0) {
    destroyed_.wait(lock);
    return true;
  }
  return false;
}

bool CudaChunks::destroy_front(Lock* lock, std::size_t size) {
  std::unique_ptr<CudaChunk> chunk = std::move(free_[size].front());
  free_[size].pop_front();
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
    free_[size].push_front(std::move(chunk));
    return false;
  }
  physical_ -= chunk->bytes;
  idle_aliases_[size].push_back(chunk->alias);
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
    free_[cuda_size_index(chunk->bytes)].push_back(std::move(chunk));
  }
  chunks->clear();
}

std::uint64_t CudaChunks::trim(std::uint64_t bytes) {
  Lock lock(lock_);
  std::uint64_t released = 0;
  for (const bool wait : {false, true}) {
    for (std::size_t size = 0; size < sizes; ++size) {
      while (released < bytes && !free_[size].empty() && (wait || streams_->over(free_[size].front()->ready)) &&
             destroy_front(&lock, size)) {
        released += cuda_chunk_sizes[size];
      }
    }
  }
  allowance_ = std::max(taken_, physical_);
  return released;
}

}  // namespace lms

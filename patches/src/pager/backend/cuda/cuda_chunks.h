// Chunks: the physical memory that the CUDA backend has created, each with a handle of the driver, and the pool of
// those that are free.
//
// What the driver does with a chunk (create it, map it, give access, unmap it) costs about the same whatever its size,
// and much more than to copy a small one. So a range is made of as few as may be: of the largest size, and one for the
// rest. Training asks for the same sizes again and again, so free chunks of the right sizes are there; where they are
// not, free ones are destroyed and others created in their place.
//
// Contents are copied through a chunk's alias, an address that is known here only, so a chunk can be saved or filled
// while no address that the program knows leads to it. It gets one when it is first copied.
//
// Chunks are not made for RDMA (gpuDirectRDMACapable). Memory that may leave at any moment is no place for another
// machine to write to; and such a chunk has a registration of its own in the driver, which that loses count of where
// the chunk has two addresses: on an H100 and an H200 (580.159) cuMemMap failed for good then, with CUDA_ERROR_UNKNOWN,
// about once in a thousand calls.
//
// A free chunk may still be read or written by work that was enqueued for its former owner: it is ready for the next
// one after certain uses.
//
// Thread-safe. A thread that waits for the device holds no lock meanwhile.
#ifndef LMS_CUDA_CHUNKS_H
#define LMS_CUDA_CHUNKS_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "../../condition.h"
#include "../backend.h"
#include "cuda_device.h"
#include "cuda_streams.h"

namespace lms {

constexpr std::size_t cuda_page_bytes = 2 << 20;  // the driver's smallest
constexpr std::size_t cuda_largest_chunk = 64 << 20;

struct CudaChunk {
  CudaMemory memory = 0;
  CudaAddress alias = 0;  // 0: none yet
  std::size_t bytes = 0;
  Uses ready;  // of former owners
};

using CudaChunkList = std::vector<std::unique_ptr<CudaChunk>>;

class CudaChunks {
 public:
  // `before_release` is called before a chunk that is no longer in use is destroyed: it must unmap the addresses that
  // still lead to it.
  CudaChunks(std::shared_ptr<CudaDevice> device, CudaStreams* streams, std::function<void()> before_release);
  CudaChunks(const CudaChunks&) = delete;
  CudaChunks& operator=(const CudaChunks&) = delete;
  ~CudaChunks();  // every chunk is free, and the device is idle

  // Adds chunks of `bytes` together, a multiple of the page, to an empty list: free ones, else new ones. The most that
  // was ever taken at once, since the last trim, bounds what exists: where the free chunks have other sizes they are
  // destroyed to make room, which may mean to wait for them. False when the device fails, or, with *refused true, has
  // no memory left.
  bool take(std::size_t bytes, CudaChunkList* chunks, bool* refused);

  // Gives the chunks aliases. False when the device fails.
  bool map_aliases(const CudaChunkList& chunks);

  // Makes the user's later work wait until the chunks are ready.
  bool order(const CudaChunkList& chunks, StreamId user);

  // Takes the chunks back; they are ready after the uses, the first of which waited until they were ready before.
  void give(CudaChunkList* chunks, const Uses& uses);

  // Takes chunks back that nothing has used since they were taken: they are ready when they would have been then.
  void give_unused(CudaChunkList* chunks);

  // See Backend.
  std::uint64_t trim(std::uint64_t bytes);
  std::uint64_t kept_bytes();

 private:
  using Lock = std::unique_lock<std::mutex>;
  static constexpr std::size_t sizes = cuda_largest_chunk / cuda_page_bytes;

  // What there is of one size.
  struct Size {
    std::deque<std::unique_ptr<CudaChunk>> free;  // given back longest ago first
    CudaAddress aliases = 0;  // as many as the device has memory for, one after the other; 0: none was needed yet
    std::uint64_t used_aliases = 0;  // bytes of them that were ever used
    std::vector<CudaAddress> idle_aliases;
  };
  static std::size_t index_of(std::size_t bytes) { return bytes / cuda_page_bytes - 1; }
  Size& size_of(std::size_t bytes) { return sizes_[index_of(bytes)]; }

  // The lock is held; functions that get it let it go while they call the driver.
  std::unique_ptr<CudaChunk> take_free(std::size_t bytes);
  std::unique_ptr<CudaChunk> make(Lock* lock, std::size_t bytes, bool* refused);
  std::unique_ptr<CudaChunk> create(Lock* lock, std::size_t bytes, bool* refused);
  Size* find_destroyable(std::size_t bytes);
  bool destroy_one(Lock* lock, std::size_t bytes);
  bool destroy_front(Lock* lock, Size* size);
  CudaAddress take_alias(std::size_t bytes);

  bool create_memory(CudaChunk* chunk, bool* refused);
  bool map_alias(CudaChunk* chunk);
  void destroy(const CudaChunk& chunk);

  const std::shared_ptr<CudaDevice> device_;
  const CudaDriver& driver_;
  CudaStreams* const streams_;
  const std::function<void()> before_release_;
  const std::uint64_t alias_bytes_;  // of the aliases of a size
  std::atomic<int> handle_types_;  // what chunks can be exported as

  std::mutex lock_;  // guards what follows
  Condition destroyed_;
  std::array<Size, sizes> sizes_;
  std::uint64_t physical_ = 0;  // bytes that exist, or are being created
  std::uint64_t taken_ = 0;  // bytes that were asked for and not given back
  std::uint64_t allowance_ = 0;  // the most that taken_ has been since the last trim
  unsigned destroying_ = 0;  // threads that are about to destroy chunks
};

}  // namespace lms
#endif  // LMS_CUDA_CHUNKS_H

// Chunks: the physical memory that the CUDA backend has created, in a few sizes, and the pool of those that are free.
//
// A chunk is mapped for its whole life at an alias, an address that is known here only. Contents are copied through the
// alias, so a chunk can be saved or filled while no address that the program knows leads to it.
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

// Bytes, largest first. Creating, mapping and unmapping cost about the same per call whatever the size, so large blocks
// are made of large chunks; the last size is the page, the driver's smallest. With sizes in between, pools of each
// would have to be turned into one another more often.
constexpr std::array<std::size_t, 2> cuda_chunk_sizes = {{32 << 20, 2 << 20}};
constexpr std::size_t cuda_page_bytes = cuda_chunk_sizes.back();

struct CudaChunk {
  CudaMemory memory = 0;
  CudaAddress alias = 0;
  std::size_t bytes = 0;
  Uses ready;  // of former owners
};

using CudaChunkList = std::vector<std::unique_ptr<CudaChunk>>;

class CudaChunks {
 public:
  // `before_release` is called before a chunk that is no longer in use is destroyed: it must unmap the addresses that
  // still lead to it. Null with cuda_failure() set when there is no address space for the aliases.
  static std::unique_ptr<CudaChunks> make(const std::shared_ptr<CudaDevice>& device, CudaStreams* streams,
                                          std::function<void()> before_release);

  CudaChunks(std::shared_ptr<CudaDevice> device, CudaStreams* streams, std::function<void()> before_release,
             CudaAddress aliases, std::uint64_t aliases_of_a_size);
  CudaChunks(const CudaChunks&) = delete;
  CudaChunks& operator=(const CudaChunks&) = delete;
  ~CudaChunks();  // every chunk is free, and the device is idle

  // Adds chunks of `bytes` together, a multiple of the page, to an empty list: free ones, then new ones. The most that
  // was ever taken at once, since the last trim, bounds what exists: where the free chunks are too large, they are
  // destroyed to make smaller ones, which may mean to wait for them. False when the device fails, or, with *refused
  // true, has no memory left.
  bool take(std::size_t bytes, CudaChunkList* chunks, bool* refused);

  // Makes the user's later work wait until the chunks are ready.
  bool order(const CudaChunkList& chunks, StreamId user);

  // Takes the chunks back; they are ready after the uses, the first of which waited until they were ready before.
  void give(CudaChunkList* chunks, const Uses& uses);

  // Takes chunks back that nothing has used since they were taken: they are ready when they would have been then.
  void give_unused(CudaChunkList* chunks);

  // See Backend.
  std::uint64_t trim(std::uint64_t bytes);

 private:
  using Lock = std::unique_lock<std::mutex>;
  static constexpr std::size_t sizes = cuda_chunk_sizes.size();

  // The lock is held; functions that get it let it go while they call the driver.
  std::unique_ptr<CudaChunk> take_free(std::size_t most);
  std::unique_ptr<CudaChunk> create(Lock* lock, std::size_t size, bool* refused);
  bool destroy_one(Lock* lock);
  bool destroy_front(Lock* lock, std::size_t size);

  bool create_memory(CudaChunk* chunk, std::size_t size, bool* refused);
  bool map_alias(CudaChunk* chunk);
  void destroy(const CudaChunk& chunk);

  const std::shared_ptr<CudaDevice> device_;
  const CudaDriver& driver_;
  CudaStreams* const streams_;
  const std::function<void()> before_release_;
  const CudaAddress aliases_;  // a range per size
  const std::uint64_t aliases_of_a_size_;  // bytes of each
  std::atomic<int> handle_types_;  // what chunks can be exported as
  std::atomic<bool> rdma_capable_;

  std::mutex lock_;  // guards what follows
  Condition destroyed_;
  std::array<std::deque<std::unique_ptr<CudaChunk>>, sizes> free_;  // by size, given back longest ago first
  std::array<std::vector<CudaAddress>, sizes> idle_aliases_;
  std::array<std::uint64_t, sizes> used_aliases_{};  // bytes of each range that were ever used
  std::uint64_t physical_ = 0;  // bytes that exist, or are being created
  std::uint64_t taken_ = 0;  // bytes that were asked for and not given back
  std::uint64_t allowance_ = 0;  // the most that taken_ has been since the last trim
  unsigned destroying_ = 0;  // threads that are about to destroy chunks
};

}  // namespace lms
#endif  // LMS_CUDA_CHUNKS_H

// The memory of a range in another process: what CUDA's own IPC handles are for memory that came from cudaMalloc.
//
// The owner exports a range (CudaBackend::export_range) and sends the numbers of its file descriptors, the sizes and
// its process id by any means; the descriptors stay open at the owner until the other side has opened them. The owner
// must keep the pages where they are (Pager::hold) while anybody has them open: the other process sees the memory
// itself.
#ifndef LMS_CUDA_IPC_H
#define LMS_CUDA_IPC_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../../api.h"
#include "cuda_backend.h"
#include "cuda_device.h"

namespace lms {

// An exported range, open in this process, read and written through an address of its own. Thread-safe.
class LMS_API CudaImport {
 public:
  // `process` is the owner's process id, and the descriptors in `exports` are numbers in that process. Null when it
  // fails; *error is then a sentence.
  static std::unique_ptr<CudaImport> open(int device, std::int64_t process, const std::vector<CudaExport>& exports,
                                          std::string* error);

  CudaImport(std::shared_ptr<CudaDevice> device, CudaAddress address, std::uint64_t bytes)
      : device_(std::move(device)), address_(address), bytes_(bytes) {}
  CudaImport(const CudaImport&) = delete;
  CudaImport& operator=(const CudaImport&) = delete;
  ~CudaImport();  // nothing that was enqueued may still use the memory

  char* address() const { return reinterpret_cast<char*>(static_cast<std::uintptr_t>(address_)); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  bool map(std::int64_t process, const std::vector<CudaExport>& exports);

  const std::shared_ptr<CudaDevice> device_;
  const CudaAddress address_;  // of a reservation
  const std::uint64_t bytes_;
  std::uint64_t mapped_ = 0;  // bytes, from the start
};

}  // namespace lms
#endif  // LMS_CUDA_IPC_H

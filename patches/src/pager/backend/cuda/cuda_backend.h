// The CUDA backend: pages of a CUDA device, through the driver's virtual memory management.
//
// A range's physical memory is a list of chunks (cuda_chunks.h). Contents move on two streams of the backend's own, one
// out and one in, through the chunks' aliases, and are ordered by uses (cuda_streams.h): the host waits only for the
// uses of what it takes away, and where memory has to go back to the driver.
#ifndef LMS_CUDA_BACKEND_H
#define LMS_CUDA_BACKEND_H

#include <cstdint>
#include <memory>
#include <vector>

#include "../../api.h"
#include "../../status.h"
#include "../backend.h"

namespace lms {

// Physical memory in a form that another process can open.
struct CudaExport {
  int file = -1;  // a file descriptor, the caller's to close
  std::uint64_t bytes = 0;
};

class CudaBackend : public Backend {
 public:
  // Appends the memory of a range that has pages, in the order of its addresses. False, with nothing appended, when the
  // device cannot export memory. It is the range's for as long as it has pages; the exporter must keep them there.
  virtual bool export_range(char* address, std::vector<CudaExport>* exports) = 0;
};

// A backend on the device with that number among those that the process sees, with so much address space: at least
// `address_space` bytes, or, for 0, as much as the driver gives up to 1 TiB. Null, with LMS_UNSUPPORTED and a sentence
// that says what to do, when the driver or the device cannot do it.
LMS_API std::unique_ptr<CudaBackend> make_cuda_backend(int device, std::uint64_t address_space, Status* status);

}  // namespace lms
#endif  // LMS_CUDA_BACKEND_H

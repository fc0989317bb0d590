// One CUDA device: its primary context, and the rules of calling the driver for it.
//
// Thread-safe.
#ifndef LMS_CUDA_DEVICE_H
#define LMS_CUDA_DEVICE_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "../../status.h"
#include "cuda_driver.h"

namespace lms {

class CudaDevice {
 public:
  // Null when the device cannot be used; *status then says why and what to do.
  static std::shared_ptr<CudaDevice> open(int ordinal, Status* status);

  CudaDevice(const CudaDriver& driver, int ordinal, CudaDeviceId id, CudaContext context)
      : driver(driver), ordinal(ordinal), id(id), context(context) {}
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice();

  // Whether the call worked. If not, failure() on this thread names the call and the error.
  bool check(CudaResult result, const char* function) const;

  // Changes of mappings. A busy device may answer "not ready" for a moment, so such a call is made again, for about a
  // second; then it has failed, as in check().
  bool map(CudaAddress address, std::size_t bytes, CudaMemory memory) const;
  bool set_access(CudaAddress address, std::size_t bytes, const cuda::AccessDescription* access,
                  std::size_t count) const;
  bool unmap(CudaAddress address, std::size_t bytes) const;

  int attribute(int which) const;         // 0 when the driver does not know it
  std::uint64_t total_bytes() const;      // of memory
  std::uint64_t free_bytes() const;       // of memory, that no process uses; 0 when the driver does not say it
  std::string uuid() const;               // in hexadecimal digits; the same in every process
  int numa_node() const;                  // the node of host memory that is nearest, or -1

  const CudaDriver& driver;
  const int ordinal;
  const CudaDeviceId id;
  const CudaContext context;

 private:
  // Whether the function's last call was still told that the device is not ready when it gave up.
  mutable std::atomic<bool> map_in_vain_{false};
  mutable std::atomic<bool> set_access_in_vain_{false};
  mutable std::atomic<bool> unmap_in_vain_{false};
};

// The span of some calls to the driver: the device's context is current, whatever the thread had before, and calls that
// a capture in CUDA's strict modes forbids are allowed, since none of ours belongs to the program's graphs.
class CudaScope {
 public:
  explicit CudaScope(const CudaDevice& device);
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;
  ~CudaScope();

  // False when the driver cannot be called at all; cuda_failure() says why.
  bool ok() const { return ok_; }

 private:
  const CudaDevice& device_;
  bool ok_ = false;
  bool pushed_ = false;
  int mode_;
};

// This thread's last failure, as the rest of a sentence, and what the driver answered; success when it was not asked.
std::string cuda_failure();
CudaResult cuda_last_result();
bool cuda_fail(std::string sentence, CudaResult result = cuda::success);  // sets both; false

// In a forked child the driver must not be called.
void cuda_set_forked();
bool cuda_forked();

}  // namespace lms
#endif  // LMS_CUDA_DEVICE_H

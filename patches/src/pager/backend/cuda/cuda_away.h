// Ranges that are away from a CUDA device and stay readable there all the same: the memory of their slots is mapped at
// their addresses, so that an access which nothing announced goes over the bus instead of being illegal. A write still
// is, and so is an access that is under way when the block comes back. Needs a driver that can map host memory at
// device addresses (CUDA 12.2).
//
// Off unless the environment says LMS_CUDA_READABLE=1: it takes a call to the driver for each page (2 MiB) of every
// block that leaves, and two more for the block. What such calls cost on a device, ci/gpu's part "mapping" measures.
//
// Thread-safe.
#ifndef LMS_CUDA_AWAY_H
#define LMS_CUDA_AWAY_H

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "../../store.h"
#include "../backend.h"
#include "cuda_device.h"
#include "cuda_streams.h"

namespace lms {

class CudaAway {
 public:
  // Whether the environment asks for it and the device can. A line on stderr says so if it cannot.
  static bool wanted(const CudaDevice& device);

  CudaAway(std::shared_ptr<CudaDevice> device, CudaStreams* streams);
  CudaAway(const CudaAway&) = delete;
  CudaAway& operator=(const CudaAway&) = delete;
  ~CudaAway();  // the device is idle

  // The range has left for the slot, whose contents are complete after the copy. Does nothing when the slot's memory
  // cannot be mapped.
  void add(char* address, std::size_t bytes, const Slot& slot, const Uses& copy);

  // Makes the ranges readable whose contents are complete by now. One for which the driver refuses stays as it is.
  void show();

  // Before the range gets pages again, or its slot is released. False when the device fails.
  bool remove(char* address);

  // Lets another device read the ranges, now and later.
  bool add_reader(CudaDeviceId device);

 private:
  struct Range {
    std::size_t bytes;
    const CudaMemory* pages;  // of the slot
    Uses copy;
    bool shown;
  };

  bool map(char* address, Range* range);

  const std::shared_ptr<CudaDevice> device_;
  CudaStreams* const streams_;

  std::mutex lock_;  // guards what follows, and is held while the driver maps and unmaps
  std::map<char*, Range> ranges_;  // by address
  std::deque<char*> copied_later_;  // those that were not complete when they were added, oldest first
  std::vector<cuda::AccessDescription> readers_;
};

}  // namespace lms
#endif  // LMS_CUDA_AWAY_H

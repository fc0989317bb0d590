#include "cuda_away.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "cuda_chunks.h"
#include "pinned_store.h"

namespace lms {

namespace {

constexpr const char* cuda_away_option = "LMS_CUDA_READABLE";

}  // namespace

bool CudaAway::wanted(const CudaDevice& device) {
  const char* option = std::getenv(cuda_away_option);
  if (option == nullptr || std::strcmp(option, "1") != 0) {
    return false;
  }
  if (device.attribute(cuda::has_virtual_host_memory) == 0) {
    std::fprintf(stderr,
                 "LMS: %s=1 has no effect on CUDA device %d: to map host memory at its addresses needs a driver for "
                 "CUDA 12.2 or later, and a device that can\n",
                 cuda_away_option, device.ordinal);
    return false;
  }
  return true;
}

CudaAway::CudaAway(std::shared_ptr<CudaDevice> device, CudaStreams* streams)
    : device_(std::move(device)), streams_(streams) {
  readers_.push_back(cuda::AccessDescription{{cuda::location_device, device_->id}, cuda::access_read});
}

CudaAway::~CudaAway() {
  while (!ranges_.empty()) {
    if (!remove(ranges_.begin()->first)) {
      return;
    }
  }
}

void CudaAway::add(char* address, std::size_t bytes, const Slot& slot, const Uses& copy) {
  const CudaMemory* pages = pinned_pages(slot);
  if (pages == nullptr) {
    return;
  }
  const std::lock_guard<std::mutex> guard(lock_);
  Range& range = ranges_[address];
  range = Range{bytes, pages, copy, false};
  if (!streams_->over(copy)) {
    copied_later_.push_back(address);
  } else if (!map(address, &range)) {
    ranges_.erase(address);
  }
}

void CudaAway::show() {
  const std::lock_guard<std::mutex> guard(lock_);
  while (!copied_later_.empty()) {
    const auto found = ranges_.find(copied_later_.front());
    // It may have come back since, and left again.
    if (found != ranges_.end() && !found->second.shown) {
      if (!streams_->over(found->second.copy)) {
        return;  // copies end in their order
      }
      if (!map(found->first, &found->second)) {
        ranges_.erase(found);
      }
    }
    copied_later_.pop_front();
  }
}

bool CudaAway::map(char* address, Range* range) {
  const CudaScope scope(*device_);
  if (!scope.ok()) {
    return false;
  }
  const CudaAddress begin = reinterpret_cast<std::uintptr_t>(address);
  std::size_t done = 0;
  while (done < range->bytes && device_->map(begin + done, cuda_page_bytes, range->pages[done / cuda_page_bytes])) {
    done += cuda_page_bytes;
  }
  range->shown = done == range->bytes && device_->set_access(begin, range->bytes, readers_.data(), readers_.size());
  if (!range->shown && done > 0) {
    device_->unmap(begin, done);
  }
  return range->shown;
}

bool CudaAway::remove(char* address) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end()) {
    return true;
  }
  if (found->second.shown) {
    const CudaScope scope(*device_);
    if (!scope.ok() || !device_->unmap(reinterpret_cast<std::uintptr_t>(address), found->second.bytes)) {
      return false;
    }
  }
  ranges_.erase(found);
  return true;
}

bool CudaAway::add_reader(CudaDeviceId device) {
  const std::lock_guard<std::mutex> guard(lock_);
  const CudaScope scope(*device_);
  const cuda::AccessDescription reader = {{cuda::location_device, device}, cuda::access_read};
  for (const auto& one : ranges_) {
    if (!scope.ok() || (one.second.shown && !device_->set_access(reinterpret_cast<std::uintptr_t>(one.first),
                                                                 one.second.bytes, &reader, 1))) {
      return false;
    }
  }
  readers_.push_back(reader);
  return true;
}

}  // namespace lms

#include <ATen/LmsFailures.h>
#include <ATen/LmsResidentBlock.h>

namespace lms_torch {

ResidentBlock::ResidentBlock(const void* address, bool write, lms::StreamId stream)
    : device_(device_of(address)), stream_(stream) {
  if (device_ != nullptr) {
    const lms::Status status = device_->pager->pin(address, write, &pin_, stream);
    if (!status.ok()) {
      throw_status(status);
    }
  }
}

ResidentBlock::~ResidentBlock() {
  if (device_ != nullptr) {
    device_->pager->unpin(pin_, stream_);
  }
}

}  // namespace lms_torch

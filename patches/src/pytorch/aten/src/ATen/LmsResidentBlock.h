// Keeps one block resident for work that no operation announces.
#ifndef ATEN_LMS_RESIDENT_BLOCK_H
#define ATEN_LMS_RESIDENT_BLOCK_H

#include <ATen/LmsDevices.h>
#include <ATen/lms/pager.h>

namespace lms_torch {

// The block stays while the object lives, for work that is enqueued on the stream. Throws when it cannot.
class LMS_API ResidentBlock {
 public:
  // Does nothing for an address that no pager owns. The stream is one of the owner's backend.
  ResidentBlock(const void* address, bool write, lms::StreamId stream);
  ~ResidentBlock();
  ResidentBlock(const ResidentBlock&) = delete;
  ResidentBlock& operator=(const ResidentBlock&) = delete;

 private:
  const Device* device_ = nullptr;
  lms::Pin pin_;
  lms::StreamId stream_;
};

}  // namespace lms_torch
#endif  // ATEN_LMS_RESIDENT_BLOCK_H

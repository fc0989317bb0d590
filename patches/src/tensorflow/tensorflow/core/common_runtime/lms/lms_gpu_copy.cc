#include "tensorflow/core/common_runtime/lms/lms_gpu_copy.h"

#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/common_runtime/lms/lms_pagers.h"

namespace lms_tensorflow {

PinnedCopy::~PinnedCopy() {
  for (const Held& held : held_) {
    held.pager->unpin(held.pin, held.pager == own_ && enqueued_ ? stream_ : lms::host_stream);
  }
}

lms::Status PinnedCopy::hold(const tensorflow::Tensor& tensor, bool write) {
  if (!tensor.IsInitialized() || !tensorflow::DMAHelper::CanUseDMA(&tensor)) {
    return {};
  }
  const void* address = tensorflow::DMAHelper::base(&tensor);
  lms::Pager* pager = pager_of(address);
  if (pager == nullptr) {
    return {};
  }
  // Another device's streams are not known to this one, so what is there has to be complete before the copy is
  // enqueued.
  Held held{pager, lms::Pin{}};
  lms::Status status = pager->pin(address, write, &held.pin, pager == own_ ? stream_ : lms::host_stream);
  if (held.pin.block != nullptr) {
    held_.push_back(held);
  }
  return status;
}

}  // namespace lms_tensorflow

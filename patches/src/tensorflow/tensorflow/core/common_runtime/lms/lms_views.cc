#include "tensorflow/core/common_runtime/lms/lms_views.h"

#include <cstdint>
#include <memory>

namespace {

// DLTensor and DLManagedTensor of DLPack's C interface. They do not change any more: new versions have another struct.
struct SharedTensor {
  void* data;
  std::int32_t device_type;
  std::int32_t device;
  std::int32_t dimensions;
  std::uint8_t type_code;
  std::uint8_t type_bits;
  std::uint16_t type_lanes;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct ManagedTensor {
  SharedTensor tensor;
  void* manager;
  void (*deleter)(ManagedTensor* self);
};

// What stands in for a managed tensor's own manager and deleter while its memory is pinned.
struct Pinned {
  lms_pager* pager;
  lms_pin_token token;
  void* manager;
  void (*deleter)(ManagedTensor* self);
};

void release(ManagedTensor* managed) {
  const std::unique_ptr<Pinned> pinned(static_cast<Pinned*>(managed->manager));
  lms_unpin(pinned->pager, pinned->token);
  managed->manager = pinned->manager;
  managed->deleter = pinned->deleter;
  if (managed->deleter != nullptr) {
    managed->deleter(managed);
  }
}

// The first members of Python's Py_buffer.
struct Buffer {
  void* address;
  void* owner;
};

struct Watched {
  lms_getbuffer stock;
  lms_exported exported;
  lms_release_buffer release_buffer;
  lms_set_error set_error;
};
Watched watched = {};

int watched_getbuffer(void* self, void* view, int flags) {
  const int status = watched.stock(self, view, flags);
  const Buffer* buffer = static_cast<const Buffer*>(view);
  if (status != 0 || buffer->owner == nullptr) {
    return status;
  }
  void* const* error = watched.exported(buffer->owner, buffer->address);
  if (error == nullptr) {
    return 0;
  }
  watched.release_buffer(view);
  watched.set_error(error[0], error[1]);
  return -1;
}

}  // namespace

lms_status lms_tensorflow_pin_dlpack(lms_pager* pager, void* managed) {
  ManagedTensor* tensor = static_cast<ManagedTensor*>(managed);
  std::unique_ptr<Pinned> pinned(new Pinned{pager, {}, tensor->manager, tensor->deleter});
  const lms_status status = lms_pin(pager, tensor->tensor.data, 1, &pinned->token);
  if (status == LMS_OK && pinned->token.block != nullptr) {
    tensor->manager = pinned.release();
    tensor->deleter = release;
  }
  return status;
}

lms_getbuffer lms_tensorflow_watch_buffers(lms_getbuffer stock, lms_exported exported,
                                           lms_release_buffer release_buffer, lms_set_error set_error) {
  watched = {stock, exported, release_buffer, set_error};
  return watched_getbuffer;
}

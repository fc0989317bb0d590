// Memory that leaves TensorFlow without being copied, pinned while it is out; tensorflow/python/lms/_handout.py calls
// this through ctypes. Without Python's and DLPack's headers, so that one binary serves every version of both.
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_VIEWS_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_VIEWS_H_

#include "tensorflow/core/common_runtime/lms/pager/lms.h"

#ifdef __cplusplus
extern "C" {
#endif

// Pins the memory of a DLManagedTensor until its deleter is called, by any code, in any thread. Does nothing where
// the memory is not the pager's.
LMS_API lms_status lms_tensorflow_pin_dlpack(lms_pager* pager, void* managed);

// What stands in a Python type's slot for buffers (getbufferproc), and what is told of every buffer that leaves: the
// object which keeps it alive, and its address. That returns null, or the type and the object of an error. Both are
// called as Python calls the slot.
typedef int (*lms_getbuffer)(void* self, void* view, int flags);
typedef void* const* (*lms_exported)(void* owner, void* address);

// PyBuffer_Release and PyErr_SetObject.
typedef void (*lms_release_buffer)(void* view);
typedef void (*lms_set_error)(void* type, void* value);

// A function that does what `stock` does, and tells `exported` of each success, which an error then makes a failure.
// There is one: a new call changes all.
LMS_API lms_getbuffer lms_tensorflow_watch_buffers(lms_getbuffer stock, lms_exported exported,
                                                   lms_release_buffer release_buffer, lms_set_error set_error);

#ifdef __cplusplus
}
#endif
#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_VIEWS_H_

// The observer: keeps the tensors that an operation uses resident for as long as it runs, on whatever device they are.
#ifndef ATEN_LMS_OBSERVER_H
#define ATEN_LMS_OBSERVER_H

#include <ATen/lms/lms.h>

namespace lms_torch {

// Observes operations while more calls of start than of stop were made. LMS_UNSUPPORTED, and nothing started: in
// releases that keep observers on a stack, another observer is there already. Thread-safe.
LMS_API lms_status start_observing();
LMS_API void stop_observing();

}  // namespace lms_torch

// For torch/lms, which calls it through ctypes.
extern "C" {

// Nonzero where the observer is shown every operation with all of its tensors. Before 1.6 it is not shown lists of
// them, nor copies.
LMS_API int lms_torch_observes_all(void);

}  // extern "C"
#endif  // ATEN_LMS_OBSERVER_H

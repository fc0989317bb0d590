// C functions that connect the pager (ATen/lms/lms.h) to PyTorch's CUDA tensors; torch/lms calls them through ctypes.
// A device is given by its index among those that the process sees. All are thread-safe. Failures: as in lms.h, with
// the sentence in lms_last_error().
#ifndef ATEN_CUDA_LMS_CUDA_H
#define ATEN_CUDA_LMS_CUDA_H

#include <ATen/lms/lms.h>

#ifdef __cplusplus
extern "C" {
#endif

// Pages the device's tensors whose storage has at least `min_size` bytes (> 0), from now on: puts the LMS allocator in
// front of the current one and observes every operation. While enabled already: applies the new options. Storages that
// exist stay where they are. A limit of UINT64_MAX: what the device has free now and the pager holds, less 5 %. Device
// -1: every device that has no pager by then is enabled with these options at its first large request, so that no
// others are initialised. LMS_UNSUPPORTED also when another allocator than PyTorch's own is in use.
LMS_API lms_status lms_torch_cuda_enable(int device, const lms_options* options, uint64_t min_size);

// Brings everything on the device back. When no device is enabled any more, allocator and observer are taken out again.
// On failure LMS stays enabled and nothing is lost. Device -1: no more devices are enabled at their first request.
LMS_API lms_status lms_torch_cuda_disable(int device);

// Lets every device use the blocks of every other one, as far as it can, from now on.
LMS_API lms_status lms_torch_cuda_share_all(void);

LMS_API int lms_torch_cuda_enabled(int device);
LMS_API uint64_t lms_torch_cuda_min_size(int device);  // bytes; the last one that was set
LMS_API lms_pager* lms_torch_cuda_pager(int device);   // null before the first enable; the same from then on

#ifdef __cplusplus
}
#endif
#endif  // ATEN_CUDA_LMS_CUDA_H

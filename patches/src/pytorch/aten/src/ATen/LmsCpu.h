// C functions that connect the pager (ATen/lms/lms.h) to PyTorch's CPU tensors; torch/lms calls them through ctypes.
// All are thread-safe. Failures: as in lms.h, with the sentence in lms_last_error().
#ifndef ATEN_LMS_CPU_H
#define ATEN_LMS_CPU_H

#include <ATen/lms/lms.h>

#ifdef __cplusplus
extern "C" {
#endif

// Pages CPU tensors whose storage has at least `min_size` bytes (> 0), from now on: puts the LMS allocator in front of
// the stock one and observes every operation. While enabled already: applies the new options. Storages that exist stay
// where they are.
LMS_API lms_status lms_torch_cpu_enable(const lms_options* options, uint64_t min_size);

// Brings everything back; every request goes to the stock allocator, and no operation is observed. On failure LMS stays
// enabled and nothing is lost.
LMS_API lms_status lms_torch_cpu_disable(void);

LMS_API int lms_torch_cpu_enabled(void);
LMS_API uint64_t lms_torch_cpu_min_size(void);  // bytes
LMS_API lms_pager* lms_torch_cpu_pager(void);   // null before the first enable; the same from then on

#ifdef __cplusplus
}
#endif
#endif  // ATEN_LMS_CPU_H

// C functions that connect the pager (pager/lms.h) to TensorFlow's devices; tensorflow/python/lms calls them through
// ctypes. Sizes are in bytes. All are thread-safe. Failures: as in lms.h, with the sentence in lms_last_error().
#ifndef TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_TENSORFLOW_H_
#define TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_TENSORFLOW_H_

#include "tensorflow/core/common_runtime/lms/pager/lms.h"

#ifdef __cplusplus
extern "C" {
#endif

// Pages the CPU devices' tensors of at least `min_size` bytes (> 0) that are allocated from now on, those of devices
// that exist included. While enabled already: applies the new options. All CPU devices of the process share one pager.
LMS_API lms_status lms_tensorflow_cpu_enable(const lms_options* options, uint64_t min_size);

// Brings everything back; from now on every request goes to the stock allocator. On failure LMS stays enabled and
// nothing is lost.
LMS_API lms_status lms_tensorflow_cpu_disable(void);

LMS_API int lms_tensorflow_cpu_enabled(void);
LMS_API uint64_t lms_tensorflow_cpu_min_size(void);
LMS_API lms_pager* lms_tensorflow_cpu_pager(void);  // null before the first enable; the same from then on

// What the program decided for devices that are made from now on (tf.config.experimental.set_lms_enabled): nonzero
// enables LMS for the GPUs, and for the CPU if its allocator is BFC with a limit (TF_CPU_ALLOCATOR_USE_BFC,
// TF_CPU_BFC_MEM_LIMIT_IN_MB); zero disables it, and sessions whose ConfigProto asks for it are refused from then on.
// Without a GPU, and without a limit for the CPU, it has no effect before there is one.
LMS_API lms_status lms_tensorflow_set_enabled(int enabled);

// A sentence that says why, when that or a session's ConfigProto has had no effect since the last call; else null.
LMS_API const char* lms_tensorflow_without_effect(void);

// 1 or 0 as set above; -1: never set, so that each session's ConfigProto decides.
LMS_API int lms_tensorflow_enabled(void);

// The limit that lms_tensorflow_set_enabled and sessions use from now on instead of the device's own; 0: that of the
// device; UINT64_MAX: what there is, on the CPU LMS_LIMIT_AUTO. Applies at once to what they enabled. LMS_UNSUPPORTED:
// 0, and the CPU, which they enabled, has no limit of its own.
LMS_API lms_status lms_tensorflow_set_limit(uint64_t limit);

// How lms_tensorflow_set_enabled and sessions share that limit with other processes, as `share` of lms_options has it,
// from now on; null, as at first: not at all.
LMS_API void lms_tensorflow_set_share(const char* terms);

// Bounds in operations, as lms::Distances (pager/policy/policy.h) has them, for all devices; those that are made later,
// too.
LMS_API void lms_tensorflow_set_distances(uint64_t out_least, uint64_t in_least, uint64_t in_most, int early_out);

// What operations put out stays resident if their name begins with one of `scopes`, their type is one of `types`, or
// their name one of `names`; and, unless both `paged_` lists are empty, if they are of neither of these. Each is a
// list, a line for every entry, or null. Replaces what was asked before; holds for what is put out from then on.
LMS_API void lms_tensorflow_keep_resident(const char* scopes, const char* types, const char* names,
                                          const char* paged_scopes, const char* paged_types);

// The same for the GPUs, only in a build with CUDA. A GPU is given by its number among those that the process sees,
// whatever TensorFlow makes of it. Before it has devices nothing but the number and `min_size` is looked at: the rest
// happens, and fails, when it gets some. A limit of UINT64_MAX: what it has free then and the pager holds, less 5 %.
// LMS_UNSUPPORTED: it has devices, and TensorFlow's allocator has taken all of its memory.
LMS_API lms_status lms_tensorflow_gpu_enable(int gpu, const lms_options* options, uint64_t min_size);
LMS_API lms_status lms_tensorflow_gpu_disable(int gpu);
LMS_API int lms_tensorflow_gpu_enabled(int gpu);
LMS_API uint64_t lms_tensorflow_gpu_min_size(int gpu);
LMS_API lms_pager* lms_tensorflow_gpu_pager(int gpu);

// What TensorFlow's allocators of the GPU count, and the pager with them: num_allocs, bytes_in_use, peak_bytes_in_use,
// largest_alloc_size (of TensorFlow's alone), bytes_limit (0: none), bytes_reserved, peak_bytes_reserved,
// bytes_reservable_limit (0: none). Peaks are added, though they need not be of the same moment. Returns 0, and fills
// nothing, while the GPU has no devices.
#define LMS_GPU_COUNTERS 8
LMS_API int lms_tensorflow_gpu_counters(int gpu, int64_t* values);

// bytes_in_use and peak_bytes_in_use of the host memory of a NUMA node that TensorFlow has for copies, and of what the
// pagers of the GPUs on that node keep there.
LMS_API int lms_tensorflow_gpu_host_counters(int numa_node, int64_t* values);

#ifdef __cplusplus
}
#endif
#endif  // TENSORFLOW_CORE_COMMON_RUNTIME_LMS_LMS_TENSORFLOW_H_

// The CUDA allocator that PyTorch has without LMS, and how LMS comes in front of it. One of two files defines this:
// LmsAllocatorInterface.cpp where the allocator is an object of an abstract class, as from PyTorch 2.0 on, and
// LmsAllocatorObject.cpp where it is a single object and free functions, as before.
#ifndef ATEN_CUDA_LMS_STOCK_H
#define ATEN_CUDA_LMS_STOCK_H

#include <ATen/lms/lms.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace lms_cuda {
namespace stock {

// LMS_OK, or a failure that says why LMS cannot come in front of the current allocator.
lms_status check();

// Does nothing when LMS is in front already. What check() accepts may still fail, and changes nothing then.
lms_status install();

// An allocator that was put on top of LMS's still calls that, which then stays.
void uninstall();
bool installed();

// Whether the allocator is told which devices use each other's memory.
bool tells_peers();

// What follows asks the stock allocator, which was found when LMS was first installed.

bool initialized();
int64_t reserved_bytes(int device);
double memory_fraction(int device);  // 1 where the release does not tell
void empty_cache();
void release(void* address);

// Whether the error says that the device has too little memory.
bool is_out_of_memory(const c10::Error& error);

bool is_capturing(cudaStream_t stream);

bool profiling();
void report_to_profiler(void* address, int64_t bytes, int device);

}  // namespace stock
}  // namespace lms_cuda
#endif  // ATEN_CUDA_LMS_STOCK_H

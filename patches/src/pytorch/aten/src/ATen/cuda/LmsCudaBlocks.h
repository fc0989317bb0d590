// The pager's blocks as memory of CUDA tensors. All functions are thread-safe.
#ifndef ATEN_CUDA_LMS_CUDA_BLOCKS_H
#define ATEN_CUDA_LMS_CUDA_BLOCKS_H

#include <ATen/cuda/LmsCudaDevices.h>
#include <ATen/lms/backend/cuda/cuda_ipc.h>
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace lms_cuda {

// The device to one of whose blocks the address belongs, or null.
CudaDevice* owner_of(const void* address);

// The block that the address belongs to, or null when it was freed.
void* block_of(CudaDevice* device, const void* address, uint64_t* bytes);

c10::DataPtr allocate_block(CudaDevice* device, uint64_t bytes, c10::cuda::CUDAStream stream);

// Serves the stock allocator's memory, too.
void release_block(void* address);

// Work on the stream may use the block until it is freed.
void record_use(CudaDevice* device, const void* address, c10::cuda::CUDAStream stream);

// The block's memory for other processes, open while it lives; the same for every call. Throws when it cannot.
std::vector<lms::CudaExport> exports_of(CudaDevice* device, void* block);

}  // namespace lms_cuda
#endif  // ATEN_CUDA_LMS_CUDA_BLOCKS_H

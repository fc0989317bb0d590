// Keeps operations that lack their data from giving the device work. PyTorch's observer cannot make an operation fail,
// and on memory that is not there a kernel would lose the device with all that is on it.
#ifndef ATEN_CUDA_LMS_LAUNCHES_H
#define ATEN_CUDA_LMS_LAUNCHES_H

namespace lms_cuda {

// From now on a launch or a copy by an operation that lacks data is not made: what went wrong is thrown in its place
// (lms_torch::throw_lacking). Holds for the libraries that are loaded now, and reach CUDA through their tables of
// imports (LmsImports.h). Costs nothing before the first call. Thread-safe.
void refuse_launches();

}  // namespace lms_cuda
#endif  // ATEN_CUDA_LMS_LAUNCHES_H

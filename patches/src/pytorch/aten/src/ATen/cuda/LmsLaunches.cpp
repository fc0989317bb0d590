#include <ATen/LmsFailures.h>
#include <ATen/cuda/LmsImports.h>
#include <ATen/cuda/LmsLaunches.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <exception>
#include <string>
#include <vector>

namespace lms_cuda {
namespace {

// A function that gives the device work, or tells a library on which stream it is going to: all that a library launches
// by itself comes after that. Where the parameters are written here they are those of CUDA's headers, of which not all
// are there when this is compiled.
template <typename Tag, typename Function>
struct Refused;
template <typename Tag, typename... Args>
struct Refused<Tag, int(Args...)> {
  static int (*original)(Args...);
  static int refusing(Args... args) {
    lms_torch::throw_lacking();
    return original(args...);
  }
};
template <typename Tag, typename... Args>
int (*Refused<Tag, int(Args...)>::original)(Args...) = nullptr;

#define LMS_WORK(ROW)                                                                         \
  ROW(cudaLaunchKernel, int(const void*, dim3, dim3, void**, size_t, void*))                  \
  ROW(cudaLaunchCooperativeKernel, int(const void*, dim3, dim3, void**, size_t, void*))       \
  ROW(cudaLaunchKernelExC, int(const void*, const void*, void**))                             \
  ROW(cudaLaunchHostFunc, int(void*, void*, void*))                                           \
  ROW(cudaGraphLaunch, int(void*, void*))                                                     \
  ROW(cudaMemcpy, int(void*, const void*, size_t, int))                                       \
  ROW(cudaMemcpyAsync, int(void*, const void*, size_t, int, void*))                           \
  ROW(cudaMemcpyPeerAsync, int(void*, int, const void*, int, size_t, void*))                  \
  ROW(cudaMemcpy2DAsync, int(void*, size_t, const void*, size_t, size_t, size_t, int, void*)) \
  ROW(cudaMemset, int(void*, int, size_t))                                                    \
  ROW(cudaMemsetAsync, int(void*, int, size_t, void*))                                        \
  ROW(cublasSetStream_v2, int(void*, void*))                                                  \
  ROW(cudnnSetStream, int(void*, void*))                                                      \
  ROW(cusparseSetStream, int(void*, void*))                                                   \
  ROW(cusolverDnSetStream, int(void*, void*))                                                 \
  ROW(cufftSetStream, int(int, void*))

#define LMS_TAG(name, type) struct Tag_##name;
LMS_WORK(LMS_TAG)

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> names;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t /*size*/, void* all) {
        static_cast<std::vector<std::string>*>(all)->emplace_back(info->dlpi_name);
        return 0;
      },
      &names);
  return names;
}

// The function of that name that some loaded library exports, or null. Not every library is in the global scope.
void* find_function(const char* name, const std::vector<std::string>& libraries) {
  for (const std::string& library : libraries) {
    if (void* handle = library.empty() ? nullptr : ::dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD)) {
      void* found = ::dlsym(handle, name);
      ::dlclose(handle);
      if (found != nullptr) {
        return found;
      }
    }
  }
  return nullptr;
}

template <typename Tag, typename Function>
void refuse(const char* name, const std::vector<std::string>& libraries, Imports* imports) {
  using Row = Refused<Tag, Function>;
  if (void* found = find_function(name, libraries)) {
    Row::original = reinterpret_cast<decltype(Row::original)>(found);
    imports->add(name, found, reinterpret_cast<void*>(&Row::refusing));
  }
}

Imports* make_imports() {
  auto* imports = new Imports;
  const std::vector<std::string> libraries = loaded_libraries();
#define LMS_REFUSE(name, type) refuse<Tag_##name, type>(#name, libraries, imports);
  LMS_WORK(LMS_REFUSE)
  return imports;
}

}  // namespace

void refuse_launches() {
  try {
    static Imports& imports = *make_imports();
    imports.redirect();
  } catch (const std::exception&) {  // the device reports an illegal access then
    return;
  }
}

}  // namespace lms_cuda

// An extension as many libraries have one: functions and a class, bound by pybind11, that get tensors and launch
// kernels on their memory. What stands for a kernel is a copy within the device.
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <vector>

extern "C" int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream);

namespace {

void copy(at::Tensor to, const at::Tensor& from, std::uintptr_t stream) {
  constexpr int within_device = 3;
  cudaMemcpyAsync(to.data_ptr(), from.data_ptr(), from.nbytes(), within_device, reinterpret_cast<void*>(stream));
}

void copy_all(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from, std::uintptr_t stream) {
  for (size_t index = 0; index < to.size(); ++index) {
    copy(to[index], from[index], stream);
  }
}

struct Copier {
  void copy(at::Tensor to, const at::Tensor& from, std::uintptr_t stream) { ::copy(to, from, stream); }
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("copy", &copy);
  module.def("copy_all", &copy_all);
  pybind11::class_<Copier>(module, "Copier").def(pybind11::init<>()).def("copy", &Copier::copy);
  module.def_submodule("nested").def("copy", &copy);
}

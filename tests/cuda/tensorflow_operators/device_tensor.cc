#include "device_tensor.h"

#include <cstddef>

#include "sim.h"
#include "tensorflow/core/framework/allocation_description.pb.h"

namespace stand_in {

using tensorflow::Tensor;
using tensorflow::TensorBuffer;

namespace {

class Alias final : public TensorBuffer {
 public:
  Alias(void* address, std::uint64_t bytes) : TensorBuffer(address), bytes_(bytes) {}
  std::size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* /*description*/) const override {}
  bool OwnsMemory() const override { return false; }

 private:
  const std::uint64_t bytes_;
};

constexpr int read_access = 1;
constexpr int write_access = 3;

}  // namespace

void* address_of(const Tensor& tensor) { return const_cast<char*>(tensor.tensor_data().data()); }

DeviceTensor describe(const Tensor& tensor) {
  DeviceTensor result{tensor.dtype(), tensor.shape(), nullptr, 0};
  if (tensor.NumElements() > 0) {
    result.address = address_of(tensor);
    result.bytes = tensor.tensor_data().size();
  }
  return result;
}

Tensor alias(const DeviceTensor& tensor) {
  if (tensor.bytes == 0) {
    return {tensor.dtype, tensor.shape};
  }
  tensorflow::core::RefCountPtr<TensorBuffer> buffer(new Alias(tensor.address, tensor.bytes));
  return {tensor.dtype, tensor.shape, buffer.get()};
}

bool accessible(int device, const DeviceTensor& tensor, bool write) {
  return tensor.bytes == 0 || sim_accessible(device, reinterpret_cast<std::uint64_t>(tensor.address), tensor.bytes,
                                             write ? write_access : read_access) != 0;
}

}  // namespace stand_in

// Operators that pin tensors for what no observer sees: torch.ops.lms.pin, unpin and pinned_alias.
#include <ATen/LmsDevices.h>
#include <ATen/LmsFailures.h>
#include <ATen/LmsOperationPins.h>
#include <ATen/LmsOperators.h>
#include <ATen/LmsStorages.h>
#include <ATen/lms/pager.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#if __has_include(<ATen/ops/from_blob.h>)
#include <ATen/ops/from_blob.h>
#else
#include <ATen/ATen.h>
#endif

// Until 1.5 a tensor of ATen's is no variable yet.
#if __has_include(<torch/library.h>)
#define LMS_TENSORS_ARE_VARIABLES 1
#else
#include <torch/csrc/autograd/generated/variable_factories.h>
#define LMS_TENSORS_ARE_VARIABLES 0
#endif

namespace lms_torch {
namespace {

// For a view that may be written.
template <typename Tensor>
auto writable_data(const Tensor& tensor, int /*preferred*/) -> decltype(tensor.mutable_data_ptr()) {
  return tensor.mutable_data_ptr();
}
template <typename Tensor>
void* writable_data(const Tensor& tensor, long /*otherwise*/) {
  return tensor.data_ptr();
}

// A pin in an operator's result: the device's position, the block, its generation.
constexpr size_t token_parts = 3;

void check_tokens(bool correct) {
  if (!correct) {
    throw_sentence("lms::unpin takes what lms::pin returned");
  }
}

// `current_stream`: only work on the current streams used the tensors since they were pinned; otherwise, on any. An
// operation marks the streams that it knows of when it ends, and this one knows those.
void unpin(c10::IntArrayRef tokens, bool current_stream) {
  check_tokens(tokens.size() % token_parts == 0);
  CurrentStreams streams;
  for (size_t index = 0; index < tokens.size(); index += token_parts) {
    Held held;
    held.device = static_cast<uint32_t>(tokens[index]);
    check_tokens(held.device < known_count.load(std::memory_order_acquire));
    held.pin = lms::Pin{reinterpret_cast<lms::Block*>(tokens[index + 1]), static_cast<uint64_t>(tokens[index + 2])};
    held.stream = current_stream ? streams.of(held.device) : lms::any_stream;
    if (current_stream && !operation_pins().empty()) {
      operation_pins().push_back(held);
    } else {
      known_devices[held.device].pager()->unpin(held.pin, held.stream);
    }
  }
}

// Pins the storages of all tensors; the result goes to unpin once. `current_stream`: for what is launched on the
// current streams; otherwise for every stream, so that the contents are there when the call returns.
std::vector<int64_t> pin(at::TensorList tensors, bool write, bool current_stream) {
  std::vector<int64_t> tokens;
  const size_t count = known_count.load(std::memory_order_acquire);
  CurrentStreams streams;
  lms::Status status;
  for (const at::Tensor& tensor : tensors) {
    const auto visit = [&](const void* address, c10::StorageImpl* /*storage*/) {
      const KnownDevice* known = find_device(address, count);
      if (known == nullptr || !status.ok()) {
        return;
      }
      const size_t device = position(known);
      lms::Pin pin;
      if (streams.captured(device)) {
        status = known->pager()->hold(address);
      } else {
        status = known->pager()->pin(address, write, &pin, current_stream ? streams.of(device) : lms::host_stream);
      }
      if (pin.block != nullptr) {
        tokens.push_back(static_cast<int64_t>(device));
        tokens.push_back(reinterpret_cast<int64_t>(pin.block));
        tokens.push_back(static_cast<int64_t>(pin.generation));
      }
    };
    visit_storages(tensor, visit);
  }
  if (!status.ok()) {
    unpin(tokens, current_stream);
    throw_status(status);
  }
  return tokens;
}

// The same bytes as `self`, pinned for as long as the result's storage lives: for views that leave PyTorch.
at::Tensor pinned_alias(const at::Tensor& self) {
  const std::vector<int64_t> tokens = pin({self}, /*write=*/true, /*current_stream=*/false);
  if (tokens.empty()) {
    return self;
  }
  const auto drop = [self, tokens](void* /*data*/) { unpin(tokens, /*current_stream=*/false); };
#if LMS_TENSORS_ARE_VARIABLES
  return at::from_blob(writable_data(self, 0), self.sizes(), self.strides(), drop, self.options(), self.device());
#else
  return torch::from_blob(self.data_ptr(), self.sizes(), self.strides(), drop, self.options());  // a variable
#endif
}

std::vector<int64_t> pin_operator(TensorsArgument tensors, bool write, bool current_stream) {
  return pin(tensors, write, current_stream);
}

// Returns how many pins there were.
int64_t unpin_operator(NumbersArgument tokens, bool current_stream) {
  unpin(tokens, current_stream);
  return static_cast<int64_t>(tokens.size() / token_parts);
}

LMS_OPERATORS(library) {
  library.def("pin(Tensor[] tensors, bool write, bool current_stream=False) -> int[]", &pin_operator);
  library.def("unpin(int[] tokens, bool current_stream=False) -> int", &unpin_operator);
  library.def("pinned_alias(Tensor self) -> Tensor", &pinned_alias);
}

}  // namespace
}  // namespace lms_torch

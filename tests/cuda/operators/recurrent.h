// Recurrent networks, which the wheel leaves to cuDNN on a device: computed as on the CPU, of operators that autograd
// sees.
#ifndef RECURRENT_H
#define RECURRENT_H

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace operators {

// One step of nn.LSTMCell and nn.GRUCell.
std::tuple<at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input, at::TensorList state, const at::Tensor& of_input,
                                             const at::Tensor& of_state, const std::optional<at::Tensor>& input_bias,
                                             const std::optional<at::Tensor>& state_bias);
at::Tensor gru_cell(const at::Tensor& input, const at::Tensor& state, const at::Tensor& of_input,
                    const at::Tensor& of_state, const std::optional<at::Tensor>& input_bias,
                    const std::optional<at::Tensor>& state_bias);

// Packed sequences are refused.
void run_recurrent_networks_as_on_cpu();

}  // namespace operators

#endif  // RECURRENT_H

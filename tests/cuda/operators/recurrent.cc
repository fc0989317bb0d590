#include "recurrent.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/RNN.h>

#include <vector>

namespace operators {

namespace {

// The state after a step, from the input's part of the gates, the state before, and the weights of the state's part.
using Cell = at::Tensor (*)(const at::Tensor& input, const at::Tensor& state, const at::Tensor& weight,
                            const at::Tensor& bias);

at::Tensor gru_step(const at::Tensor& input, const at::Tensor& state, const at::Tensor& weight,
                    const at::Tensor& bias) {
  const std::vector<at::Tensor> of_input = input.unsafe_chunk(3, 1);
  std::vector<at::Tensor> of_state = at::linear(state, weight, bias).unsafe_chunk(3, 1);
  const at::Tensor reset = of_state[0].add_(of_input[0]).sigmoid_();
  const at::Tensor update = of_state[1].add_(of_input[1]).sigmoid_();
  const at::Tensor fresh = of_input[2].add(of_state[2].mul_(reset)).tanh_();
  return state.sub(fresh).mul_(update).add_(fresh);
}

at::Tensor sum_cell(const at::Tensor& input, const at::Tensor& state, const at::Tensor& weight,
                    const at::Tensor& bias) {
  return at::linear(state, weight, bias).add_(input);
}

at::Tensor tanh_cell(const at::Tensor& input, const at::Tensor& state, const at::Tensor& weight,
                     const at::Tensor& bias) {
  return at::tanh(sum_cell(input, state, weight, bias));
}

at::Tensor relu_cell(const at::Tensor& input, const at::Tensor& state, const at::Tensor& weight,
                     const at::Tensor& bias) {
  return at::relu(sum_cell(input, state, weight, bias));
}

// One direction of one layer over input[time, batch, feature]. `weights`: of input and state, and their biases.
at::Tensor run_direction(Cell cell, const at::Tensor& input, at::Tensor* state, at::TensorList weights,
                         bool backwards) {
  const bool biases = weights.size() == 4;
  const std::vector<at::Tensor> steps =
      at::linear(input, weights[0], biases ? weights[2] : at::Tensor()).unbind(0);  // for all steps at once
  const std::size_t count = steps.size();
  std::vector<at::Tensor> outputs(count);
  for (std::size_t index = 0; index < count; ++index) {
    const std::size_t at = backwards ? count - 1 - index : index;
    *state = cell(steps[at], *state, weights[1], biases ? weights[3] : at::Tensor());
    outputs[at] = *state;
  }
  return at::stack(outputs, 0);
}

template <Cell cell>
void run(at::Tensor& output, at::Tensor& last, const at::Tensor& input, const at::Tensor& initial,
         at::TensorList parameters, bool biases, std::int64_t layers, double dropout, bool train, bool bidirectional,
         bool batch_first) {
  at::Tensor values = batch_first ? input.transpose(0, 1) : input;
  const std::vector<at::Tensor> states = initial.unbind(0);
  const std::size_t each = biases ? 4 : 2;
  const std::int64_t directions = bidirectional ? 2 : 1;
  std::vector<at::Tensor> ends;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    std::vector<at::Tensor> outputs;
    for (std::int64_t direction = 0; direction < directions; ++direction) {
      const auto index = static_cast<std::size_t>(layer * directions + direction);
      at::Tensor state = states[index];
      outputs.push_back(run_direction(cell, values, &state, parameters.slice(index * each, each), direction == 1));
      ends.push_back(state);
    }
    values = bidirectional ? at::cat(outputs, outputs[0].dim() - 1) : outputs[0];
    if (dropout != 0 && train && layer < layers - 1) {
      values = at::dropout(values, dropout, train);
    }
  }
  output = batch_first ? values.transpose(0, 1) : values;
  last = at::stack(ends, 0);
}

// Hidden state and cell after a step. `projection` may be undefined.
void lstm_step(const at::Tensor& input, at::Tensor* hidden, at::Tensor* cell, const at::Tensor& weight,
               const at::Tensor& bias, const at::Tensor& projection) {
  const std::vector<at::Tensor> gates = at::linear(*hidden, weight, bias).add_(input).unsafe_chunk(4, 1);
  const at::Tensor in = gates[0].sigmoid();
  const at::Tensor keep = gates[1].sigmoid();
  const at::Tensor fresh = gates[2].tanh();
  const at::Tensor out = gates[3].sigmoid();
  *cell = (keep * *cell).add_(in * fresh);
  *hidden = out * cell->tanh();
  if (projection.defined()) {
    *hidden = at::matmul(*hidden, projection.t());
  }
}

// In which types and shapes the CPU has no library's function for it.
void run_lstm_by_steps(at::Tensor& output, at::Tensor& last_hidden, at::Tensor& last_cell, const at::Tensor& input,
                       at::TensorList initial, at::TensorList parameters, bool biases, std::int64_t layers,
                       double dropout, bool train, bool bidirectional, bool batch_first, bool projected) {
  at::Tensor values = batch_first ? input.transpose(0, 1) : input;
  const std::vector<at::Tensor> hiddens = initial[0].unbind(0);
  const std::vector<at::Tensor> cells = initial[1].unbind(0);
  const std::size_t each = (biases ? 4 : 2) + (projected ? 1 : 0);
  const std::int64_t directions = bidirectional ? 2 : 1;
  std::vector<at::Tensor> hidden_ends;
  std::vector<at::Tensor> cell_ends;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    std::vector<at::Tensor> outputs;
    for (std::int64_t direction = 0; direction < directions; ++direction) {
      const auto index = static_cast<std::size_t>(layer * directions + direction);
      const at::TensorList weights = parameters.slice(index * each, each);
      const at::Tensor none;
      const std::vector<at::Tensor> steps =
          at::linear(values, weights[0], biases ? weights[2] : none).unbind(0);  // for all steps at once
      std::vector<at::Tensor> made(steps.size());
      at::Tensor hidden = hiddens[index];
      at::Tensor cell = cells[index];
      for (std::size_t step = 0; step < steps.size(); ++step) {
        const std::size_t at = direction == 1 ? steps.size() - 1 - step : step;
        lstm_step(steps[at], &hidden, &cell, weights[1], biases ? weights[3] : none,
                  projected ? weights[each - 1] : none);
        made[at] = hidden;
      }
      outputs.push_back(at::stack(made, 0));
      hidden_ends.push_back(hidden);
      cell_ends.push_back(cell);
    }
    values = bidirectional ? at::cat(outputs, outputs[0].dim() - 1) : outputs[0];
    if (dropout != 0 && train && layer < layers - 1) {
      values = at::dropout(values, dropout, train);
    }
  }
  output = batch_first ? values.transpose(0, 1) : values;
  last_hidden = at::stack(hidden_ends, 0);
  last_cell = at::stack(cell_ends, 0);
}

void run_lstm(at::Tensor& output, at::Tensor& hidden, at::Tensor& cell, const at::Tensor& input, at::TensorList initial,
              at::TensorList parameters, bool biases, std::int64_t layers, double dropout, bool train,
              bool bidirectional, bool batch_first) {
  const at::ScalarType type = input.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(type == at::kFloat || type == at::kDouble,
                              "simulated CUDA: an LSTM has no stand-in for 16-bit floats");
  const bool projected = initial[0].size(-1) != initial[1].size(-1);
  if (type == at::kFloat && !projected) {
    at::native::lstm_mkldnn_stub(at::kCPU, output, hidden, cell, input, initial, parameters, biases, layers, dropout,
                                 train, bidirectional, batch_first);
  } else {
    run_lstm_by_steps(output, hidden, cell, input, initial, parameters, biases, layers, dropout, train, bidirectional,
                      batch_first, projected);
  }
}

void refuse() {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "simulated CUDA: recurrent networks have no stand-in for packed sequences");
}

void refuse_lstm(at::Tensor&, at::Tensor&, at::Tensor&, const at::Tensor&, const at::Tensor&, at::TensorList,
                 at::TensorList, bool, std::int64_t, double, bool, bool) {
  refuse();
}

void refuse_packed(at::Tensor&, at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, at::TensorList,
                   bool, std::int64_t, double, bool, bool) {
  refuse();
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input, at::TensorList state, const at::Tensor& of_input,
                                             const at::Tensor& of_state, const std::optional<at::Tensor>& input_bias,
                                             const std::optional<at::Tensor>& state_bias) {
  at::Tensor hidden = state[0];
  at::Tensor cell = state[1];
  lstm_step(at::linear(input, of_input, input_bias), &hidden, &cell, of_state, state_bias.value_or(at::Tensor()), {});
  return {hidden, cell};
}

at::Tensor gru_cell(const at::Tensor& input, const at::Tensor& state, const at::Tensor& of_input,
                    const at::Tensor& of_state, const std::optional<at::Tensor>& input_bias,
                    const std::optional<at::Tensor>& state_bias) {
  return gru_step(at::linear(input, of_input, input_bias), state, of_state, state_bias.value_or(at::Tensor()));
}

void run_recurrent_networks_as_on_cpu() {
  at::native::lstm_cudnn_stub.set_cuda_dispatch_ptr(&run_lstm);
  at::native::gru_cudnn_stub.set_cuda_dispatch_ptr(&run<gru_step>);
  at::native::rnn_tanh_cudnn_stub.set_cuda_dispatch_ptr(&run<tanh_cell>);
  at::native::rnn_relu_cudnn_stub.set_cuda_dispatch_ptr(&run<relu_cell>);
  at::native::lstm_packed_cudnn_stub.set_cuda_dispatch_ptr(&refuse_lstm);
  at::native::gru_packed_cudnn_stub.set_cuda_dispatch_ptr(&refuse_packed);
  at::native::rnn_tanh_packed_cudnn_stub.set_cuda_dispatch_ptr(&refuse_packed);
  at::native::rnn_relu_packed_cudnn_stub.set_cuda_dispatch_ptr(&refuse_packed);
}

}  // namespace operators

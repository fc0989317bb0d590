#include "recurrent.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/RNN.h>

#include <vector>

namespace operators {

namespace {

// What is carried from step to step: the hidden state, and an LSTM's cell behind it.
using State = std::vector<at::Tensor>;

// Those that the state is multiplied by. The bias may be undefined, and the projection, which only LSTMs have.
struct Weights {
  at::Tensor state;
  at::Tensor bias;
  at::Tensor projection;
};

// Takes the state on, given the input's part of the gates.
using Step = void (*)(const at::Tensor& input, State* state, const Weights& weights);

void lstm_step(const at::Tensor& input, State* state, const Weights& weights) {
  at::Tensor& hidden = (*state)[0];
  at::Tensor& cell = (*state)[1];
  const std::vector<at::Tensor> gates = at::linear(hidden, weights.state, weights.bias).add_(input).unsafe_chunk(4, 1);
  const at::Tensor in = gates[0].sigmoid();
  const at::Tensor keep = gates[1].sigmoid();
  const at::Tensor fresh = gates[2].tanh();
  const at::Tensor out = gates[3].sigmoid();
  cell = (keep * cell).add_(in * fresh);
  hidden = out * cell.tanh();
  if (weights.projection.defined()) {
    hidden = at::matmul(hidden, weights.projection.t());
  }
}

void gru_step(const at::Tensor& input, State* state, const Weights& weights) {
  at::Tensor& hidden = (*state)[0];
  const std::vector<at::Tensor> of_input = input.unsafe_chunk(3, 1);
  std::vector<at::Tensor> of_state = at::linear(hidden, weights.state, weights.bias).unsafe_chunk(3, 1);
  const at::Tensor reset = of_state[0].add_(of_input[0]).sigmoid_();
  const at::Tensor update = of_state[1].add_(of_input[1]).sigmoid_();
  const at::Tensor fresh = of_input[2].add(of_state[2].mul_(reset)).tanh_();
  hidden = hidden.sub(fresh).mul_(update).add_(fresh);
}

at::Tensor sum_of(const at::Tensor& input, const State& state, const Weights& weights) {
  return at::linear(state[0], weights.state, weights.bias).add_(input);
}
void tanh_step(const at::Tensor& input, State* state, const Weights& weights) {
  (*state)[0] = at::tanh(sum_of(input, *state, weights));
}
void relu_step(const at::Tensor& input, State* state, const Weights& weights) {
  (*state)[0] = at::relu(sum_of(input, *state, weights));
}

// What cuDNN is told of a network. `parameters`: for each direction of each layer the weights of input and state, their
// biases, and the projection, as far as there are any.
struct Network {
  at::TensorList parameters;
  bool biases;
  bool projected;
  std::int64_t layers;
  double dropout;
  bool train;
  bool bidirectional;
  bool batch_first;
};

// One direction of one layer over input[time, batch, feature].
at::Tensor run_direction(Step step, const at::Tensor& input, State* state, const Network& network, std::size_t index,
                         bool backwards) {
  const std::size_t each = (network.biases ? 4 : 2) + (network.projected ? 1 : 0);
  const at::TensorList parameters = network.parameters.slice(index * each, each);
  const at::Tensor none;
  const Weights weights{parameters[1], network.biases ? parameters[3] : none,
                        network.projected ? parameters.back() : none};
  const std::vector<at::Tensor> inputs =
      at::linear(input, parameters[0], network.biases ? parameters[2] : none).unbind(0);  // for all steps at once
  std::vector<at::Tensor> outputs(inputs.size());
  for (std::size_t count = 0; count < inputs.size(); ++count) {
    const std::size_t at = backwards ? inputs.size() - 1 - count : count;
    step(inputs[at], state, weights);
    outputs[at] = (*state)[0];
  }
  return at::stack(outputs, 0);
}

// `state`: for each direction of each layer, stacked; becomes the last ones.
at::Tensor run_network(Step step, const at::Tensor& input, State* state, const Network& network) {
  at::Tensor values = network.batch_first ? input.transpose(0, 1) : input;
  const std::int64_t directions = network.bidirectional ? 2 : 1;
  std::vector<std::vector<at::Tensor>> begins;
  for (const at::Tensor& part : *state) {
    begins.push_back(part.unbind(0));
  }
  std::vector<std::vector<at::Tensor>> ends(state->size());
  for (std::int64_t layer = 0; layer < network.layers; ++layer) {
    std::vector<at::Tensor> outputs;
    for (std::int64_t direction = 0; direction < directions; ++direction) {
      const auto index = static_cast<std::size_t>(layer * directions + direction);
      State own;
      for (const std::vector<at::Tensor>& part : begins) {
        own.push_back(part[index]);
      }
      outputs.push_back(run_direction(step, values, &own, network, index, direction == 1));
      for (std::size_t part = 0; part < own.size(); ++part) {
        ends[part].push_back(own[part]);
      }
    }
    values = network.bidirectional ? at::cat(outputs, outputs[0].dim() - 1) : outputs[0];
    if (network.dropout != 0 && network.train && layer < network.layers - 1) {
      values = at::dropout(values, network.dropout, network.train);
    }
  }
  for (std::size_t part = 0; part < ends.size(); ++part) {
    (*state)[part] = at::stack(ends[part], 0);
  }
  return network.batch_first ? values.transpose(0, 1) : values;
}

template <Step step>
void run(at::Tensor& output, at::Tensor& last, const at::Tensor& input, const at::Tensor& initial,
         at::TensorList parameters, bool biases, std::int64_t layers, double dropout, bool train, bool bidirectional,
         bool batch_first) {
  State state{initial};
  output = run_network(step, input, &state,
                       {parameters, biases, /*projected=*/false, layers, dropout, train, bidirectional, batch_first});
  last = state[0];
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
    return;
  }
  State state = initial.vec();
  output = run_network(lstm_step, input, &state,
                       {parameters, biases, projected, layers, dropout, train, bidirectional, batch_first});
  hidden = state[0];
  cell = state[1];
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
  State next = state.vec();
  lstm_step(at::linear(input, of_input, input_bias), &next, {of_state, state_bias.value_or(at::Tensor()), {}});
  return {next[0], next[1]};
}

at::Tensor gru_cell(const at::Tensor& input, const at::Tensor& state, const at::Tensor& of_input,
                    const at::Tensor& of_state, const std::optional<at::Tensor>& input_bias,
                    const std::optional<at::Tensor>& state_bias) {
  State next{state};
  gru_step(at::linear(input, of_input, input_bias), &next, {of_state, state_bias.value_or(at::Tensor()), {}});
  return next[0];
}

void run_recurrent_networks_as_on_cpu() {
  at::native::lstm_cudnn_stub.set_cuda_dispatch_ptr(&run_lstm);
  at::native::gru_cudnn_stub.set_cuda_dispatch_ptr(&run<gru_step>);
  at::native::rnn_tanh_cudnn_stub.set_cuda_dispatch_ptr(&run<tanh_step>);
  at::native::rnn_relu_cudnn_stub.set_cuda_dispatch_ptr(&run<relu_step>);
  at::native::lstm_packed_cudnn_stub.set_cuda_dispatch_ptr(&refuse_lstm);
  at::native::gru_packed_cudnn_stub.set_cuda_dispatch_ptr(&refuse_packed);
  at::native::rnn_tanh_packed_cudnn_stub.set_cuda_dispatch_ptr(&refuse_packed);
  at::native::rnn_relu_packed_cudnn_stub.set_cuda_dispatch_ptr(&refuse_packed);
}

}  // namespace operators

// SPDX-License-Identifier: BSD-3-Clause
// The steps of one layer of an LSTM, a GRU or a plain recurrent net in one direction, as one
// operator: the chain runs it with one plan, or with one queued call on the CPU. The products of
// the layer's inputs are computed beforehand.
//
// Sequences are either of equal lengths, with tensors of [steps, batch, …], or packed, with tensors
// of [rows, …] and the steps' first rows in `offsets`. Then a step's rows belong to the first
// sequences of the batch, and later steps have as many or fewer.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cstdint>
#include <tuple>
#include <vector>

namespace outboard {

enum class Recurrence : uint8_t { Lstm, Gru, Tanh, Relu };

using OptionalTensor = std::optional<at::Tensor>;

inline bool is_given(const OptionalTensor& tensor) {
  return tensor.has_value() && tensor->defined();
}

inline OptionalTensor or_none(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

// The arguments of `outboard::recurrent`. `gates` has the products of the inputs, without biases.
// Only LSTMs have a projection of the state.
struct RecurrentSteps {
  at::Tensor gates;
  at::Tensor h0;
  OptionalTensor c0;
  at::Tensor weight;  // weight of the hidden state, with a row for each gate of each cell
  OptionalTensor input_bias;
  OptionalTensor hidden_bias;
  OptionalTensor projection;
  OptionalTensor offsets;
  Recurrence kind = Recurrence::Lstm;
  bool is_reversed = false;
};

// The states of all steps, the last states, and the data for gradients: the states before each
// step, and the activated gates of each row. For LSTMs, these are followed by the cells before the
// step; for GRUs, by the hidden part of the third gate.
struct RecurrentResults {
  at::Tensor output;
  at::Tensor hy;
  at::Tensor cy;
  at::Tensor previous;
  at::Tensor kept;
};

// The gradients of the input's and of the hidden state's part of the gates (the second is undefined
// if both are equal), of the initial states, and of the projected states of each step.
struct RecurrentGradients {
  at::Tensor gates;
  at::Tensor hidden_gates;
  at::Tensor h0;
  at::Tensor c0;
  at::Tensor projected;
};

int64_t gates_of(Recurrence kind);

// For sequences of equal lengths, return the first row of each step, and the end.
std::vector<int64_t> first_rows_of_steps(int64_t steps, int64_t batch);

// Return the states as compositions of differentiable operators.
// `first_rows` are the offsets as numbers.
RecurrentResults composed_steps(const RecurrentSteps& steps_of_call, at::IntArrayRef first_rows, bool keeps);

// Call the operators.
RecurrentResults run_steps(const RecurrentSteps& steps_of_call, bool keeps);
RecurrentGradients run_steps_backward(const OptionalTensor& grad_output, const OptionalTensor& grad_hy,
                                      const OptionalTensor& grad_cy, const RecurrentSteps& steps_of_call,
                                      const RecurrentResults& results);

// Return true for a nonempty tensor with the device and type of `like` that no transformation
// wraps, neither a compiler's nor torch.func's. Return false for forward-mode derivatives, for
// which the steps have no formula.
bool is_recurrent_tensor(const at::Tensor& tensor, const at::Tensor& like);

void define_recurrent_steps(torch::Library& own);

}  // namespace outboard

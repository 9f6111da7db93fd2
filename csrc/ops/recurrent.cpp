// SPDX-License-Identifier: BSD-3-Clause
// The fused cells that torch's LSTM and GRU call on every device but the CPU, from operators that have kernels.
#include <ATen/ATen.h>

#include <tuple>

#include "ops/factories.h"

namespace outboard {

namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor with_bias(const at::Tensor& gates, const OptionalTensor& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

// Workspace: the activated gates i, f, g, o side by side, which the backward pass needs.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                                         const at::Tensor& cx, const OptionalTensor& input_bias,
                                                         const OptionalTensor& hidden_bias) {
  const at::Tensor gates = with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias);
  const std::vector<at::Tensor> parts = gates.unsafe_chunk(4, 1);
  const at::Tensor in = parts[0].sigmoid();
  const at::Tensor forget = parts[1].sigmoid();
  const at::Tensor cell = parts[2].tanh();
  const at::Tensor out = parts[3].sigmoid();
  at::Tensor cy = forget * cx + in * cell;
  at::Tensor hy = out * cy.tanh();
  return {std::move(hy), std::move(cy), at::cat({in, forget, cell, out}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(const OptionalTensor& grad_hy,
                                                                  const OptionalTensor& grad_cy, const at::Tensor& cx,
                                                                  const at::Tensor& cy, const at::Tensor& workspace,
                                                                  bool has_bias) {
  const bool has_hy = grad_hy.has_value() && grad_hy->defined();
  const bool has_cy = grad_cy.has_value() && grad_cy->defined();
  if (!has_hy && !has_cy) {
    return {};
  }
  const std::vector<at::Tensor> parts = workspace.unsafe_chunk(4, 1);
  const at::Tensor &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const at::Tensor tanh_cy = cy.tanh();
  at::Tensor grad_c = has_cy ? *grad_cy : at::Tensor();
  at::Tensor grad_out;
  if (has_hy) {
    const at::Tensor through_tanh = *grad_hy * out * (1 - tanh_cy * tanh_cy);
    grad_c = has_cy ? grad_c + through_tanh : through_tanh;
    grad_out = *grad_hy * tanh_cy * out * (1 - out);
  } else {
    grad_out = at::zeros_like(out);
  }
  const at::Tensor grad_gates = at::cat(
      {grad_c * cell * in * (1 - in), grad_c * cx * forget * (1 - forget), grad_c * in * (1 - cell * cell), grad_out},
      1);
  at::Tensor grad_bias = has_bias ? grad_gates.sum(0) : at::Tensor();
  return {grad_gates, grad_c * forget, std::move(grad_bias)};
}

// Workspace: r, z, n, hx and the hidden part of n with its bias, side by side.
std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                            const at::Tensor& hx, const OptionalTensor& input_bias,
                                            const OptionalTensor& hidden_bias) {
  const std::vector<at::Tensor> in = with_bias(input_gates, input_bias).unsafe_chunk(3, 1);
  const std::vector<at::Tensor> hidden = with_bias(hidden_gates, hidden_bias).unsafe_chunk(3, 1);
  const at::Tensor reset = (hidden[0] + in[0]).sigmoid();
  const at::Tensor update = (hidden[1] + in[1]).sigmoid();
  const at::Tensor fresh = (in[2] + hidden[2] * reset).tanh();
  return {(hx - fresh) * update + fresh, at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(const at::Tensor& grad_hy,
                                                                                         const at::Tensor& workspace,
                                                                                         bool has_bias) {
  const std::vector<at::Tensor> parts = workspace.unsafe_chunk(5, 1);
  const at::Tensor &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3], &hidden = parts[4];
  const at::Tensor grad_hx = grad_hy * update;
  const at::Tensor grad_fresh = grad_hy * (1 - update) * (1 - fresh * fresh);
  const at::Tensor grad_update = grad_hy * (hx - fresh) * update * (1 - update);
  const at::Tensor grad_reset = grad_fresh * hidden * reset * (1 - reset);
  const at::Tensor grad_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  const at::Tensor grad_hidden = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  at::Tensor input_bias = has_bias ? grad_input.sum(0) : at::Tensor();
  at::Tensor hidden_bias = has_bias ? grad_hidden.sum(0) : at::Tensor();
  return {grad_input, grad_hidden, grad_hx, std::move(input_bias), std::move(hidden_bias)};
}

}  // namespace

void register_recurrent(torch::Library& aten) {
  aten.impl("_thnn_fused_lstm_cell", lstm_cell);
  aten.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  aten.impl("_thnn_fused_gru_cell", gru_cell);
  aten.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace outboard

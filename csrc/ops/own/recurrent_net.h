// SPDX-License-Identifier: BSD-3-Clause
// LSTMs, GRUs and plain recurrent nets on whole sequences: as one operator of the driver, or layer
// by layer.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/own/recurrent_steps.h"

namespace outboard {

// A call of torch's operators with valid arguments. `batch_sizes` is set for packed sequences, and
// has one number per step.
struct RecurrentNet {
  Recurrence kind;
  at::Tensor input;  // [steps, batch, …], or [rows, …] if packed
  std::vector<int64_t> batch_sizes;
  at::Tensor hx;
  at::Tensor cx;  // undefined unless it is an LSTM
  std::vector<at::Tensor> params;
  bool has_biases;
  int64_t layers;
  double dropout;  // between layers
  int64_t directions;

  bool has_projection() const { return kind == Recurrence::Lstm && hx.size(2) != cx.size(2); }
  size_t params_each() const { return 2 + (has_biases ? 2 : 0) + (has_projection() ? 1 : 0); }
};

// The states of all steps, the last states, and the last cells of an LSTM.
using NetResults = std::array<at::Tensor, 3>;

// Run a net layer by layer, with outboard::recurrent.
NetResults run_layers(const RecurrentNet& net);

// Return true if a driver's fused kernel for nets may be queried.
bool may_run_fused();

// Run a net without dropout as one operator of the driver, with a formula for gradients. Return
// nothing if the driver declines.
std::optional<NetResults> run_fused(const RecurrentNet& net);

void define_fused_nets(torch::Library& own);

}  // namespace outboard

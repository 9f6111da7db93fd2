// SPDX-License-Identifier: BSD-3-Clause
// One layer of a recurrent net in one direction, with a formula for gradients: the inputs of all
// steps are multiplied at once, and the steps are one operator (recurrent_steps.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ops/own/recurrent_steps.h"

namespace outboard {

struct RecurrentLayer {
  at::Tensor input;
  at::Tensor input_weight;
  RecurrentSteps steps;  // without gates
  std::vector<int64_t> first_rows;  // for packed sequences the offsets as numbers, else empty
};

// Return the states of all steps, the last state, and the last cells of an LSTM.
std::vector<at::Tensor> run_layer(const RecurrentLayer& layer);

// Return the gradients of the inputs that require one, through results that are functions of the
// inputs. The gradients are themselves differentiable. Results without a gradient have an undefined
// one.
std::vector<at::Tensor> differentiable_gradients(at::TensorList results, at::TensorList grads, at::TensorList inputs);

}  // namespace outboard

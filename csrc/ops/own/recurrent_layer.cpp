// SPDX-License-Identifier: BSD-3-Clause
#include "ops/own/recurrent_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>

namespace outboard {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor or_undefined(const OptionalTensor& tensor) {
  return tensor.value_or(at::Tensor());
}

at::Tensor as_rows(const at::Tensor& tensor) {
  return tensor.reshape({-1, tensor.size(-1)});
}

at::Tensor products_of(const RecurrentLayer& layer) {
  std::vector<int64_t> sizes(layer.input.sizes().begin(), layer.input.sizes().end());
  sizes.back() = layer.input_weight.size(0);
  return at::mm(as_rows(layer.input), layer.input_weight.t()).view(sizes);
}

variable_list states_of(const RecurrentResults& results) {
  return results.cy.defined() ? variable_list{results.output, results.hy, results.cy}
                              : variable_list{results.output, results.hy};
}

RecurrentResults results_of(RecurrentLayer layer, bool keeps) {
  layer.steps.gates = products_of(layer);
  return run_steps(layer.steps, keeps);
}

// Return the tensors that have gradients, in the order of the function's arguments.
std::array<at::Tensor, 8> inputs_of(const RecurrentLayer& layer) {
  const RecurrentSteps& steps = layer.steps;
  return {layer.input,
          steps.h0,
          or_undefined(steps.c0),
          layer.input_weight,
          steps.weight,
          or_undefined(steps.input_bias),
          or_undefined(steps.hidden_bias),
          or_undefined(steps.projection)};
}

// Return the gradients as functions of the inputs, for second derivatives, by running the steps
// again as operators.
variable_list composed_gradients(RecurrentLayer layer, const variable_list& grads) {
  layer.steps.gates = products_of(layer);
  const std::vector<int64_t> first =
      layer.first_rows.empty() ? first_rows_of_steps(layer.input.size(0), layer.input.size(1)) : layer.first_rows;
  return differentiable_gradients(states_of(composed_steps(layer.steps, first, /*keeps=*/false)), grads,
                                  inputs_of(layer));
}

// Return the hidden states of each step before their projection.
at::Tensor unprojected(const at::Tensor& kept) {
  const std::vector<at::Tensor> parts = as_rows(kept).chunk(5, 1);
  return parts[3] * (parts[1] * parts[4] + parts[0] * parts[2]).tanh();
}

variable_list gradients_of_layer(const RecurrentLayer& layer, const RecurrentResults& results,
                                 const variable_list& grads) {
  const RecurrentSteps& steps = layer.steps;
  const RecurrentGradients of_steps = run_steps_backward(
      or_none(grads[0]), or_none(grads[1]), grads.size() > 2 ? or_none(grads[2]) : std::nullopt, steps, results);
  const at::Tensor gates = as_rows(of_steps.gates);
  const at::Tensor hidden = of_steps.hidden_gates.defined() ? as_rows(of_steps.hidden_gates) : gates;
  variable_list gradients(8);
  if (layer.input.requires_grad()) {
    gradients[0] = at::mm(gates, layer.input_weight).view(layer.input.sizes());
  }
  gradients[1] = of_steps.h0;
  gradients[2] = of_steps.c0;
  if (layer.input_weight.requires_grad()) {
    gradients[3] = at::mm(gates.t(), as_rows(layer.input));
  }
  if (steps.weight.requires_grad()) {
    gradients[4] = at::mm(hidden.t(), as_rows(results.previous));
  }
  if (steps.input_bias.has_value()) {
    gradients[5] = gates.sum(0);
    gradients[6] = of_steps.hidden_gates.defined() ? hidden.sum(0) : gradients[5].clone();
  }
  if (steps.projection.has_value()) {
    gradients[7] = at::mm(as_rows(of_steps.projected).t(), unprojected(results.kept));
  }
  return gradients;
}

class LayerFunction : public torch::autograd::Function<LayerFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& h0,
                               const OptionalTensor& c0, const at::Tensor& input_weight, const at::Tensor& weight,
                               const OptionalTensor& input_bias, const OptionalTensor& hidden_bias,
                               const OptionalTensor& projection, const RecurrentLayer& layer) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const RecurrentResults results = results_of(layer, /*keeps=*/true);
    context->save_for_backward({input, h0, or_undefined(c0), input_weight, weight, or_undefined(input_bias),
                                or_undefined(hidden_bias), or_undefined(projection), results.output, results.previous,
                                results.kept, or_undefined(layer.steps.offsets)});
    context->saved_data["kind"] = static_cast<int64_t>(layer.steps.kind);
    context->saved_data["reverse"] = layer.steps.is_reversed;
    context->saved_data["first"] = layer.first_rows;
    return states_of(results);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const variable_list saved = context->get_saved_variables();
    const RecurrentLayer layer{saved[0],
                               saved[3],
                               {{},
                                saved[1],
                                or_none(saved[2]),
                                saved[4],
                                or_none(saved[5]),
                                or_none(saved[6]),
                                or_none(saved[7]),
                                or_none(saved[11]),
                                static_cast<Recurrence>(context->saved_data["kind"].toInt()),
                                context->saved_data["reverse"].toBool()},
                               context->saved_data["first"].toIntVector()};
    const c10::DeviceGuard guard(layer.input.device());
    variable_list gradients = at::GradMode::is_enabled()
                                  ? composed_gradients(layer, grads)
                                  : gradients_of_layer(layer, {saved[8], {}, {}, saved[9], saved[10]}, grads);
    gradients.emplace_back();  // of the layer
    return gradients;
  }
};

}  // namespace

std::vector<at::Tensor> differentiable_gradients(at::TensorList results, at::TensorList grads, at::TensorList inputs) {
  variable_list outputs, wanted, signals;
  for (size_t i = 0; i < results.size(); ++i) {
    if (grads[i].defined()) {
      outputs.push_back(results[i]);
      signals.push_back(grads[i]);
    }
  }
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.requires_grad()) {
      wanted.push_back(input);
    }
  }
  const variable_list computed = torch::autograd::grad(outputs, wanted, signals, /*retain_graph=*/std::nullopt,
                                                       /*create_graph=*/true, /*allow_unused=*/true);
  variable_list gradients(inputs.size());
  for (size_t i = 0, next = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && inputs[i].requires_grad()) {
      gradients[i] = computed[next++];
    }
  }
  return gradients;
}

std::vector<at::Tensor> run_layer(const RecurrentLayer& layer) {
  const std::array<at::Tensor, 8> inputs = inputs_of(layer);
  const bool is_needed = at::GradMode::is_enabled() &&
                         std::any_of(inputs.begin(), inputs.end(),
                                     [](const auto& tensor) { return tensor.defined() && tensor.requires_grad(); });
  if (!is_needed) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return states_of(results_of(layer, /*keeps=*/false));
  }
  const RecurrentSteps& steps = layer.steps;
  return LayerFunction::apply(layer.input, steps.h0, steps.c0, layer.input_weight, steps.weight, steps.input_bias,
                              steps.hidden_bias, steps.projection, layer);
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Cells of plain recurrent nets: two products with biases, and one kernel for the sum and its
// bound. Torch has kernels for fused cells of LSTMs and GRUs alone (recurrent.cpp).
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rnn_relu_cell_native.h>
#include <ATen/ops/rnn_tanh_cell_native.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/own/factories.h"
#include "ops/own/recurrent_steps.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

constexpr auto kBoundSum = "bound_sum(Tensor gates, Tensor hidden_gates, bool is_tanh) -> Tensor";

at::Tensor bound_sum_on_cpu(const at::Tensor& gates, const at::Tensor& hidden_gates, bool is_tanh) {
  const at::Tensor sum = gates + hidden_gates;
  return is_tanh ? sum.tanh() : sum.relu();
}

at::Tensor bound_sum_shape(const at::Tensor& gates, const at::Tensor&, bool) {
  return at::empty(gates.sizes(), gates.options());
}

at::Tensor bound_sum(const at::Tensor& gates, const at::Tensor& hidden_gates, bool is_tanh) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("outboard::bound_sum", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, bool)>();
  return op.call(gates, hidden_gates, is_tanh);
}

class BoundSum : public torch::autograd::Function<BoundSum> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& gates,
                            const at::Tensor& hidden_gates, bool is_tanh) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor result = bound_sum(gates, hidden_gates, is_tanh);
    context->save_for_backward({result});
    context->saved_data["is_tanh"] = is_tanh;
    return result;
  }

  // Differentiable itself: the saved result has a gradient.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const at::Tensor result = context->get_saved_variables()[0];
    const at::Tensor gates = context->saved_data["is_tanh"].toBool() ? at::tanh_backward(grads[0], result)
                                                                     : at::threshold_backward(grads[0], result, 0);
    return {gates, gates, at::Tensor()};
  }
};

bool is_cell(const at::Tensor& input, const at::Tensor& hx, const at::Tensor& w_ih, const at::Tensor& w_hh,
             const OptionalTensor& b_ih, const OptionalTensor& b_hh) {
  const auto is_matrix = [&](const at::Tensor& tensor) {
    return is_recurrent_tensor(tensor, input) && tensor.dim() == 2;
  };
  const auto is_bias = [&](const OptionalTensor& bias) {
    return !bias.has_value() || !bias->defined() ||
           (is_recurrent_tensor(*bias, input) && bias->sizes() == at::IntArrayRef({w_ih.size(0)}));
  };
  return is_matrix(input) && is_matrix(hx) && is_matrix(w_ih) && is_matrix(w_hh) && w_hh.size(0) == w_hh.size(1) &&
         w_ih.size(0) == w_hh.size(0) && w_ih.size(1) == input.size(1) && hx.size(0) == input.size(0) &&
         hx.size(1) == w_hh.size(1) && is_bias(b_ih) && is_bias(b_hh);
}

using Cell = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                        const OptionalTensor&, const OptionalTensor&);

// Autocast has rounded the arguments: these operators are on its list.
template <bool kIsTanh, Cell* kTorchs>
at::Tensor plain_cell(const at::Tensor& input, const at::Tensor& hx, const at::Tensor& w_ih, const at::Tensor& w_hh,
                      const OptionalTensor& b_ih, const OptionalTensor& b_hh) {
  if (!is_cell(input, hx, w_ih, w_hh, b_ih, b_hh)) {
    return kTorchs(input, hx, w_ih, w_hh, b_ih, b_hh);
  }
  const c10::DeviceGuard guard(input.device());
  return BoundSum::apply(at::linear(input, w_ih, b_ih), at::linear(hx, w_hh, b_hh), kIsTanh);
}

}  // namespace

void register_recurrent_cells() {
  // Permanent, like all registrations.
  auto& own = *new torch::Library(torch::Library::FRAGMENT, "outboard", std::nullopt, __FILE__, __LINE__);
  own.def(kBoundSum);
  own.impl("bound_sum", torch::dispatch(c10::DispatchKey::CPU, bound_sum_on_cpu));
  own.impl("bound_sum", torch::dispatch(c10::DispatchKey::Meta, bound_sum_shape));
  for (const c10::DispatchKey key : {c10::DispatchKey::AutogradPrivateUse1, c10::DispatchKey::PrivateUse1}) {
    auto& aten = *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    aten.impl("rnn_tanh_cell", plain_cell<true, at::native::rnn_tanh_cell>);
    aten.impl("rnn_relu_cell", plain_cell<false, at::native::rnn_relu_cell>);
  }
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// The fused cells that torch's LSTM and GRU call on every device except the CPU: the driver's
// kernel if it has one, else a composition of operators. If the driver has kernels for those
// operators, the device runs each. Otherwise the fused cell is one operator with a CPU kernel, so
// one call is queued (or one set of arguments copied) instead of twenty.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <torch/library.h>

#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/boxed.h"
#include "ops/operator/operator.h"
#include "ops/own/factories.h"

namespace outboard {

namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor with_bias(const at::Tensor& gates, const OptionalTensor& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

// Refuse sizes that would make a loop below leave a tensor. It must have `parts` times the columns
// of `like`.
void check_rows(const char* name, const at::Tensor& tensor, int64_t parts, const at::Tensor& like) {
  TORCH_CHECK(like.dim() == 2, "the states of a cell must be a matrix, got sizes ", like.sym_sizes());
  TORCH_CHECK(
      tensor.dim() == 2 && tensor.sym_size(0) == like.sym_size(0) && tensor.sym_size(1) == parts * like.sym_size(1),
      "a cell's ", name, " must have as many rows as its states and ", parts, " times their columns, got sizes ",
      tensor.sym_sizes(), " for ", like.sym_sizes());
}

void check_rows(const char* name, const OptionalTensor& tensor, int64_t parts, const at::Tensor& like) {
  if (tensor.has_value() && tensor->defined()) {
    check_rows(name, *tensor, parts, like);
  }
}

using LstmCell = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Return the workspace: the activated gates i, f, g, o side by side, which the backward pass needs.
at::Tensor activated(const at::Tensor& gates, int64_t size) {
  at::Tensor workspace = gates.sigmoid();
  at::Tensor cell = workspace.narrow(1, 2 * size, size);
  at::tanh_out(cell, gates.narrow(1, 2 * size, size));
  return workspace;
}

LstmCell lstm_cell_of(const at::Tensor& gates, const at::Tensor& cx) {
  check_rows("gates", gates, 4, cx);
  at::Tensor workspace = activated(gates, cx.size(1));
  const std::vector<at::Tensor> parts = workspace.unsafe_chunk(4, 1);
  at::Tensor cy = (parts[1] * cx).add_(parts[0] * parts[2]);
  at::Tensor hy = parts[3] * cy.tanh();
  return {std::move(hy), std::move(cy), std::move(workspace)};
}

LstmCell lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cx,
                   const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  return lstm_cell_of(with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias), cx);
}

void check_gradients(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy, const at::Tensor& cx,
                     const at::Tensor& cy, const at::Tensor& workspace) {
  check_rows("workspace", workspace, 4, cx);
  check_rows("second state", cy, 1, cx);
  check_rows("gradient", grad_hy, 1, cx);
  check_rows("gradient", grad_cy, 1, cx);
}

LstmCell lstm_cell_backward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy, const at::Tensor& cx,
                            const at::Tensor& cy, const at::Tensor& workspace, bool has_bias) {
  const bool has_hy = grad_hy.has_value() && grad_hy->defined();
  const bool has_cy = grad_cy.has_value() && grad_cy->defined();
  check_gradients(grad_hy, grad_cy, cx, cy, workspace);
  if (!has_hy && !has_cy) {
    return {};
  }
  const std::vector<at::Tensor> parts = workspace.unsafe_chunk(4, 1);
  const at::Tensor &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  at::Tensor grad_gates = at::empty_like(workspace);
  const std::vector<at::Tensor> grads = grad_gates.unsafe_chunk(4, 1);
  at::Tensor grad_c = has_cy ? *grad_cy : at::Tensor();
  if (has_hy) {
    const at::Tensor tanh_cy = cy.tanh();
    const at::Tensor through_tanh = at::tanh_backward(*grad_hy * out, tanh_cy);
    grad_c = has_cy ? grad_c + through_tanh : through_tanh;
    at::Tensor grad_out = grads[3];
    at::sigmoid_backward_out(grad_out, *grad_hy * tanh_cy, out);
  } else {
    grads[3].zero_();
  }
  at::Tensor grad_in = grads[0], grad_forget = grads[1], grad_cell = grads[2];
  at::sigmoid_backward_out(grad_in, grad_c * cell, in);
  at::sigmoid_backward_out(grad_forget, grad_c * cx, forget);
  at::tanh_backward_out(grad_cell, grad_c * in, cell);
  at::Tensor grad_bias = has_bias ? grad_gates.sum(0) : at::Tensor();
  return {std::move(grad_gates), grad_c * forget, std::move(grad_bias)};
}

// Do the same in one pass if the CPU's vectors allow it: the overhead of operators exceeds the cost
// of a cell. Only functions that torch has vectorized stay operators.
bool is_dense(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.scalar_type() == dtype && tensor.is_contiguous();
}

bool is_dense_or_missing(const OptionalTensor& tensor, at::ScalarType dtype) {
  return !tensor.has_value() || !tensor->defined() || is_dense(*tensor, dtype);
}

bool is_fast(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble;
}

template <class T>
void next_state(const at::Tensor& gates, const at::Tensor& cx, at::Tensor& cy) {
  const int64_t rows = cx.size(0), size = cx.size(1);
  for (int64_t row = 0; row < rows; ++row) {
    const T* in = gates.const_data_ptr<T>() + row * 4 * size;
    const T* before = cx.const_data_ptr<T>() + row * size;
    T* after = cy.mutable_data_ptr<T>() + row * size;
    for (int64_t i = 0; i < size; ++i) {
      after[i] = in[size + i] * before[i] + in[i] * in[2 * size + i];
    }
  }
}

LstmCell lstm_cell_on_cpu(const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cx,
                          const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const at::ScalarType dtype = cx.scalar_type();
  const at::Tensor gates = with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias);
  if (!is_fast(dtype) || !is_dense(cx, dtype) || !is_dense(gates, dtype)) {
    return lstm_cell_of(gates, cx);
  }
  check_rows("gates", gates, 4, cx);
  const int64_t size = cx.size(1);
  at::Tensor workspace = activated(gates, size);
  at::Tensor cy = at::empty_like(cx);
  dtype == at::kFloat ? next_state<float>(workspace, cx, cy) : next_state<double>(workspace, cx, cy);
  at::Tensor hy = cy.tanh().mul_(workspace.narrow(1, 3 * size, size));
  return {std::move(hy), std::move(cy), std::move(workspace)};
}

// Compute one row of the backward pass, of `size` cells; `hy` and `cy` are
// null if there is no such gradient.
template <class T>
struct LstmRow {
  const T* hy;
  const T* cy;
  const T* cx;
  const T* tanh_cy;
  const T* gates;
  T* grad_gates;
  T* grad_cx;

  template <bool kHasHy, bool kHasCy>
  void run(int64_t size) const {
    for (int64_t i = 0; i < size; ++i) {
      const T in = gates[i], forget = gates[size + i], cell = gates[2 * size + i], out = gates[3 * size + i];
      T grad_c = kHasCy ? cy[i] : T(0);
      if constexpr (kHasHy) {
        grad_c += hy[i] * out * (1 - tanh_cy[i] * tanh_cy[i]);
        grad_gates[3 * size + i] = hy[i] * tanh_cy[i] * (1 - out) * out;
      } else {
        grad_gates[3 * size + i] = 0;
      }
      grad_gates[i] = grad_c * cell * (1 - in) * in;
      grad_gates[size + i] = grad_c * cx[i] * (1 - forget) * forget;
      grad_gates[2 * size + i] = grad_c * in * (1 - cell * cell);
      grad_cx[i] = grad_c * forget;
    }
  }
};

template <class T>
void lstm_rows(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy, const at::Tensor& cx,
               const at::Tensor& tanh_cy, const at::Tensor& workspace, at::Tensor& grad_gates, at::Tensor& grad_cx) {
  const auto data = [](const OptionalTensor& tensor) {
    return tensor.has_value() && tensor->defined() ? tensor->const_data_ptr<T>() : nullptr;
  };
  const T *hy = data(grad_hy), *cy = data(grad_cy);
  const int64_t size = cx.size(1);
  for (int64_t row = 0; row < cx.size(0); ++row) {
    const int64_t at = row * size;
    const LstmRow<T> each{hy == nullptr ? nullptr : hy + at,
                          cy == nullptr ? nullptr : cy + at,
                          cx.const_data_ptr<T>() + at,
                          hy == nullptr ? nullptr : tanh_cy.const_data_ptr<T>() + at,
                          workspace.const_data_ptr<T>() + 4 * at,
                          grad_gates.mutable_data_ptr<T>() + 4 * at,
                          grad_cx.mutable_data_ptr<T>() + at};
    if (hy != nullptr && cy != nullptr) {
      each.template run<true, true>(size);
    } else {
      hy != nullptr ? each.template run<true, false>(size) : each.template run<false, true>(size);
    }
  }
}

LstmCell lstm_cell_backward_on_cpu(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy, const at::Tensor& cx,
                                   const at::Tensor& cy, const at::Tensor& workspace, bool has_bias) {
  const at::ScalarType dtype = cx.scalar_type();
  const bool has_hy = grad_hy.has_value() && grad_hy->defined();
  const bool has_any = has_hy || (grad_cy.has_value() && grad_cy->defined());
  if (!has_any || !is_fast(dtype) || !is_dense(cx, dtype) || !is_dense(cy, dtype) || !is_dense(workspace, dtype) ||
      !is_dense_or_missing(grad_hy, dtype) || !is_dense_or_missing(grad_cy, dtype)) {
    return lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias);
  }
  check_gradients(grad_hy, grad_cy, cx, cy, workspace);
  const at::Tensor tanh_cy = has_hy ? cy.tanh() : at::Tensor();
  at::Tensor grad_gates = at::empty_like(workspace), grad_cx = at::empty_like(cx);
  (dtype == at::kFloat ? lstm_rows<float> : lstm_rows<double>)(grad_hy, grad_cy, cx, tanh_cy, workspace, grad_gates,
                                                               grad_cx);
  at::Tensor grad_bias = has_bias ? grad_gates.sum(0) : at::Tensor();
  return {std::move(grad_gates), std::move(grad_cx), std::move(grad_bias)};
}

// The workspace: r, z, n, hx and the hidden part of n with its bias, side by side.
std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                            const at::Tensor& hx, const OptionalTensor& input_bias,
                                            const OptionalTensor& hidden_bias) {
  check_rows("gates", input_gates, 3, hx);
  check_rows("gates", hidden_gates, 3, hx);
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
  check_rows("workspace", workspace, 5, grad_hy);
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

// The schemas of the operators that are fused cells. In the backward passes the first gradient of
// an LSTM's cell may be missing. Biases have a gradient if there are biases.
constexpr auto kLstmCell =
    "lstm_cell(Tensor input_gates, Tensor hidden_gates, Tensor cx, Tensor? input_bias, Tensor? hidden_bias)"
    " -> (Tensor, Tensor, Tensor)";
constexpr auto kLstmCellBackward =
    "lstm_cell_backward(Tensor? grad_hy, Tensor? grad_cy, Tensor cx, Tensor cy, Tensor workspace, bool has_bias)"
    " -> (Tensor, Tensor, Tensor)";
constexpr auto kGruCell =
    "gru_cell(Tensor input_gates, Tensor hidden_gates, Tensor hx, Tensor? input_bias, Tensor? hidden_bias)"
    " -> (Tensor, Tensor)";
constexpr auto kGruCellBackward = "gru_cell_backward(Tensor grad_hy, Tensor workspace, bool has_bias)"
                                  " -> (Tensor, Tensor, Tensor, Tensor, Tensor)";

// The operator that torch calls, and `fused`, which has the same arguments and results.
class CellKernel final : public c10::OperatorKernel {
 public:
  CellKernel(Operator& torchs, Operator& fused)
      : torchs_(torchs), fused_(fused), product_(operator_named("aten::mul", "Tensor")) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (has_native(torchs_)) {
      run_chain(torchs_, stack);
    } else if (has_native(product_)) {
      // The kernel for shapes consists of operators, which dispatch by their arguments.
      fused_.handle.callBoxedForDispatchKey(c10::DispatchKey::Meta, *stack);
    } else {
      run_chain(fused_, stack);
    }
  }

 private:
  Operator& torchs_;
  Operator& fused_;
  const Operator& product_;
};

template <class Function>
void register_cell(torch::Library& aten, torch::Library& cells, const char* torchs, const char* schema,
                   Function* made_of_operators, Function* on_cpu) {
  cells.def(schema);
  const std::string name(schema, std::strchr(schema, '(') - schema);
  cells.impl(name.c_str(), torch::dispatch(c10::DispatchKey::CPU, on_cpu));
  cells.impl(name.c_str(), torch::dispatch(c10::DispatchKey::Meta, made_of_operators));
  auto kernel = std::make_unique<CellKernel>(operator_named(c10::str("aten::", torchs)),
                                             operator_named(c10::str("outboard::", name)));
  aten.impl(torchs, torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
}

}  // namespace

void register_recurrent(torch::Library& aten) {
  // Permanent, like all registrations.
  auto& cells = *new torch::Library(torch::Library::DEF, "outboard", std::nullopt, __FILE__, __LINE__);
  register_cell(aten, cells, "_thnn_fused_lstm_cell", kLstmCell, lstm_cell, lstm_cell_on_cpu);
  register_cell(aten, cells, "_thnn_fused_lstm_cell_backward_impl", kLstmCellBackward, lstm_cell_backward,
                lstm_cell_backward_on_cpu);
  register_cell(aten, cells, "_thnn_fused_gru_cell", kGruCell, gru_cell, gru_cell);
  register_cell(aten, cells, "_thnn_fused_gru_cell_backward", kGruCellBackward, gru_cell_backward, gru_cell_backward);
}

}  // namespace outboard

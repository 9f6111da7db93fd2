// SPDX-License-Identifier: BSD-3-Clause
#include "ops/own/recurrent_steps.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

constexpr auto kSteps =
    "recurrent(Tensor gates, Tensor h0, Tensor? c0, Tensor weight, Tensor? input_bias, Tensor? hidden_bias,"
    " Tensor? projection, Tensor? offsets, int kind, bool reverse, bool keep)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)";
constexpr auto kStepsBackward =
    "recurrent_backward(Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, Tensor h0, Tensor kept,"
    " Tensor previous, Tensor weight, Tensor? projection, Tensor? offsets, int kind, bool reverse)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)";

using FiveTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Steps = FiveTensors(const at::Tensor&, const at::Tensor&, const OptionalTensor&, const at::Tensor&,
                          const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                          int64_t, bool, bool);
using StepsBackward = FiveTensors(const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                  const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                  const OptionalTensor&, const OptionalTensor&, int64_t, bool);

at::Tensor biased(const at::Tensor& gates, const OptionalTensor& bias) {
  return is_given(bias) ? gates + *bias : gates;
}

// Return how many numbers are kept for each cell of a step. Plain nets need only the states.
int64_t kept_of(Recurrence kind) {
  return kind == Recurrence::Lstm ? 5 : kind == Recurrence::Gru ? 4 : 1;
}

// Return the first row of each step, and the end.
std::vector<int64_t> first_rows_of(const at::Tensor& rows, const OptionalTensor& offsets) {
  if (is_given(offsets)) {
    return {offsets->const_data_ptr<int64_t>(), offsets->const_data_ptr<int64_t>() + offsets->numel()};
  }
  return first_rows_of_steps(rows.size(0), rows.size(1));
}

at::Tensor step_rows(const at::Tensor& rows) {
  return rows.flatten(0, -2);
}

// Return rows in the shape of the rows of `like`, except for the last dimension.
at::Tensor shaped_as(const at::Tensor& rows, const at::Tensor& like) {
  std::vector<int64_t> sizes(like.sizes().begin(), like.sizes().end());
  sizes.back() = rows.size(-1);
  return rows.view(sizes);
}

// Return a tensor whose first rows are replaced; the others belong to sequences
// that have ended, or not begun.
at::Tensor replaced(const at::Tensor& rows, const at::Tensor& first) {
  const int64_t count = first.size(0);
  return count == rows.size(0) ? first : at::cat({first, rows.narrow(0, count, rows.size(0) - count)});
}

// Check arguments that only a direct call of the operators can get wrong. With them, kernels would
// read out of bounds.
void check_steps(const at::Tensor& rows, int64_t width, const at::Tensor& h0, const at::Tensor& weight,
                 const OptionalTensor& offsets, int64_t kind) {
  TORCH_CHECK_VALUE(kind >= 0 && kind <= static_cast<int64_t>(Recurrence::Relu), "recurrent: unknown kind ", kind);
  const bool is_packed = is_given(offsets);
  TORCH_CHECK_VALUE(!is_packed || (offsets->dim() == 1 && offsets->numel() > 1 && offsets->scalar_type() == at::kLong),
                    "recurrent: offsets must be an int64 vector of each step's first row and the end");
  TORCH_CHECK_VALUE(rows.dim() == (is_packed ? 2 : 3) && h0.dim() == 2 && weight.dim() == 2 && rows.numel() > 0 &&
                        h0.numel() > 0 && (is_packed || rows.size(1) == h0.size(0)) && weight.size(1) == h0.size(1) &&
                        weight.size(0) % gates_of(static_cast<Recurrence>(kind)) == 0 && rows.size(-1) == width,
                    "recurrent: steps of ", rows.sizes(), " do not fit initial states of ", h0.sizes(),
                    " and weights of ", weight.sizes());
}

void check_cells(const OptionalTensor& c0, const at::Tensor& h0, int64_t kind) {
  const bool is_lstm = static_cast<Recurrence>(kind) == Recurrence::Lstm;
  TORCH_CHECK_VALUE(is_given(c0) == is_lstm && (!is_lstm || (c0->dim() == 2 && c0->size(0) == h0.size(0))),
                    "recurrent: LSTMs need initial cells for each sequence, and other nets take none");
}

// Return how many numbers are kept for a row, of a kind that check_steps() accepts.
int64_t width_of_kept(const at::Tensor& weight, int64_t kind) {
  const auto recurrence = static_cast<Recurrence>(std::clamp<int64_t>(kind, 0, 3));
  return kept_of(recurrence) * (weight.dim() == 0 ? 0 : weight.size(0) / gates_of(recurrence));
}

struct Cells {
  at::Tensor h;
  at::Tensor c;
  at::Tensor kept;
};

Cells lstm_cells(const at::Tensor& gates, const at::Tensor& c, bool keeps) {
  const std::vector<at::Tensor> parts = gates.chunk(4, 1);
  const at::Tensor i = parts[0].sigmoid(), f = parts[1].sigmoid(), g = parts[2].tanh(), o = parts[3].sigmoid();
  const at::Tensor next = f * c + i * g;
  return {o * next.tanh(), next, keeps ? at::cat({i, f, g, o, c}, 1) : at::Tensor()};
}

Cells gru_cells(const at::Tensor& gates, const at::Tensor& hidden, const at::Tensor& h, bool keeps) {
  const std::vector<at::Tensor> in = gates.chunk(3, 1), own = hidden.chunk(3, 1);
  const at::Tensor r = (in[0] + own[0]).sigmoid(), z = (in[1] + own[1]).sigmoid();
  const at::Tensor n = (in[2] + r * own[2]).tanh();
  return {(h - n) * z + n, {}, keeps ? at::cat({r, z, n, own[2]}, 1) : at::Tensor()};
}

Cells cells_of(Recurrence kind, const at::Tensor& gates, const at::Tensor& hidden, const at::Tensor& h,
               const at::Tensor& c, bool keeps) {
  switch (kind) {
    case Recurrence::Lstm:
      return lstm_cells(gates + hidden, c, keeps);
    case Recurrence::Gru:
      return gru_cells(gates, hidden, h, keeps);
    case Recurrence::Tanh:
      return {(gates + hidden).tanh(), {}, {}};
    default:
      return {(gates + hidden).relu(), {}, {}};
  }
}

// The gradients of a step's cells.
struct CellGradients {
  at::Tensor gates;
  at::Tensor hidden_gates;
  at::Tensor h;  // besides the gradient through the gates
  at::Tensor c;
};

at::Tensor through_sigmoid(const at::Tensor& grad, const at::Tensor& output) {
  return grad * (1 - output) * output;
}

CellGradients lstm_gradients(const at::Tensor& grad_h, const at::Tensor& grad_c, const at::Tensor& kept) {
  const std::vector<at::Tensor> parts = kept.chunk(5, 1);
  const at::Tensor &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3], &before = parts[4];
  const at::Tensor bounded = (f * before + i * g).tanh();
  const at::Tensor grad = grad_c + grad_h * o * (1 - bounded * bounded);
  at::Tensor gates = at::cat({through_sigmoid(grad * g, i), through_sigmoid(grad * before, f), grad * i * (1 - g * g),
                              through_sigmoid(grad_h * bounded, o)},
                             1);
  return {gates, gates, {}, grad * f};
}

CellGradients gru_gradients(const at::Tensor& grad, const at::Tensor& kept, const at::Tensor& before) {
  const std::vector<at::Tensor> parts = kept.chunk(4, 1);
  const at::Tensor &r = parts[0], &z = parts[1], &n = parts[2], &own = parts[3];
  const at::Tensor grad_n = grad * (1 - z) * (1 - n * n);
  const at::Tensor grad_z = through_sigmoid(grad * (before - n), z);
  const at::Tensor grad_r = through_sigmoid(grad_n * own, r);
  return {at::cat({grad_r, grad_z, grad_n}, 1), at::cat({grad_r, grad_z, grad_n * r}, 1), grad * z, {}};
}

CellGradients gradients_of(Recurrence kind, const at::Tensor& grad_h, const at::Tensor& grad_c, const at::Tensor& kept,
                           const at::Tensor& before) {
  switch (kind) {
    case Recurrence::Lstm:
      return lstm_gradients(grad_h, grad_c, kept);
    case Recurrence::Gru:
      return gru_gradients(grad_h, kept, before);
    default:
      const at::Tensor gates =
          kind == Recurrence::Tanh ? at::tanh_backward(grad_h, kept) : at::threshold_backward(grad_h, kept, 0);
      return {gates, gates, {}, {}};
  }
}

FiveTensors steps_on_cpu(const at::Tensor& gates, const at::Tensor& h0, const OptionalTensor& c0,
                         const at::Tensor& weight, const OptionalTensor& input_bias, const OptionalTensor& hidden_bias,
                         const OptionalTensor& projection, const OptionalTensor& offsets, int64_t kind, bool reverse,
                         bool keep) {
  check_steps(gates, weight.dim() == 0 ? 0 : weight.size(0), h0, weight, offsets, kind);
  check_cells(c0, h0, kind);
  const RecurrentSteps steps_of_call{
      gates, h0, c0, weight, input_bias, hidden_bias, projection, offsets, static_cast<Recurrence>(kind), reverse};
  RecurrentResults results = composed_steps(steps_of_call, first_rows_of(gates, offsets), keep);
  // Results have their own memory, even those of a single step.
  return {results.output, results.hy.clone(), is_given(c0) ? results.cy.clone() : at::Tensor(), results.previous,
          results.kept};
}

FiveTensors steps_backward_on_cpu(const OptionalTensor& grad_output, const OptionalTensor& grad_hy,
                                  const OptionalTensor& grad_cy, const at::Tensor& h0, const at::Tensor& kept,
                                  const at::Tensor& previous, const at::Tensor& weight,
                                  const OptionalTensor& projection, const OptionalTensor& offsets, int64_t kind,
                                  bool reverse) {
  check_steps(kept, width_of_kept(weight, kind), h0, weight, offsets, kind);
  const auto recurrence = static_cast<Recurrence>(kind);
  const bool is_lstm = recurrence == Recurrence::Lstm;
  const std::vector<int64_t> first = first_rows_of(kept, offsets);
  const auto steps = static_cast<int64_t>(first.size()) - 1;
  at::Tensor grad_h = is_given(grad_hy) ? *grad_hy : at::zeros_like(h0);
  at::Tensor grad_c;
  if (is_lstm) {
    grad_c = is_given(grad_cy) ? *grad_cy : at::zeros({h0.size(0), kept.size(-1) / kept_of(recurrence)}, h0.options());
  }
  std::vector<at::Tensor> gates(steps), hidden(steps), projected(steps);
  for (int64_t turn = 0; turn < steps; ++turn) {
    const int64_t step = reverse ? turn : steps - 1 - turn;
    const int64_t begin = first[step], rows = first[step + 1] - begin;
    const auto of_step = [&](const at::Tensor& all) { return step_rows(all).narrow(0, begin, rows); };
    at::Tensor grad = grad_h.narrow(0, 0, rows);
    if (is_given(grad_output)) {
      grad = grad + of_step(*grad_output);
    }
    if (is_given(projection)) {
      projected[step] = grad;
      grad = at::mm(grad, *projection);
    }
    const CellGradients cells = gradients_of(recurrence, grad, is_lstm ? grad_c.narrow(0, 0, rows) : at::Tensor(),
                                             of_step(kept), of_step(previous));
    gates[step] = cells.gates;
    hidden[step] = cells.hidden_gates;
    const at::Tensor back = at::mm(cells.hidden_gates, weight);
    grad_h = replaced(grad_h, cells.h.defined() ? back + cells.h : back);
    grad_c = is_lstm ? replaced(grad_c, cells.c) : grad_c;
  }
  const auto joined = [&](const std::vector<at::Tensor>& parts) { return shaped_as(at::cat(parts), kept); };
  return {joined(gates), recurrence == Recurrence::Gru ? joined(hidden) : at::Tensor(), grad_h, grad_c,
          is_given(projection) ? joined(projected) : at::Tensor()};
}

at::Tensor rows_like(const at::Tensor& rows, int64_t width) {
  std::vector<int64_t> sizes(rows.sizes().begin(), rows.sizes().end());
  sizes.back() = width;
  return at::empty(sizes, rows.options());
}

FiveTensors steps_shapes(const at::Tensor& gates, const at::Tensor& h0, const OptionalTensor& c0,
                         const at::Tensor& weight, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                         const OptionalTensor& offsets, int64_t kind, bool, bool keep) {
  check_steps(gates, weight.dim() == 0 ? 0 : weight.size(0), h0, weight, offsets, kind);
  check_cells(c0, h0, kind);
  const auto recurrence = static_cast<Recurrence>(kind);
  const int64_t size = weight.size(0) / gates_of(recurrence), states = h0.size(1);
  const bool keeps_cells = keep && kept_of(recurrence) > 1;
  return {rows_like(gates, states), at::empty(h0.sizes(), h0.options()),
          is_given(c0) ? at::empty(c0->sizes(), c0->options()) : at::Tensor(),
          keep ? rows_like(gates, states) : at::Tensor(),
          keeps_cells ? rows_like(gates, kept_of(recurrence) * size) : at::Tensor()};
}

FiveTensors steps_backward_shapes(const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                  const at::Tensor& h0, const at::Tensor& kept, const at::Tensor&,
                                  const at::Tensor& weight, const OptionalTensor& projection,
                                  const OptionalTensor& offsets, int64_t kind, bool) {
  check_steps(kept, width_of_kept(weight, kind), h0, weight, offsets, kind);
  const auto recurrence = static_cast<Recurrence>(kind);
  const int64_t size = weight.size(0) / gates_of(recurrence);
  return {rows_like(kept, weight.size(0)),
          recurrence == Recurrence::Gru ? rows_like(kept, weight.size(0)) : at::Tensor(),
          at::empty(h0.sizes(), h0.options()),
          recurrence == Recurrence::Lstm ? at::empty({h0.size(0), size}, h0.options()) : at::Tensor(),
          is_given(projection) ? rows_like(kept, h0.size(1)) : at::Tensor()};
}

}  // namespace

std::vector<int64_t> first_rows_of_steps(int64_t steps, int64_t batch) {
  std::vector<int64_t> first;
  for (int64_t step = 0; step <= steps; ++step) {
    first.push_back(step * batch);
  }
  return first;
}

int64_t gates_of(Recurrence kind) {
  return kind == Recurrence::Lstm ? 4 : kind == Recurrence::Gru ? 3 : 1;
}

RecurrentResults composed_steps(const RecurrentSteps& steps_of_call, at::IntArrayRef first, bool keeps) {
  const auto steps = static_cast<int64_t>(first.size()) - 1;
  const at::Tensor gates = step_rows(steps_of_call.gates), back = steps_of_call.weight.t();
  at::Tensor h = steps_of_call.h0, c = is_given(steps_of_call.c0) ? *steps_of_call.c0 : at::Tensor();
  std::vector<at::Tensor> outputs(steps), previous(steps), kept(steps);
  for (int64_t turn = 0; turn < steps; ++turn) {
    const int64_t step = steps_of_call.is_reversed ? steps - 1 - turn : turn;
    const int64_t rows = first[step + 1] - first[step];
    const at::Tensor before = h.narrow(0, 0, rows);
    const at::Tensor in = biased(gates.narrow(0, first[step], rows), steps_of_call.input_bias);
    const at::Tensor hidden = biased(at::mm(before, back), steps_of_call.hidden_bias);
    const Cells cells = cells_of(steps_of_call.kind, in, hidden, before, c.defined() ? c.narrow(0, 0, rows) : c, keeps);
    outputs[step] = is_given(steps_of_call.projection) ? at::mm(cells.h, steps_of_call.projection->t()) : cells.h;
    previous[step] = before;
    kept[step] = cells.kept;
    h = replaced(h, outputs[step]);
    c = c.defined() ? replaced(c, cells.c) : c;
  }
  const auto joined = [&](const std::vector<at::Tensor>& parts) {
    return shaped_as(at::cat(parts), steps_of_call.gates);
  };
  return {joined(outputs), h, c, keeps ? joined(previous) : at::Tensor(),
          keeps && kept[0].defined() ? joined(kept) : at::Tensor()};
}

RecurrentResults run_steps(const RecurrentSteps& steps_of_call, bool keeps) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("outboard::recurrent", "").typed<Steps>();
  auto [output, hy, cy, previous, kept] =
      op.call(steps_of_call.gates, steps_of_call.h0, steps_of_call.c0, steps_of_call.weight, steps_of_call.input_bias,
              steps_of_call.hidden_bias, steps_of_call.projection, steps_of_call.offsets,
              static_cast<int64_t>(steps_of_call.kind), steps_of_call.is_reversed, keeps);
  return {std::move(output), std::move(hy), std::move(cy), std::move(previous), std::move(kept)};
}

RecurrentGradients run_steps_backward(const OptionalTensor& grad_output, const OptionalTensor& grad_hy,
                                      const OptionalTensor& grad_cy, const RecurrentSteps& steps_of_call,
                                      const RecurrentResults& results) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("outboard::recurrent_backward", "").typed<StepsBackward>();
  auto [gates, hidden, h0, c0, projected] =
      op.call(grad_output, grad_hy, grad_cy, steps_of_call.h0, results.kept.defined() ? results.kept : results.output,
              results.previous, steps_of_call.weight, steps_of_call.projection, steps_of_call.offsets,
              static_cast<int64_t>(steps_of_call.kind), steps_of_call.is_reversed);
  return {std::move(gates), std::move(hidden), std::move(h0), std::move(c0), std::move(projected)};
}

bool is_recurrent_tensor(const at::Tensor& tensor, const at::Tensor& like) {
  static const c10::DispatchKeySet others({c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
                                           c10::DispatchKey::Functionalize, c10::DispatchKey::Python,
                                           c10::DispatchKey::NestedTensor, c10::DispatchKey::Conjugate,
                                           c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  if (!tensor.defined() || !is_device_tensor(*tensor.unsafeGetTensorImpl()) || tensor.layout() != c10::kStrided ||
      tensor.key_set().has_any(others) || tensor._fw_grad(/*level=*/0).defined()) {
    return false;
  }
  const c10::ScalarType dtype = tensor.scalar_type();
  return (dtype == c10::kFloat || dtype == c10::kDouble || dtype == c10::kHalf || dtype == c10::kBFloat16) &&
         dtype == like.scalar_type() && tensor.device() == like.device() && tensor.numel() > 0;
}

void define_recurrent_steps(torch::Library& own) {
  own.def(kSteps);
  own.impl("recurrent", torch::dispatch(c10::DispatchKey::CPU, steps_on_cpu));
  own.impl("recurrent", torch::dispatch(c10::DispatchKey::Meta, steps_shapes));
  own.def(kStepsBackward);
  own.impl("recurrent_backward", torch::dispatch(c10::DispatchKey::CPU, steps_backward_on_cpu));
  own.impl("recurrent_backward", torch::dispatch(c10::DispatchKey::Meta, steps_backward_shapes));
}

}  // namespace outboard

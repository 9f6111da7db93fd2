// SPDX-License-Identifier: BSD-3-Clause
// LSTMs, GRUs and plain recurrent nets on whole sequences: by the driver's fused kernel
// (recurrent_fused.cpp), else layer by layer (recurrent_layer.h). Calls that neither covers run as
// torch composes them: tensors of torch.func or of compilers, forward-mode derivatives, empty
// tensors, arguments that torch refuses.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <vector>

#include "ops/operator/operator.h"
#include "ops/own/factories.h"
#include "ops/own/recurrent_layer.h"
#include "ops/own/recurrent_net.h"
#include "ops/planned/generated_provider.h"
#include "ops/providers.h"
#include "ops/tensors/tensor_utils.h"
#include "torch/autocast_casts.h"

namespace outboard {

namespace {

constexpr int64_t kStateDims = 3;

// Return true if the steps may be one operator. Return false if the driver has kernels for cells or
// for their parts, but none that runs the steps.
bool runs_steps(Recurrence kind, c10::DeviceIndex device) {
  static const Operator& fused = operator_named("outboard::recurrent");
  static const Operator& lstm = operator_named("aten::_thnn_fused_lstm_cell");
  static const Operator& gru = operator_named("aten::_thnn_fused_gru_cell");
  static const Operator& product = operator_named("aten::mul", "Tensor");
  if (has_native(fused)) {
    return true;
  }
  const bool has_cell = kind == Recurrence::Lstm ? has_native(lstm) : kind == Recurrence::Gru && has_native(gru);
  return !has_cell && ((allows_generated() && may_generate(device)) || !has_native(product));
}

bool has_exact_sizes(const at::Tensor& tensor, std::initializer_list<int64_t> sizes) {
  return tensor.sizes() == at::IntArrayRef(sizes);
}

bool are_params_right(const RecurrentNet& net) {
  const int64_t cells = net.kind == Recurrence::Lstm ? net.cx.size(2) : net.hx.size(2);
  const int64_t rows = gates_of(net.kind) * cells, states = net.hx.size(2);
  if (net.params.size() != net.params_each() * static_cast<size_t>(net.layers * net.directions)) {
    return false;
  }
  for (size_t i = 0; i < net.params.size(); i += net.params_each()) {
    const bool is_first = i < net.params_each() * static_cast<size_t>(net.directions);
    const int64_t width = is_first ? net.input.size(-1) : states * net.directions;
    if (!has_exact_sizes(net.params[i], {rows, width}) || !has_exact_sizes(net.params[i + 1], {rows, states}) ||
        (net.has_biases &&
         (!has_exact_sizes(net.params[i + 2], {rows}) || !has_exact_sizes(net.params[i + 3], {rows}))) ||
        (net.has_projection() && !has_exact_sizes(net.params[i + net.params_each() - 1], {states, cells}))) {
      return false;
    }
  }
  return true;
}

// Raise for sizes that torch would read from memory that the host cannot reach.
void check_batch_sizes(const at::Tensor& sizes) {
  TORCH_CHECK_VALUE(sizes.is_cpu(), "batch_sizes of packed sequences must be on the CPU, got ", sizes.device(),
                    ". Create them with torch.nn.utils.rnn.pack_padded_sequence");
}

// Return true if the sizes of a packed batch are what `pack_padded_sequence` makes.
bool is_packed_batch(const at::Tensor& sizes, const at::Tensor& rows, int64_t batch) {
  if (!sizes.is_cpu() || sizes.scalar_type() != c10::kLong || sizes.dim() != 1 || sizes.numel() == 0 ||
      !sizes.is_contiguous()) {
    return false;
  }
  const int64_t* const first = sizes.const_data_ptr<int64_t>();
  int64_t sum = 0, most = batch;
  for (int64_t step = 0; step < sizes.numel(); ++step) {
    if (first[step] < 1 || first[step] > most) {
      return false;
    }
    most = first[step];
    sum += most;
  }
  return first[0] == batch && sum == rows.size(0);
}

// Return true if the arguments are right, so that torch would not refuse them.
bool is_covered(const RecurrentNet& net, const OptionalTensor& batch_sizes, bool is_batch_first) {
  const bool is_lstm = net.kind == Recurrence::Lstm;
  std::vector<at::Tensor> tensors(net.params);
  tensors.push_back(net.input);
  tensors.push_back(net.hx);
  if (is_lstm) {
    tensors.push_back(net.cx);
  }
  if (!std::all_of(tensors.begin(), tensors.end(),
                   [&](const at::Tensor& tensor) { return is_recurrent_tensor(tensor, net.input); })) {
    return false;
  }
  const bool is_packed = batch_sizes.has_value();
  if (net.layers < 1 || net.hx.dim() != kStateDims || net.input.dim() != (is_packed ? 2 : kStateDims) ||
      (is_lstm && (net.cx.dim() != kStateDims || net.cx.size(1) != net.hx.size(1)))) {
    return false;
  }
  const int64_t batch = is_packed ? net.hx.size(1) : net.input.size(is_batch_first ? 0 : 1);
  const int64_t states = net.layers * net.directions;
  return net.hx.size(0) == states && net.hx.size(1) == batch && (!is_lstm || net.cx.size(0) == states) &&
         (!is_packed || is_packed_batch(*batch_sizes, net.input, batch)) && are_params_right(net);
}

void cast_net(RecurrentNet& net, at::ScalarType to) {
  const auto cast = [&](at::Tensor& tensor) {
    if (tensor.defined()) {
      tensor = autocast_cast(to, tensor);
    }
  };
  cast(net.input);
  cast(net.hx);
  cast(net.cx);
  std::for_each(net.params.begin(), net.params.end(), cast);
}

// The first row of each step and the end, as numbers and on the device.
struct Offsets {
  std::vector<int64_t> numbers;
  OptionalTensor tensor;
};

Offsets offsets_of_net(const RecurrentNet& net) {
  Offsets offsets;
  if (net.batch_sizes.empty()) {
    return offsets;
  }
  offsets.numbers.push_back(0);
  for (const int64_t size : net.batch_sizes) {
    offsets.numbers.push_back(offsets.numbers.back() + size);
  }
  offsets.tensor = at::tensor(offsets.numbers, at::TensorOptions(c10::kLong)).to(net.input.device(), true);
  return offsets;
}

RecurrentLayer layer_of(const RecurrentNet& net, const Offsets& offsets, const at::Tensor& input, int64_t number) {
  const size_t first = static_cast<size_t>(number) * net.params_each();
  const bool is_lstm = net.kind == Recurrence::Lstm;
  const auto param = [&](bool is_there, size_t place) {
    return is_there ? OptionalTensor(net.params[first + place]) : std::nullopt;
  };
  return {input,
          net.params[first],
          {{},
           net.hx.select(0, number),
           is_lstm ? OptionalTensor(net.cx.select(0, number)) : std::nullopt,
           net.params[first + 1],
           param(net.has_biases, 2),
           param(net.has_biases, 3),
           param(net.has_projection(), net.params_each() - 1),
           offsets.tensor,
           net.kind,
           net.directions == 2 && number % 2 == 1},
          offsets.numbers};
}

at::Tensor joined_states(const std::vector<at::Tensor>& states) {
  return states.size() == 1 ? states[0].unsqueeze(0) : at::stack(states);
}

// Run each layer by itself, as a net with no dropout in it.
NetResults run_layer_by_layer(const RecurrentNet& net) {
  RecurrentNet single = net;
  single.layers = 1;
  single.dropout = 0;
  std::vector<at::Tensor> hy, cy;
  for (int64_t layer = 0; layer < net.layers; ++layer) {
    const int64_t first = layer * net.directions;
    const auto params = net.params.begin() + first * static_cast<int64_t>(net.params_each());
    single.params.assign(params, params + net.directions * static_cast<int64_t>(net.params_each()));
    single.hx = net.hx.narrow(0, first, net.directions);
    if (net.cx.defined()) {
      single.cx = net.cx.narrow(0, first, net.directions);
    }
    const std::optional<NetResults> fused = run_fused(single);
    const NetResults results = fused.has_value() ? *fused : run_layers(single);
    hy.push_back(results[1]);
    cy.push_back(results[2]);
    single.input = layer + 1 < net.layers ? at::dropout(results[0], net.dropout, /*train=*/true) : results[0];
  }
  return {single.input, at::cat(hy), net.cx.defined() ? at::cat(cy) : at::Tensor()};
}

std::optional<NetResults> run_net(const RecurrentNet& net) {
  const bool is_layer_by_layer = net.dropout != 0 && net.layers > 1;
  const bool may_be_fused = may_run_fused();
  if (may_be_fused && !is_layer_by_layer) {
    if (const std::optional<NetResults> fused = run_fused(net)) {
      return fused;
    }
  }
  if (!runs_steps(net.kind, net.input.device().index())) {
    return std::nullopt;
  }
  return may_be_fused && is_layer_by_layer ? run_layer_by_layer(net) : run_layers(net);
}

// Run the net, unless torch's composition must.
std::optional<NetResults> run_if_supported(RecurrentNet net, const OptionalTensor& batch_sizes, bool is_batch_first) {
  std::optional<c10::impl::ExcludeDispatchKeyGuard> no_autocast;
  if (const auto to = autocast_dtype()) {
    no_autocast.emplace(c10::autocast_dispatch_keyset);
    if (!is_recurrent_tensor(net.input, net.input)) {
      return std::nullopt;
    }
    cast_net(net, *to);
  }
  if (!is_covered(net, batch_sizes, is_batch_first)) {
    return std::nullopt;
  }
  const c10::DeviceGuard guard(net.input.device());
  if (batch_sizes.has_value()) {
    const int64_t* const sizes = batch_sizes->const_data_ptr<int64_t>();
    net.batch_sizes.assign(sizes, sizes + batch_sizes->numel());
  }
  if (is_batch_first) {
    net.input = net.input.transpose(0, 1);
  }
  std::optional<NetResults> results = run_net(net);
  if (results.has_value() && is_batch_first) {
    (*results)[0] = (*results)[0].transpose(0, 1);
  }
  return results;
}

// Torch's arguments as a net.
RecurrentNet net_of(Recurrence kind, const at::Tensor& input, const at::Tensor& hx, const at::Tensor& cx,
                    at::TensorList params, bool has_biases, int64_t layers, double dropout, bool train,
                    bool bidirectional) {
  return {kind, input, {}, hx, cx, params.vec(), has_biases, layers, train ? dropout : 0, bidirectional ? 2 : 1};
}

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

ThreeTensors lstm_net(const at::Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
                      int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  if (hx.size() == 2) {
    const RecurrentNet net =
        net_of(Recurrence::Lstm, input, hx[0], hx[1], params, has_biases, num_layers, dropout, train, bidirectional);
    if (const auto results = run_if_supported(net, std::nullopt, batch_first)) {
      return {(*results)[0], (*results)[1], (*results)[2]};
    }
  }
  return at::native::lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
}

ThreeTensors packed_lstm(const at::Tensor& data, const at::Tensor& batch_sizes, at::TensorList hx,
                         at::TensorList params, bool has_biases, int64_t num_layers, double dropout, bool train,
                         bool bidirectional) {
  check_batch_sizes(batch_sizes);
  if (hx.size() == 2) {
    const RecurrentNet net =
        net_of(Recurrence::Lstm, data, hx[0], hx[1], params, has_biases, num_layers, dropout, train, bidirectional);
    if (const auto results = run_if_supported(net, batch_sizes, false)) {
      return {(*results)[0], (*results)[1], (*results)[2]};
    }
  }
  return at::native::lstm(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional);
}

using OfInputs = TwoTensors(const at::Tensor&, const at::Tensor&, at::TensorList, bool, int64_t, double, bool, bool,
                            bool);
using OfRows = TwoTensors(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::TensorList, bool, int64_t,
                          double, bool, bool);

template <Recurrence kKind, OfInputs* kTorchs>
TwoTensors one_state(const at::Tensor& input, const at::Tensor& hx, at::TensorList params, bool has_biases,
                     int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  const RecurrentNet net = net_of(kKind, input, hx, {}, params, has_biases, num_layers, dropout, train, bidirectional);
  if (const auto results = run_if_supported(net, std::nullopt, batch_first)) {
    return {(*results)[0], (*results)[1]};
  }
  return kTorchs(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first);
}

template <Recurrence kKind, OfRows* kTorchs>
TwoTensors packed_one_state(const at::Tensor& data, const at::Tensor& batch_sizes, const at::Tensor& hx,
                            at::TensorList params, bool has_biases, int64_t num_layers, double dropout, bool train,
                            bool bidirectional) {
  check_batch_sizes(batch_sizes);
  const RecurrentNet net = net_of(kKind, data, hx, {}, params, has_biases, num_layers, dropout, train, bidirectional);
  if (const auto results = run_if_supported(net, batch_sizes, false)) {
    return {(*results)[0], (*results)[1]};
  }
  return kTorchs(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional);
}

}  // namespace

NetResults run_layers(const RecurrentNet& net) {
  const Offsets offsets = offsets_of_net(net);
  at::Tensor rows = net.input;
  std::vector<at::Tensor> hy, cy;
  for (int64_t layer = 0; layer < net.layers; ++layer) {
    std::vector<at::Tensor> outputs;
    for (int64_t direction = 0; direction < net.directions; ++direction) {
      const std::vector<at::Tensor> results =
          run_layer(layer_of(net, offsets, rows, layer * net.directions + direction));
      outputs.push_back(results[0]);
      hy.push_back(results[1]);
      if (results.size() > 2) {
        cy.push_back(results[2]);
      }
    }
    rows = outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
    if (net.dropout != 0 && layer + 1 < net.layers) {
      rows = at::dropout(rows, net.dropout, /*train=*/true);
    }
  }
  return {rows, joined_states(hy), cy.empty() ? at::Tensor() : joined_states(cy)};
}

void register_recurrent_nets() {
  // Permanent, like all registrations.
  auto& own = *new torch::Library(torch::Library::FRAGMENT, "outboard", std::nullopt, __FILE__, __LINE__);
  define_recurrent_steps(own);
  define_fused_nets(own);
  // The formulas belong to autograd's key. Tensors of inference mode have only the device's key.
  for (const c10::DispatchKey key : {c10::DispatchKey::AutogradPrivateUse1, c10::DispatchKey::PrivateUse1}) {
    auto& aten = *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    aten.impl("lstm.input", lstm_net);
    aten.impl("lstm.data", packed_lstm);
    aten.impl("gru.input", one_state<Recurrence::Gru, at::native::gru>);
    aten.impl("gru.data", packed_one_state<Recurrence::Gru, at::native::gru>);
    aten.impl("rnn_tanh.input", one_state<Recurrence::Tanh, at::native::rnn_tanh>);
    aten.impl("rnn_tanh.data", packed_one_state<Recurrence::Tanh, at::native::rnn_tanh>);
    aten.impl("rnn_relu.input", one_state<Recurrence::Relu, at::native::rnn_relu>);
    aten.impl("rnn_relu.data", packed_one_state<Recurrence::Relu, at::native::rnn_relu>);
  }
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// A recurrent net of several layers, in one or both directions, as one operator of the driver. The
// driver answers beforehand whether it takes the net, and how many bytes it keeps for gradients.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "ops/native/native_c.h"
#include "ops/operator/operator.h"
#include "ops/own/recurrent_layer.h"
#include "ops/own/recurrent_net.h"
#include "ops/providers.h"

namespace outboard {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kNet = "recurrent_net(Tensor input, Tensor weights, Tensor hx, Tensor? cx, int[] batch_sizes, int kind,"
                      " bool bidirectional, bool biases, int? kept) -> (Tensor, Tensor, Tensor, Tensor)";
constexpr auto kNetBackward =
    "recurrent_net_backward(Tensor grad_output, Tensor? grad_hy, Tensor? grad_cy, Tensor input, Tensor weights,"
    " Tensor hx, Tensor? cx, Tensor output, Tensor kept, int[] batch_sizes, int kind, bool bidirectional, bool biases,"
    " bool needs_weights) -> (Tensor, Tensor, Tensor, Tensor)";

using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using NetOperator = FourTensors(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                                at::IntArrayRef, int64_t, bool, bool, std::optional<int64_t>);
using NetBackward = FourTensors(const at::Tensor&, const OptionalTensor&, const OptionalTensor&, const at::Tensor&,
                                const at::Tensor&, const at::Tensor&, const OptionalTensor&, const at::Tensor&,
                                const at::Tensor&, at::IntArrayRef, int64_t, bool, bool, bool);

at::Tensor or_dense(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.contiguous() : tensor;
}

// Return how many numbers the weights of a net have.
int64_t count_weights(int64_t kind, int64_t width, int64_t layers, int64_t directions, int64_t states, int64_t cells,
                      bool has_biases) {
  const int64_t rows = gates_of(static_cast<Recurrence>(kind)) * cells;
  int64_t count = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const int64_t inputs = layer == 0 ? width : states * directions;
    count += directions * (rows * (inputs + states + (has_biases ? 2 : 0)) + (states == cells ? 0 : states * cells));
  }
  return count;
}

// Check arguments that only a direct call of the operators can get wrong.
void check_net(const at::Tensor& input, const at::Tensor& weights, const at::Tensor& hx, const OptionalTensor& cx,
               at::IntArrayRef batch_sizes, int64_t kind, bool bidirectional, bool biases) {
  TORCH_CHECK_VALUE(kind >= 0 && kind <= static_cast<int64_t>(Recurrence::Relu), "recurrent_net: unknown kind ", kind);
  const int64_t directions = bidirectional ? 2 : 1;
  const bool is_lstm = static_cast<Recurrence>(kind) == Recurrence::Lstm;
  TORCH_CHECK_VALUE(
      hx.dim() == 3 && hx.numel() > 0 && hx.size(0) % directions == 0 && is_given(cx) == is_lstm &&
          (!is_lstm || (cx->dim() == 3 && cx->numel() > 0 && cx->sizes().slice(0, 2) == hx.sizes().slice(0, 2))),
      "recurrent_net: initial states of ", hx.sizes(), " do not fit the net");
  const int64_t batch = hx.size(1);
  int64_t rows = 0;
  for (size_t step = 0; step < batch_sizes.size(); ++step) {
    TORCH_CHECK_VALUE(batch_sizes[step] > 0 && batch_sizes[step] <= batch_sizes[step == 0 ? 0 : step - 1],
                      "recurrent_net: the batch sizes of packed sequences must be positive and must not grow");
    rows += batch_sizes[step];
  }
  const bool is_packed = !batch_sizes.empty();
  TORCH_CHECK_VALUE(input.dim() == (is_packed ? 2 : 3) && input.numel() > 0 &&
                        (is_packed ? batch_sizes[0] == batch && rows == input.size(0) : input.size(1) == batch),
                    "recurrent_net: an input of ", input.sizes(), " does not fit initial states of ", hx.sizes());
  const int64_t count = count_weights(kind, input.size(-1), hx.size(0) / directions, directions, hx.size(2),
                                      is_lstm ? cx->size(2) : hx.size(2), biases);
  TORCH_CHECK_VALUE(weights.dim() == 1 && weights.size(0) == count, "recurrent_net: weights of ", weights.sizes(),
                    ", but the net has ", count, " weights");
}

at::Tensor output_like(const at::Tensor& input, const at::Tensor& hx, bool bidirectional) {
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.back() = hx.size(2) * (bidirectional ? 2 : 1);
  return at::empty(sizes, input.options());
}

at::Tensor dense_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options());
}

FourTensors net_shapes(const at::Tensor& input, const at::Tensor& weights, const at::Tensor& hx,
                       const OptionalTensor& cx, at::IntArrayRef batch_sizes, int64_t kind, bool bidirectional,
                       bool biases, std::optional<int64_t> kept) {
  check_net(input, weights, hx, cx, batch_sizes, kind, bidirectional, biases);
  return {output_like(input, hx, bidirectional), dense_like(hx), is_given(cx) ? dense_like(*cx) : at::Tensor(),
          kept.has_value() ? at::empty({*kept}, input.options().dtype(at::kByte)) : at::Tensor()};
}

FourTensors net_backward_shapes(const at::Tensor& grad_output, const OptionalTensor& grad_hy,
                                const OptionalTensor& grad_cy, const at::Tensor& input, const at::Tensor& weights,
                                const at::Tensor& hx, const OptionalTensor& cx, const at::Tensor& output,
                                const at::Tensor&, at::IntArrayRef batch_sizes, int64_t kind, bool bidirectional,
                                bool biases, bool needs_weights) {
  check_net(input, weights, hx, cx, batch_sizes, kind, bidirectional, biases);
  TORCH_CHECK_VALUE(output.sizes() == output_like(input, hx, bidirectional).sizes() &&
                        grad_output.sizes() == output.sizes() &&
                        (!is_given(grad_hy) || grad_hy->sizes() == hx.sizes()) &&
                        (!is_given(grad_cy) || (is_given(cx) && grad_cy->sizes() == cx->sizes())),
                    "recurrent_net: gradients do not fit the results");
  return {dense_like(input), dense_like(hx), is_given(cx) ? dense_like(*cx) : at::Tensor(),
          needs_weights ? dense_like(weights) : at::Tensor()};
}

// Raise, first for arguments that don't fit: on the host, nets run as operators, layer by layer.
void refuse_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.callBoxedForDispatchKey(c10::DispatchKey::Meta, *stack);
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(),
                              ": the driver declined this call, and no other provider can run it");
}

// Return the parameters' places in `weights`: the matrices of all layers and directions, then the
// biases.
std::vector<size_t> order_of_params(const RecurrentNet& net) {
  const size_t each = net.params_each();
  std::vector<size_t> order;
  for (size_t first = 0; first < net.params.size(); first += each) {
    order.insert(order.end(), {first, first + 1});
    if (net.has_projection()) {
      order.push_back(first + each - 1);
    }
  }
  for (size_t first = 0; net.has_biases && first < net.params.size(); first += each) {
    order.insert(order.end(), {first + 2, first + 3});
  }
  return order;
}

at::Tensor joined_weights(const RecurrentNet& net) {
  std::vector<at::Tensor> parts;
  for (const size_t place : order_of_params(net)) {
    parts.push_back(net.params[place].reshape(-1));
  }
  return at::cat(parts);
}

// Return the gradients of the parameters that need one, as views of the weights' gradient.
variable_list parted_weights(const RecurrentNet& net, const at::Tensor& weights) {
  variable_list parts(net.params.size());
  int64_t first = 0;
  for (const size_t place : order_of_params(net)) {
    const at::Tensor& param = net.params[place];
    if (param.requires_grad()) {
      parts[place] = weights.narrow(0, first, param.numel()).view(param.sizes());
    }
    first += param.numel();
  }
  return parts;
}

// Ask the driver about a net whose tensors are dense, before its weights are joined.
std::optional<int64_t> bytes_kept(Operator& op, const RecurrentNet& net, bool keeps) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  int64_t count = 0;
  for (const at::Tensor& param : net.params) {
    count += param.numel();
  }
  const c10::IValue kept = keeps ? c10::IValue(int64_t{0}) : c10::IValue();
  const torch::jit::Stack operands{net.input,
                                   net.params.front().as_strided({count}, {0}),
                                   net.hx,
                                   or_none(net.cx),
                                   net.batch_sizes,
                                   static_cast<int64_t>(net.kind),
                                   net.directions == 2,
                                   net.has_biases,
                                   kept};
  std::vector<c10::IValue> described(operands.begin(), operands.end());
  described[1] = at::empty({count}, at::TensorOptions(net.input.scalar_type()).device(c10::kMeta));
  uint64_t bytes = 0;
  if (query_native(Call(op, operands), described, keeps ? &bytes : nullptr) != NativeAnswer::Accepts) {
    return std::nullopt;
  }
  return static_cast<int64_t>(bytes);
}

FourTensors call_net(const RecurrentNet& net, const at::Tensor& weights, std::optional<int64_t> kept) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("outboard::recurrent_net", "").typed<NetOperator>();
  return op.call(net.input, weights, net.hx, or_none(net.cx), net.batch_sizes, static_cast<int64_t>(net.kind),
                 net.directions == 2, net.has_biases, kept);
}

// The gradients of the input, the initial states and the parameters, in the order of the
// function's arguments.
variable_list gradients_of_net(const RecurrentNet& net, const at::Tensor& weights, const at::Tensor& output,
                               const at::Tensor& kept, const variable_list& grads) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("outboard::recurrent_net_backward", "").typed<NetBackward>();
  const bool needs_weights = std::any_of(net.params.begin(), net.params.end(),
                                         [](const at::Tensor& tensor) { return tensor.requires_grad(); });
  // The driver may write to what it kept, and another pass through the graph needs it again.
  const bool is_last = !torch::autograd::get_current_graph_task_keep_graph();
  auto [input, hx, cx, of_weights] =
      op.call(grads[0].defined() ? grads[0].contiguous() : at::zeros_like(output), or_none(or_dense(grads[1])),
              grads.size() > 2 ? or_none(or_dense(grads[2])) : std::nullopt, net.input, weights, net.hx,
              or_none(net.cx), output, is_last ? kept : kept.clone(), net.batch_sizes, static_cast<int64_t>(net.kind),
              net.directions == 2, net.has_biases, needs_weights);
  variable_list gradients{std::move(input), std::move(hx), std::move(cx)};
  const variable_list parts = needs_weights ? parted_weights(net, of_weights) : variable_list(net.params.size());
  gradients.insert(gradients.end(), parts.begin(), parts.end());
  return gradients;
}

// Return the gradients as functions of the inputs, for second derivatives, by running the net again
// layer by layer.
variable_list gradients_by_layers(const RecurrentNet& net, const variable_list& grads) {
  const NetResults results = run_layers(net);
  std::vector<at::Tensor> inputs{net.input, net.hx, net.cx};
  inputs.insert(inputs.end(), net.params.begin(), net.params.end());
  return differentiable_gradients(at::TensorList(results).slice(0, grads.size()), grads, inputs);
}

class NetFunction : public torch::autograd::Function<NetFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& hx,
                               const OptionalTensor& cx, at::TensorList params, const RecurrentNet& net, int64_t kept) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor weights = joined_weights(net);
    auto [output, hy, cy, memory] = call_net(net, weights, kept);
    variable_list saved{input, hx, net.cx, weights, output, memory};
    saved.insert(saved.end(), params.begin(), params.end());
    context->save_for_backward(std::move(saved));
    context->set_materialize_grads(false);
    auto& data = context->saved_data;
    data["kind"] = static_cast<int64_t>(net.kind);
    data["sizes"] = net.batch_sizes;
    data["biases"] = net.has_biases;
    data["layers"] = net.layers;
    data["directions"] = net.directions;
    return cx.has_value() ? variable_list{output, hy, cy} : variable_list{output, hy};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const variable_list saved = context->get_saved_variables();
    auto& data = context->saved_data;
    const RecurrentNet net{static_cast<Recurrence>(data["kind"].toInt()),
                           saved[0],
                           data["sizes"].toIntVector(),
                           saved[1],
                           saved[2],
                           {saved.begin() + kFirstParam, saved.end()},
                           data["biases"].toBool(),
                           data["layers"].toInt(),
                           /*dropout=*/0,
                           data["directions"].toInt()};
    const c10::DeviceGuard guard(net.input.device());
    variable_list gradients = at::GradMode::is_enabled() ? gradients_by_layers(net, grads)
                                                         : gradients_of_net(net, saved[3], saved[4], saved[5], grads);
    gradients.resize(gradients.size() + 2);  // for arguments that are not tensors
    return gradients;
  }

 private:
  static constexpr int64_t kFirstParam = 6;
};

bool needs_gradients(const RecurrentNet& net) {
  const auto needs = [](const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); };
  return at::GradMode::is_enabled() && (needs(net.input) || needs(net.hx) || needs(net.cx) ||
                                        std::any_of(net.params.begin(), net.params.end(), needs));
}

Operator& fused_operator() {
  static Operator& op = operator_named("outboard::recurrent_net");
  return op;
}

}  // namespace

bool may_run_fused() {
  return has_native(fused_operator()) && allows_native() && can_query_native(fused_operator());
}

std::optional<NetResults> run_fused(const RecurrentNet& given) {
  RecurrentNet net = given;
  net.input = given.input.contiguous();
  net.hx = given.hx.contiguous();
  net.cx = or_dense(given.cx);
  const bool keeps = needs_gradients(net);
  const std::optional<int64_t> kept = bytes_kept(fused_operator(), net, keeps);
  if (!kept.has_value()) {
    return std::nullopt;
  }
  if (!keeps) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [output, hy, cy, none] = call_net(net, joined_weights(net), std::nullopt);
    return NetResults{std::move(output), std::move(hy), std::move(cy)};
  }
  variable_list results =
      NetFunction::apply(net.input, net.hx, or_none(net.cx), at::TensorList(net.params), net, *kept);
  return NetResults{results[0], results[1], results.size() > 2 ? results[2] : at::Tensor()};
}

void define_fused_nets(torch::Library& own) {
  own.def(kNet);
  own.impl("recurrent_net", torch::dispatch(c10::DispatchKey::Meta, net_shapes));
  own.def(kNetBackward);
  own.impl("recurrent_net_backward", torch::dispatch(c10::DispatchKey::Meta, net_backward_shapes));
  for (const char* name : {"recurrent_net", "recurrent_net_backward"}) {
    own.impl(name, torch::dispatch(c10::DispatchKey::CPU, torch::CppFunction::makeFromBoxedFunction<&refuse_on_cpu>()));
  }
}

}  // namespace outboard

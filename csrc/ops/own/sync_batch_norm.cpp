// SPDX-License-Identifier: BSD-3-Clause
// The operators of SyncBatchNorm, composed of operators that every device has: torch has kernels
// for them on GPUs only. Statistics are float32 for half types, as on CUDA.
// torch/nn/modules/_functions.py calls them.
#include <ATen/ops/full.h>
#include <ATen/ops/var_mean.h>

#include <tuple>
#include <vector>

#include "ops/own/factories.h"

namespace outboard {

namespace {

using MaybeTensor = std::optional<at::Tensor>;

bool has(const MaybeTensor& tensor) {
  return tensor.has_value() && tensor->defined();
}

c10::ScalarType sums_of(const at::Tensor& input) {
  return input.scalar_type() == c10::kDouble ? c10::kDouble : c10::kFloat;
}

at::Tensor widened(const at::Tensor& tensor, const at::Tensor& input) {
  return tensor.to(sums_of(input));
}

void check_input(const at::Tensor& input, const char* op) {
  TORCH_CHECK(input.dim() >= 2, op, ": the input needs a batch and a channel dimension, but has ", input.dim(),
              input.dim() == 1 ? " dimension" : " dimensions");
  TORCH_CHECK_TYPE(c10::isFloatingType(input.scalar_type()), op, ": the input is ", input.scalar_type(),
                   ", but must have a floating point dtype");
}

void check_per_channel(const at::Tensor& values, const at::Tensor& input, const char* op, const char* name) {
  TORCH_CHECK(values.dim() == 1 && values.size(0) == input.size(1), op, ": ", name, " has sizes ", values.sizes(),
              ", but the input has ", input.size(1), " channels");
}

void check_same_sizes(const at::Tensor& gradient, const at::Tensor& input, const char* op) {
  TORCH_CHECK(gradient.sizes() == input.sizes(), op, ": the gradient has sizes ", gradient.sizes(), ", the input ",
              input.sizes());
}

// Return all dimensions except the channels.
std::vector<int64_t> reduced_dims(const at::Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) {
    dims.push_back(dim);
  }
  return dims;
}

// Return one value for each channel, in a shape that broadcasts against the input.
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> sizes(static_cast<size_t>(input.dim()), 1);
  sizes[1] = values.size(0);
  return widened(values, input).view(sizes);
}

std::tuple<at::Tensor, at::Tensor> stats_of(const at::Tensor& input, double eps) {
  check_input(input, "batch_norm_stats");
  auto [variance, mean] = at::var_mean(widened(input, input), reduced_dims(input), /*correction=*/0);
  return {mean, variance.add(eps).rsqrt()};
}

void update(const MaybeTensor& running, const at::Tensor& value, double momentum) {
  if (has(running)) {
    running->copy_(running->mul(1 - momentum).add(value.to(running->scalar_type()), momentum));
  }
}

// `mean` and `invstd` have a row for each rank; `counts` has each rank's elements in a channel.
std::tuple<at::Tensor, at::Tensor> gathered_stats(const at::Tensor& input, const at::Tensor& mean,
                                                  const at::Tensor& invstd, const MaybeTensor& running_mean,
                                                  const MaybeTensor& running_var, double momentum, double eps,
                                                  const at::Tensor& counts) {
  constexpr const char* kName = "batch_norm_gather_stats_with_counts";
  check_input(input, kName);
  TORCH_CHECK(mean.dim() == 2 && mean.size(1) == input.size(1) && invstd.sizes() == mean.sizes(), kName,
              ": mean has sizes ", mean.sizes(), " and invstd ", invstd.sizes(),
              ", but both need one row per rank, of ", input.size(1), " channels");
  TORCH_CHECK(counts.dim() == 1 && counts.size(0) == mean.size(0), kName, ": counts has sizes ", counts.sizes(),
              ", but mean has ", mean.size(0), " rows");
  const at::Tensor weights = widened(counts, input).unsqueeze(1);
  const at::Tensor total = weights.sum();
  const at::Tensor centre = widened(mean, input).mul(weights).sum(0).div(total);
  const at::Tensor variances = widened(invstd, input).pow(-2).sub(eps).add(widened(mean, input).sub(centre).square());
  const at::Tensor variance = variances.mul(weights).sum(0).div(total);
  update(running_mean, centre, momentum);
  update(running_var, variance.mul(total.div(total.sub(1))), momentum);
  return {centre, variance.add(eps).rsqrt()};
}

std::tuple<at::Tensor, at::Tensor> gathered_stats_of_count(const at::Tensor& input, const at::Tensor& mean,
                                                           const at::Tensor& invstd, const MaybeTensor& running_mean,
                                                           const MaybeTensor& running_var, double momentum, double eps,
                                                           int64_t count) {
  const at::Tensor counts = at::full({mean.dim() == 0 ? 1 : mean.size(0)}, count, mean.options());
  return gathered_stats(input, mean, invstd, running_mean, running_var, momentum, eps, counts);
}

at::Tensor normalized(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                      const at::Tensor& mean, const at::Tensor& invstd, double /*eps*/) {
  constexpr const char* kName = "batch_norm_elemt";
  check_input(input, kName);
  check_per_channel(mean, input, kName, "mean");
  check_per_channel(invstd, input, kName, "invstd");
  at::Tensor factor = by_channel(invstd, input);
  if (has(weight)) {
    check_per_channel(*weight, input, kName, "weight");
    factor = factor.mul(by_channel(*weight, input));
  }
  at::Tensor result = widened(input, input).sub(by_channel(mean, input)).mul(factor);
  if (has(bias)) {
    check_per_channel(*bias, input, kName, "bias");
    result = result.add(by_channel(*bias, input));
  }
  return result.to(input.scalar_type());
}

// Results that are not requested are undefined, as on CUDA.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> gradient_sums(
    const at::Tensor& grad_out, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& invstd,
    const MaybeTensor& weight, bool input_g, bool weight_g, bool bias_g) {
  constexpr const char* kName = "batch_norm_backward_reduce";
  check_input(input, kName);
  check_same_sizes(grad_out, input, kName);
  check_per_channel(mean, input, kName, "mean");
  check_per_channel(invstd, input, kName, "invstd");
  const at::Tensor gradient = widened(grad_out, input);
  const std::vector<int64_t> dims = reduced_dims(input);
  const auto of_weight = has(weight) ? weight->scalar_type() : sums_of(input);
  at::Tensor sum_dy, sum_dy_xmu, grad_weight, grad_bias;
  if (input_g || bias_g) {
    sum_dy = gradient.sum(dims);
  }
  if (input_g || weight_g) {
    sum_dy_xmu = gradient.mul(widened(input, input).sub(by_channel(mean, input))).sum(dims);
  }
  if (weight_g) {
    grad_weight = sum_dy_xmu.mul(widened(invstd, input)).to(of_weight);
  }
  if (bias_g) {
    grad_bias = sum_dy.to(of_weight);
  }
  return {input_g ? sum_dy : at::Tensor(), input_g ? sum_dy_xmu : at::Tensor(), grad_weight, grad_bias};
}

// `sum_dy` and `sum_dy_xmu` are sums over all ranks; `count` has their elements in a channel.
at::Tensor gradient_of_input(const at::Tensor& grad_out, const at::Tensor& input, const at::Tensor& mean,
                             const at::Tensor& invstd, const MaybeTensor& weight, const at::Tensor& sum_dy,
                             const at::Tensor& sum_dy_xmu, const at::Tensor& count) {
  constexpr const char* kName = "batch_norm_backward_elemt";
  check_input(input, kName);
  check_same_sizes(grad_out, input, kName);
  for (const auto& [values, name] : {std::pair(mean, "mean"), std::pair(invstd, "invstd"), std::pair(sum_dy, "sum_dy"),
                                     std::pair(sum_dy_xmu, "sum_dy_xmu")}) {
    check_per_channel(values, input, kName, name);
  }
  const at::Tensor total = widened(count, input).sum();
  const at::Tensor scale = by_channel(invstd, input);
  const at::Tensor slope = by_channel(widened(sum_dy_xmu, input).div(total), input).mul(scale.square());
  const at::Tensor centred = widened(input, input).sub(by_channel(mean, input));
  const at::Tensor plain =
      widened(grad_out, input).sub(by_channel(widened(sum_dy, input).div(total), input)).sub(centred.mul(slope));
  const at::Tensor factor = has(weight) ? scale.mul(by_channel(*weight, input)) : scale;
  return plain.mul(factor).to(input.scalar_type());
}

}  // namespace

void register_sync_batch_norm(torch::Library& aten) {
  aten.impl("batch_norm_stats", stats_of);
  aten.impl("batch_norm_gather_stats", gathered_stats_of_count);
  aten.impl("batch_norm_gather_stats_with_counts", gathered_stats);
  aten.impl("batch_norm_elemt", normalized);
  aten.impl("batch_norm_backward_reduce", gradient_sums);
  aten.impl("batch_norm_backward_elemt", gradient_of_input);
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/planned/composed_attention.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/error.h"
#include "ops/planned/generated_provider.h"

namespace outboard {

namespace {

// Compute half types in float.
at::Tensor as_float(const at::Tensor& tensor) {
  return tensor.to(c10::kFloat);
}

// Repeat heads, one for each query head, if a key head serves several.
at::Tensor for_heads(const at::Tensor& tensor, int64_t heads) {
  const int64_t key_heads = tensor.size(1);
  if (key_heads == heads) {
    return as_float(tensor);
  }
  const int64_t rows = tensor.size(2), columns = tensor.size(3);
  return as_float(tensor)
      .unsqueeze(2)
      .expand({tensor.size(0), key_heads, heads / key_heads, rows, columns})
      .reshape({tensor.size(0), heads, rows, columns});
}

// Sum over the query heads that a head serves.
at::Tensor of_heads(const at::Tensor& tensor, int64_t heads) {
  if (tensor.size(1) == heads) {
    return tensor;
  }
  return tensor.reshape({tensor.size(0), heads, tensor.size(1) / heads, tensor.size(2), tensor.size(3)}).sum(2);
}

struct Attention {
  at::Tensor query, key, value;  // in float, with equal numbers of heads
  at::Tensor scores;
  double scale;
};

Attention scores_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const c10::IValue& mask,
                    bool is_causal, const c10::IValue& scale) {
  Attention attention{as_float(query), for_heads(key, query.size(1)), for_heads(value, query.size(1)), {}, 0};
  attention.scale = scale.isNone() ? 1 / std::sqrt(static_cast<double>(query.size(3))) : scale.toDouble();
  attention.scores = at::matmul(attention.query, attention.key.transpose(-2, -1)).mul(attention.scale);
  const double none = -std::numeric_limits<double>::infinity();
  if (mask.isTensor() && mask.toTensor().defined()) {
    const at::Tensor& added = mask.toTensor();
    attention.scores =
        added.scalar_type() == c10::kBool ? at::where(added, attention.scores, none) : attention.scores.add(added);
  }
  if (is_causal) {
    const at::TensorOptions flags = query.options().dtype(c10::kBool);
    attention.scores = at::where(at::ones({query.size(2), key.size(2)}, flags).tril(), attention.scores, none);
  }
  return attention;
}

// A query with no remaining key has weights of 0.
at::Tensor weights_of(const at::Tensor& scores, const at::Tensor& logsumexp) {
  const at::Tensor sums = logsumexp.unsqueeze(-1);
  return at::where(sums.eq(-std::numeric_limits<double>::infinity()), 0.0, scores.sub(sums).exp());
}

// Allocate a result as the operator's meta kernel does: in the order of the queries' strides.
at::Tensor empty_result(const at::Tensor& query, int64_t columns) {
  if (query.size(3) == columns) {
    return at::empty_like(query);
  }
  std::vector<int64_t> order(4), sizes = query.sizes().vec(), lying(4), back(4);
  sizes[3] = columns;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&query](int64_t a, int64_t b) { return query.stride(a) > query.stride(b); });
  for (size_t i = 0; i < 4; ++i) {
    lying[i] = sizes[static_cast<size_t>(order[i])];
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return at::empty(lying, query.options()).permute(back);
}

// No operator can reproduce the weights that the kernels drop, and the CPU has no operator for the
// whole.
void check_drops_none(const Call& call, size_t place) {
  if (call.arg(place).toDouble() == 0) {
    return;
  }
  raise(ErrorKind::NotSupported, OB_UNIMPLEMENTED,
        call.op().name + " uses dropout, and no kernel for this call can reproduce its mask" +
            explain_last_refusal(call.op()) +
            ". Disable dropout, or select the composite form with torch.nn.attention.sdpa_kernel(SDPBackend.MATH).");
}

}  // namespace

bool compose_attention(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& query = call.arg(0).toTensor();
  const at::Tensor& key = call.arg(1).toTensor();
  const at::Tensor& value = call.arg(2).toTensor();
  check_drops_none(call, 4);
  if (query.dim() != 4) {
    return false;
  }
  const Attention attention = scores_of(query, key, value, call.arg(3), call.arg(5).toBool(), call.arg(7));
  const at::Tensor logsumexp = at::logsumexp(attention.scores, {-1});
  at::Tensor result = empty_result(query, value.size(3));
  result.copy_(at::matmul(weights_of(attention.scores, logsumexp), attention.value));
  // No caller reads a seed.
  const at::TensorOptions of_seed = query.options().dtype(c10::kLong);
  for (const c10::IValue& output :
       {c10::IValue(result), c10::IValue(logsumexp), c10::IValue(at::Tensor()), c10::IValue(at::Tensor()),
        c10::IValue(query.size(2)), c10::IValue(key.size(2)), c10::IValue(at::empty({}, of_seed)),
        c10::IValue(at::empty({}, of_seed)), c10::IValue(at::Tensor())}) {
    results.push_back(output);
  }
  return true;
}

bool compose_attention_gradients(const Call& call, torch::jit::Stack& results) {
  const auto wanted = call.arg(5).toBoolList();
  check_drops_none(call, 12);
  const at::Tensor& query = call.arg(1).toTensor();
  const at::Tensor& key = call.arg(2).toTensor();
  const at::Tensor& value = call.arg(3).toTensor();
  const at::Tensor grad = as_float(call.arg(0).toTensor());
  const Attention attention = scores_of(query, key, value, call.arg(4), call.arg(13).toBool(), call.arg(16));
  const at::Tensor weights = weights_of(attention.scores, call.arg(7).toTensor());
  const at::Tensor delta = grad.mul(as_float(call.arg(6).toTensor())).sum(-1, /*keepdim=*/true);
  const at::Tensor slopes = weights.mul(at::matmul(grad, attention.value.transpose(-2, -1)).sub(delta));
  const at::Tensor scaled = slopes.mul(attention.scale);
  const int64_t heads = key.size(1);
  const std::array<at::Tensor, 3> like{query, key, value};
  for (size_t i = 0; i < 3; ++i) {
    if (!wanted[i]) {
      results.emplace_back(at::Tensor());
      continue;
    }
    const at::Tensor product = i == 0   ? at::matmul(scaled, attention.key)
                               : i == 1 ? of_heads(at::matmul(scaled.transpose(-2, -1), attention.query), heads)
                                        : of_heads(at::matmul(weights.transpose(-2, -1), grad), heads);
    at::Tensor result = at::empty_like(like[i]);
    result.copy_(product);
    results.emplace_back(std::move(result));
  }
  results.emplace_back(at::Tensor());
  if (wanted[3]) {
    const at::Tensor& mask = call.arg(4).toTensor();
    at::Tensor result = at::empty_like(mask);
    result.copy_(at::sum_to(slopes, mask.sizes()));
    results.back() = std::move(result);
  }
  return true;
}

}  // namespace outboard

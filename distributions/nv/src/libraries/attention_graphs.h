// SPDX-License-Identifier: BSD-3-Clause
// Attention and its gradients as graphs of cuDNN: products, pointwise operations
// and reductions, which it fuses.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "cudnn_graphs.h"

namespace nv::attention {

// Batch, heads, rows (queries or keys), columns (of a head).
using Sizes = std::array<int64_t, 4>;

// What a tensor or a number of a graph is, and its name in bindings.
enum TensorRole : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kResult,
  kLogSumExp,  // of each query's scores
  kMask,       // added to the scores
  kSeed,
  kOffset,
  kGrad,
  kGradQuery,
  kGradKey,
  kGradValue,
  kDelta,      // memory of the gradients: a number for each query
  kQuerySums,  // memory of the gradients that need not repeat: the query's, in float
  // Numbers by value.
  kScale,
  kMaskedScore,   // the score of a key that a query doesn't see
  kDropoutScale,  // what dropout multiplies a kept weight by
  kInverseDropoutScale
};

// A tensor in memory. Columns are adjacent.
struct Tensor {
  TensorRole role;
  int type;
  Sizes sizes;
  Sizes strides;
};

struct Problem {
  bool is_backward = false;
  bool is_causal = false;
  bool repeats = true;  // gradients must be the same in each run
  double dropout = 0;
  std::vector<Tensor> tensors{};

  // Return null if there is none.
  const Tensor* find(TensorRole role) const;
  cudnn::PlanKey key() const;
};

Sizes dense_strides(const Sizes& sizes);

// Return the problem's plan, as Session::find does.
ob_status find_plan(cudnn::Session& session, const Problem& problem, std::shared_ptr<const cudnn::Plan>* out_plan);

}  // namespace nv::attention

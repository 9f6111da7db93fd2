// SPDX-License-Identifier: BSD-3-Clause
#include "attention_graphs.h"

#include <bit>
#include <map>
#include <utility>

namespace nv::attention {

using cudnn::Descriptor;
using cudnn::Descriptors;

namespace {

constexpr int64_t kAlignment = 16;
constexpr int64_t kFirstVirtual = 100;
constexpr Sizes kOne = {1, 1, 1, 1};

// A tensor of a graph.
struct Value {
  Descriptor descriptor = nullptr;
  Sizes sizes{};
  Sizes strides{};
};

Sizes swapped(Sizes sizes) {
  std::swap(sizes[2], sizes[3]);
  return sizes;
}

// The operations of a problem.
class Graph {
 public:
  Graph(const Problem& problem, Descriptors* out) : problem_(problem), out_(*out) {}

  bool has(TensorRole role) const { return problem_.find(role) != nullptr; }

  // Return a tensor of the problem, with rows and columns swapped if
  // `is_swapped`: the same at each call.
  Value tensor(TensorRole role, bool is_swapped = false) {
    const auto entry = known_.find(role);
    if (entry != known_.end()) return entry->second;
    const Tensor& tensor = *problem_.find(role);
    const Sizes sizes = is_swapped ? swapped(tensor.sizes) : tensor.sizes;
    const Sizes strides = is_swapped ? swapped(tensor.strides) : tensor.strides;
    return known_[role] = describe(role, tensor.type, sizes, strides, Kind::kMemory);
  }

  // Return a number that is passed by value.
  Value number(TensorRole role) {
    const auto entry = known_.find(role);
    if (entry != known_.end()) return entry->second;
    return known_[role] = describe(role, cudnn::kFloat, kOne, kOne, Kind::kByValue);
  }

  // Return an intermediate tensor, which has no memory.
  Value intermediate(const Sizes& sizes, const Sizes& strides, int type = cudnn::kFloat) {
    return describe(next_++, type, sizes, strides, Kind::kVirtual);
  }
  Value intermediate(const Sizes& sizes, int type = cudnn::kFloat) {
    return intermediate(sizes, dense_strides(sizes), type);
  }

  Value multiply(const Value& a, const Value& b, const Value& to) {
    const int compute = cudnn::kFloat;
    const Descriptor product = out_.make(cudnn::kProduct);
    out_.set(product, cudnn::kProductCompute, cudnn::kTypeData, &compute);
    out_.finalize(product);
    add(cudnn::kProductOperation, {{cudnn::kProductA, a.descriptor},
                                   {cudnn::kProductA + 1, b.descriptor},
                                   {cudnn::kProductA + 2, to.descriptor},
                                   {cudnn::kProductDescription, product}});
    return to;
  }

  Value reduce(int mode, const Value& x, const Value& to) {
    const int compute = cudnn::kFloat;
    const Descriptor reduction = out_.make(cudnn::kReduction);
    out_.set(reduction, cudnn::kReductionOperator, cudnn::kTypeReduction, &mode);
    out_.set(reduction, cudnn::kReductionCompute, cudnn::kTypeData, &compute);
    out_.finalize(reduction);
    add(cudnn::kReductionOperation, {{cudnn::kReductionX, x.descriptor},
                                     {cudnn::kReductionX + 1, to.descriptor},
                                     {cudnn::kReductionDescription, reduction}});
    return to;
  }

  // Compute `to` from one tensor or from two.
  Value add_pointwise(int mode, const Value& x, const Value& to) {
    return point_of(pointwise(mode), x, nullptr, nullptr, to);
  }
  Value add_pointwise(int mode, const Value& x, const Value& b, const Value& to, int compute = cudnn::kFloat) {
    return point_of(pointwise(mode, compute), x, &b, nullptr, to);
  }
  // Return x where `flags` are true, else b.
  Value select(const Value& x, const Value& b, const Value& flags, const Value& to) {
    return point_of(pointwise(cudnn::kSelect), x, &b, &flags, to);
  }
  // Return each element's place along a dimension.
  Value index(const Value& x, int64_t dim) {
    return point_of(pointwise(cudnn::kIndex, cudnn::kFloat, dim), x, nullptr, nullptr,
                    intermediate(x.sizes, cudnn::kInt32));
  }

  Value reshape(const Value& x, const Value& to) {
    add(cudnn::kReshapeOperation, {{cudnn::kReshapeX, x.descriptor}, {cudnn::kReshapeX + 1, to.descriptor}});
    return to;
  }

  // Draw 1 with a probability, else 0.
  Value draw(double probability, const Value& to) {
    const int distribution = cudnn::kBernoulli;
    const Descriptor draws = out_.make(cudnn::kDraw);
    out_.set(draws, cudnn::kDrawDistribution, cudnn::kTypeDistribution, &distribution);
    out_.set(draws, cudnn::kDrawProbability, cudnn::kTypeDouble, &probability);
    out_.finalize(draws);
    add(cudnn::kDrawOperation, {{cudnn::kDrawY, to.descriptor},
                                {cudnn::kDrawDescription, draws},
                                {cudnn::kDrawSeed, tensor(kSeed).descriptor},
                                {cudnn::kDrawOffset, tensor(kOffset).descriptor}});
    return to;
  }

  Descriptor finish(cudnn::Handle handle) { return out_.graph_of(handle, operations_); }

 private:
  enum class Kind { kMemory, kVirtual, kByValue };

  Value describe(int64_t id, int type, const Sizes& sizes, const Sizes& strides, Kind kind) {
    const Descriptor tensor = out_.make(cudnn::kTensor);
    const bool is_true = true;
    out_.set(tensor, cudnn::kTensorData, cudnn::kTypeData, &type);
    out_.set(tensor, cudnn::kTensorSizes, cudnn::kTypeInt64, sizes.data(), 4);
    out_.set(tensor, cudnn::kTensorStrides, cudnn::kTypeInt64, strides.data(), 4);
    out_.set(tensor, cudnn::kTensorId, cudnn::kTypeInt64, &id);
    out_.set(tensor, cudnn::kTensorAlignment, cudnn::kTypeInt64, &kAlignment);
    if (kind == Kind::kVirtual) out_.set(tensor, cudnn::kTensorIsVirtual, cudnn::kTypeBoolean, &is_true);
    if (kind == Kind::kByValue) out_.set(tensor, cudnn::kTensorIsByValue, cudnn::kTypeBoolean, &is_true);
    out_.finalize(tensor);
    return {tensor, sizes, strides};
  }

  Descriptor pointwise(int mode, int compute = cudnn::kFloat, int64_t axis = -1) {
    const Descriptor description = out_.make(cudnn::kPointwise);
    out_.set(description, cudnn::kPointwiseMode, cudnn::kTypePointwiseMode, &mode);
    out_.set(description, cudnn::kPointwiseCompute, cudnn::kTypeData, &compute);
    if (axis >= 0) out_.set(description, cudnn::kPointwiseAxis, cudnn::kTypeInt64, &axis);
    out_.finalize(description);
    return description;
  }

  Value point_of(Descriptor description, const Value& x, const Value* b, const Value* flags, const Value& to) {
    std::vector<std::pair<int, Descriptor>> parts = {{cudnn::kPointwiseDescription, description},
                                                     {cudnn::kPointwiseX, x.descriptor},
                                                     {cudnn::kPointwiseY, to.descriptor}};
    if (b != nullptr) parts.emplace_back(cudnn::kPointwiseB, b->descriptor);
    if (flags != nullptr) parts.emplace_back(cudnn::kPointwiseT, flags->descriptor);
    add(cudnn::kPointwiseOperation, parts);
    return to;
  }

  void add(int kind, const std::vector<std::pair<int, Descriptor>>& parts) {
    const Descriptor operation = out_.make(kind);
    for (const auto& [attribute, part] : parts) out_.set(operation, attribute, cudnn::kTypeDescriptor, &part);
    out_.finalize(operation);
    operations_.push_back(operation);
  }

  const Problem& problem_;
  Descriptors& out_;
  std::map<TensorRole, Value> known_;
  std::vector<Descriptor> operations_;
  int64_t next_ = kFirstVirtual;
};

// The sizes of the matrix of all queries by all keys.
Sizes sizes_of_scores(const Problem& problem) {
  const Sizes& query = problem.find(kQuery)->sizes;
  return {query[0], query[1], query[2], problem.find(kKey)->sizes[2]};
}

Sizes sizes_of_rows(const Problem& problem) {
  const Sizes& query = problem.find(kQuery)->sizes;
  return {query[0], query[1], query[2], 1};
}

// Add scale * query * key + mask.
Value add_scores(const Problem& problem, Graph& graph) {
  const Sizes sizes = sizes_of_scores(problem);
  Value scores = graph.multiply(graph.tensor(kQuery), graph.tensor(kKey, true), graph.intermediate(sizes));
  scores = graph.add_pointwise(cudnn::kMultiply, scores, graph.number(kScale), graph.intermediate(sizes));
  if (graph.has(kMask))
    scores = graph.add_pointwise(cudnn::kAdd, scores, graph.tensor(kMask), graph.intermediate(sizes));
  return scores;
}

// Mask the keys after a query.
Value apply_causal_mask(const Problem& problem, Graph& graph, const Value& scores) {
  if (!problem.is_causal) return scores;
  const Value flags = graph.add_pointwise(cudnn::kNotLess, graph.index(scores, 2), graph.index(scores, 3),
                                          graph.intermediate(scores.sizes, cudnn::kBoolean), cudnn::kBoolean);
  return graph.select(scores, graph.number(kMaskedScore), flags, graph.intermediate(scores.sizes));
}

Descriptor describe_forward(const Problem& problem, cudnn::Handle handle, Descriptors* out) {
  Graph graph(problem, out);
  const Sizes sizes = sizes_of_scores(problem), rows = sizes_of_rows(problem);
  const Value scores = apply_causal_mask(problem, graph, add_scores(problem, graph));
  const Value maximum = graph.reduce(cudnn::kMax, scores, graph.intermediate(rows));
  const Value shifted = graph.add_pointwise(cudnn::kSubtract, scores, maximum, graph.intermediate(sizes));
  const Value exponentials = graph.add_pointwise(cudnn::kExp, shifted, graph.intermediate(sizes));
  const Value sums = graph.reduce(cudnn::kSum, exponentials, graph.intermediate(rows));
  const Value logs = graph.add_pointwise(cudnn::kLog, sums, graph.intermediate(rows));
  graph.add_pointwise(cudnn::kAdd, maximum, logs, graph.tensor(kLogSumExp));
  // The second product takes the type of the values.
  const int type = problem.find(kValue)->type;
  const bool drops = problem.dropout > 0;
  Value weights =
      graph.add_pointwise(cudnn::kDivide, exponentials, sums, graph.intermediate(sizes, drops ? cudnn::kFloat : type));
  if (drops) {
    const Value kept = graph.draw(1 - problem.dropout, graph.intermediate(sizes));
    weights = graph.add_pointwise(cudnn::kMultiply, weights, kept, graph.intermediate(sizes));
    weights =
        graph.add_pointwise(cudnn::kMultiply, weights, graph.number(kDropoutScale), graph.intermediate(sizes, type));
  }
  graph.multiply(weights, graph.tensor(kValue), graph.tensor(kResult));
  return graph.finish(handle);
}

// Write the product of a transposed matrix of all scores with a tensor of the queries, summed over
// the heads that a head of keys serves.
void multiply_transposed(const Problem& problem, Graph& graph, const Value& matrix, const Value& by, TensorRole to) {
  const Sizes sizes = sizes_of_scores(problem);
  const Sizes over = swapped(sizes), strides = swapped(dense_strides(sizes));
  const int type = problem.find(kQuery)->type;
  const Value transposed = graph.reshape(matrix, graph.intermediate(over, strides, type));
  const Value target = graph.tensor(to);
  if (target.sizes[1] == sizes[1]) {
    graph.multiply(transposed, by, target);
    return;
  }
  const Sizes of_all = {target.sizes[0], sizes[1], target.sizes[2], target.sizes[3]};
  graph.reduce(cudnn::kSum, graph.multiply(transposed, by, graph.intermediate(of_all, type)), target);
}

// Write a number for each query: the sum over its result times the result's gradient.
Value add_delta(const Problem& problem, Graph& graph) {
  const Sizes rows = sizes_of_rows(problem);
  const Value grad = graph.tensor(kGrad);
  const Value products =
      graph.add_pointwise(cudnn::kMultiply, grad, graph.tensor(kResult), graph.intermediate(grad.sizes));
  const Value sums = graph.reduce(cudnn::kSum, products, graph.intermediate(rows));
  return graph.add_pointwise(cudnn::kMultiply, sums, graph.number(kInverseDropoutScale), graph.tensor(kDelta));
}

void add_grad_query(const Problem& problem, Graph& graph, const Value& grad_scores) {
  const Tensor& key = *problem.find(kKey);
  const Value keys = graph.reshape(graph.tensor(kKey, true), graph.intermediate(key.sizes, key.strides, key.type));
  if (!graph.has(kQuerySums)) {
    graph.multiply(grad_scores, keys, graph.tensor(kGradQuery));
    return;
  }
  const Value sums = graph.multiply(grad_scores, keys, graph.tensor(kQuerySums));
  graph.add_pointwise(cudnn::kIdentity, sums, graph.tensor(kGradQuery));
}

Descriptor describe_backward(const Problem& problem, cudnn::Handle handle, Descriptors* out) {
  Graph graph(problem, out);
  const Sizes sizes = sizes_of_scores(problem);
  const bool drops = problem.dropout > 0;
  const Value kept = drops ? graph.draw(1 - problem.dropout, graph.intermediate(sizes)) : Value{};
  const auto drop = [&](const Value& from) {
    return drops ? graph.add_pointwise(cudnn::kMultiply, from, kept, graph.intermediate(sizes)) : from;
  };
  const auto enlarge = [&](const Value& from) {
    return drops ? graph.add_pointwise(cudnn::kMultiply, from, graph.number(kDropoutScale), graph.intermediate(sizes))
                 : from;
  };
  const Value delta = add_delta(problem, graph);
  const Value scores = add_scores(problem, graph);
  const Value shifted =
      graph.add_pointwise(cudnn::kSubtract, scores, graph.tensor(kLogSumExp), graph.intermediate(sizes));
  const Value weights =
      graph.add_pointwise(cudnn::kExp, apply_causal_mask(problem, graph, shifted), graph.intermediate(sizes));
  const Value grad = graph.tensor(kGrad);
  multiply_transposed(problem, graph, enlarge(drop(weights)), grad, kGradValue);
  Value grad_scores = drop(graph.multiply(grad, graph.tensor(kValue, true), graph.intermediate(sizes)));
  grad_scores = graph.add_pointwise(cudnn::kSubtract, grad_scores, delta, graph.intermediate(sizes));
  grad_scores = enlarge(graph.add_pointwise(cudnn::kMultiply, grad_scores, weights, graph.intermediate(sizes)));
  grad_scores = graph.add_pointwise(cudnn::kMultiply, grad_scores, graph.number(kScale), graph.intermediate(sizes));
  multiply_transposed(problem, graph, grad_scores, graph.tensor(kQuery), kGradKey);
  add_grad_query(problem, graph, grad_scores);
  return graph.finish(handle);
}

}  // namespace

const Tensor* Problem::find(TensorRole role) const {
  for (const Tensor& tensor : tensors) {
    if (tensor.role == role) return &tensor;
  }
  return nullptr;
}

cudnn::PlanKey Problem::key() const {
  cudnn::PlanKey key{cudnn::kProductOperation, is_backward, is_causal, repeats, std::bit_cast<int64_t>(dropout)};
  for (const Tensor& tensor : tensors) {
    key.push_back(tensor.role);
    key.push_back(tensor.type);
    key.insert(key.end(), tensor.sizes.begin(), tensor.sizes.end());
    key.insert(key.end(), tensor.strides.begin(), tensor.strides.end());
  }
  return key;
}

Sizes dense_strides(const Sizes& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
}

ob_status find_plan(cudnn::Session& session, const Problem& problem, std::shared_ptr<const cudnn::Plan>* out_plan) {
  const cudnn::Rules rules{.repeats = problem.repeats};
  return session.find(
      problem.key(), rules,
      [&]() -> cudnn::Describe {
        return [problem](cudnn::Handle handle, Descriptors* out) {
          return problem.is_backward ? describe_backward(problem, handle, out) : describe_forward(problem, handle, out);
        };
      },
      out_plan);
}

}  // namespace nv::attention

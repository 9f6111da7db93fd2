// SPDX-License-Identifier: BSD-3-Clause
#include "ops/parts.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/attention_parts.h"
#include "ops/tensor_utils.h"

namespace outboard {

namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

// Where the elements that are not 0 are in a tensor as one row, in order.
at::Tensor places_of(const at::Tensor& flags) {
  const at::TensorOptions of_places = flags.options().dtype(c10::kLong);
  const at::Tensor flat = flags.reshape({-1});
  if (flat.numel() == 0) {
    return at::empty({0}, of_places);
  }
  const at::Tensor is_one = flat.scalar_type() == c10::kBool ? flat : flat.ne(0);
  const at::Tensor order = is_one.cumsum(0, c10::kLong);
  const auto count = order[-1].item<int64_t>();
  // The others all write to an element behind the last.
  at::Tensor places = at::empty({count + 1}, of_places);
  places.scatter_(0, at::where(is_one, order.sub(1), at::full({}, count, of_places)),
                  at::arange(flat.numel(), of_places));
  return places.narrow(0, 0, count);
}

// The places by their coordinates, a tensor a dimension.
std::vector<at::Tensor> coordinates(const at::Tensor& places, at::IntArrayRef sizes) {
  std::vector<at::Tensor> result;
  int64_t stride = 1;
  for (size_t dim = sizes.size(); dim-- > 0;) {
    at::Tensor column = stride == 1 ? places : places.floor_divide(stride);
    result.insert(result.begin(), dim == 0 ? column : column.remainder(sizes[dim]));
    stride *= sizes[dim];
  }
  return result;
}

bool nonzero(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  if (self.is_complex()) {
    return false;
  }
  const at::Tensor places = places_of(self);
  const std::vector<at::Tensor> columns = coordinates(places, self.sizes());
  results.emplace_back(columns.empty() ? at::empty({places.numel(), 0}, places.options()) : at::stack(columns, 0).t());
  return true;
}

bool masked_select(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  const at::Tensor& mask = call.arg(1).toTensor();
  if (mask.scalar_type() != c10::kBool || self.is_complex()) {
    return false;
  }
  const std::vector<int64_t> sizes = at::infer_size(self.sizes(), mask.sizes());
  const at::Tensor places = places_of(mask.expand(sizes));
  results.emplace_back(self.expand(sizes).reshape({-1}).index_select(0, places));
  return true;
}

// Indices with the coordinates of what is set in the place of each mask; nothing if a mask doesn't fit.
std::optional<Indices> without_masks(const at::Tensor& self, const Indices& indices) {
  Indices result;
  int64_t dim = 0;
  for (const std::optional<at::Tensor>& index : indices) {
    if (!index.has_value() || !index->defined() || !is_mask(*index)) {
      result.push_back(index);
      ++dim;
      continue;
    }
    if (dim + index->dim() > self.dim() || index->dim() == 0 ||
        !index->sizes().equals(self.sizes().slice(static_cast<size_t>(dim), static_cast<size_t>(index->dim())))) {
      return std::nullopt;
    }
    for (at::Tensor& column : coordinates(places_of(index->to(self.device())), index->sizes())) {
      result.push_back(std::move(column));
    }
    dim += index->dim();
  }
  return result;
}

bool index_by_masks(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  if (!has_mask(call) || self.is_complex()) {
    return false;
  }
  const auto indices = without_masks(self, call.arg(1).to<Indices>());
  if (indices) {
    results.emplace_back(at::index(self, *indices));
  }
  return indices.has_value();
}

bool put_by_masks(const Call& call, torch::jit::Stack& results) {
  at::Tensor self = call.arg(0).toTensor();
  if (!has_mask(call) || self.is_complex()) {
    return false;
  }
  const auto indices = without_masks(self, call.arg(1).to<Indices>());
  if (indices) {
    self.index_put_(*indices, call.arg(2).toTensor(), call.arg(3).toBool());
    results.emplace_back(std::move(self));
  }
  return indices.has_value();
}

bool unique(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  if (self.numel() == 0 || self.is_complex()) {
    return false;
  }
  const int64_t length = self.numel();
  const auto [values, order] =
      self.reshape({-1}).sort(/*stable=*/std::optional<bool>(true), /*dim=*/0, /*descending=*/false);
  const at::TensorOptions of_places = order.options();
  const at::Tensor is_first = at::cat({at::ones({1}, of_places.dtype(c10::kBool)),
                                       values.narrow(0, 1, length - 1).ne(values.narrow(0, 0, length - 1))});
  const at::Tensor firsts = places_of(is_first);
  results.emplace_back(values.index_select(0, firsts));
  at::Tensor inverse = at::empty({0}, of_places);
  if (call.arg(2).toBool()) {
    inverse = at::empty(self.sizes(), of_places);
    inverse.view({-1}).scatter_(0, order, is_first.cumsum(0, c10::kLong).sub(1));
  }
  results.emplace_back(std::move(inverse));
  at::Tensor counts = at::empty({0}, of_places);
  if (call.arg(3).toBool()) {
    counts = at::cat({firsts.slice(0, 1), at::full({1}, length, of_places)}).sub(firsts);
  }
  results.emplace_back(std::move(counts));
  return true;
}

bool equal(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  const at::Tensor& other = call.arg(1).toTensor();
  if (self.scalar_type() != other.scalar_type() || self.device() != other.device() || self.is_complex()) {
    return false;
  }
  results.emplace_back(self.sizes().equals(other.sizes()) &&
                       (self.numel() == 0 || at::eq(self, other).all().item<bool>()));
  return true;
}

// How many tensors are copied as lists: of fewer, a launch each costs no more.
constexpr size_t kMany = 8;

at::Tensor flat_view(const at::Tensor& of, int64_t offset, int64_t length) {
  constexpr int64_t kStep = 1;
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(of.storage()),
                                                             of.key_set(), of.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef(length), c10::IntArrayRef(kStep),
                                                    of.storage_offset() + offset);
  return view;
}

// Tensors that lie one behind the other in the result. Where they do already, as the results of _foreach_norm, it is one
// copy.
bool cat_of_many(const Call& call, torch::jit::Stack& results) {
  const c10::List<at::Tensor> list = call.arg(0).toTensorList();
  if (list.size() < kMany) {
    return false;
  }
  const std::vector<at::Tensor> tensors = list.vec();
  const at::Tensor& first = tensors[0];
  const int64_t dim = call.arg(1).toInt() + (call.arg(1).toInt() < 0 ? first.dim() : 0);
  if (dim < 0 || dim >= first.dim()) {
    return false;  // the operator says what is wrong, here and below
  }
  std::vector<int64_t> sizes = first.sizes().vec();
  const auto outside = sizes.begin() + dim;
  if (std::any_of(sizes.begin(), outside, [](int64_t size) { return size != 1; })) {
    return false;
  }
  sizes[static_cast<size_t>(dim)] = 0;
  bool is_one = true;
  std::vector<at::Tensor> sources;
  sources.reserve(tensors.size());
  int64_t length = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!is_ours(*tensor.unsafeGetTensorImpl()) || tensor.scalar_type() != first.scalar_type() ||
        !has_plain_elements(tensor) || tensor.dim() != first.dim() || !tensor.is_contiguous() ||
        tensor.suggest_memory_format() != at::MemoryFormat::Contiguous) {
      return false;
    }
    for (int64_t other = 0; other < tensor.dim(); ++other) {
      if (other != dim && tensor.size(other) != first.size(other)) {
        return false;
      }
    }
    is_one &=
        tensor.storage().is_alias_of(first.storage()) && tensor.storage_offset() == first.storage_offset() + length;
    sizes[static_cast<size_t>(dim)] += tensor.size(dim);
    sources.push_back(flat_view(tensor, 0, tensor.numel()));
    length += tensor.numel();
  }
  at::Tensor result = at::empty(sizes, first.options());
  if (is_one) {
    flat_view(result, 0, length).copy_(flat_view(first, 0, length));
  } else {
    std::vector<at::Tensor> targets;
    targets.reserve(sources.size());
    int64_t offset = 0;
    for (const at::Tensor& source : sources) {
      targets.push_back(flat_view(result, offset, source.numel()));
      offset += source.numel();
    }
    at::_foreach_copy_(targets, sources);
  }
  results.emplace_back(std::move(result));
  return true;
}

using Parts = bool (*)(const Call& call, torch::jit::Stack& results);

Parts parts_of(const OpPlan& plan) {
  static const std::unordered_map<std::string, Parts> known{
      {"aten::_scaled_dot_product_fused_attention_overrideable", attention_in_parts},
      {"aten::_scaled_dot_product_fused_attention_overrideable_backward", attention_gradients_in_parts},
      {"aten::_index_put_impl_", put_by_masks},
      {"aten::_unique2", unique},
      {"aten::cat", cat_of_many},
      {"aten::equal", equal},
      {"aten::index.Tensor", index_by_masks},
      {"aten::masked_select", masked_select},
      {"aten::nonzero", nonzero},
  };
  const auto found = known.find(plan.name);
  return found == known.end() ? nullptr : found->second;
}

}  // namespace

bool run_parts(const Call& call, torch::jit::Stack* stack) {
  const Parts parts = parts_of(call.plan());
  torch::jit::Stack results;
  if (parts == nullptr || !parts(call, results)) {
    return false;
  }
  torch::jit::drop(*stack, call.plan().args.size());
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
  return true;
}

}  // namespace outboard

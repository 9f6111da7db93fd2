// SPDX-License-Identifier: BSD-3-Clause
#include "ops/planned/composed.h"

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/planned/composed_attention.h"
#include "ops/planned/composed_blocks.h"
#include "ops/planned/composed_factors.h"
#include "ops/tensors/sparse.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

// Return the indices of the nonzero elements of a tensor taken as one row, in order.
at::Tensor places_of(const at::Tensor& flags) {
  const at::TensorOptions of_places = flags.options().dtype(c10::kLong);
  const at::Tensor flat = flags.reshape({-1});
  if (flat.numel() == 0) {
    return at::empty({0}, of_places);
  }
  const at::Tensor is_one = flat.scalar_type() == c10::kBool ? flat : flat.ne(0);
  const at::Tensor order = is_one.cumsum(0, c10::kLong);
  const auto count = order[-1].item<int64_t>();
  // All other elements write to one element behind the last.
  at::Tensor places = at::empty({count + 1}, of_places);
  places.scatter_(0, at::where(is_one, order.sub(1), at::full({}, count, of_places)),
                  at::arange(flat.numel(), of_places));
  return places.narrow(0, 0, count);
}

// Return the coordinates of indices, a tensor for each dimension.
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
  const at::Tensor places = places_of(self);
  const std::vector<at::Tensor> columns = coordinates(places, self.sizes());
  results.emplace_back(columns.empty() ? at::empty({places.numel(), 0}, places.options()) : at::stack(columns, 0).t());
  return true;
}

bool repeat_interleave(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& repeats = call.arg(0).toTensor();
  if (repeats.dim() != 1 || repeats.numel() == 0 ||
      (repeats.scalar_type() != c10::kInt && repeats.scalar_type() != c10::kLong)) {
    return false;  // the CPU's kernel raises
  }
  const at::Tensor ends = repeats.cumsum(0, c10::kLong);
  const at::Tensor known = at::stack({ends[-1], repeats.min().to(c10::kLong)}).cpu();
  TORCH_CHECK(known[1].item<int64_t>() >= 0, "repeats can not be negative");
  const auto total = known[0].item<int64_t>();
  const c10::IValue& wanted = call.arg(1);
  TORCH_CHECK(wanted.isNone() || wanted.toInt() == total, "allocated size does not match required size");
  results.emplace_back(at::searchsorted(ends, at::arange(total, ends.options()), /*out_int32=*/false, /*right=*/true)
                           .to(repeats.scalar_type()));
  return true;
}

bool bincount(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  const c10::IValue& weights = call.arg(1);
  const int64_t least = call.arg(2).toInt();
  if (self.dim() != 1 || self.numel() == 0 || least < 0 || !c10::isIntegralType(self.scalar_type(), false) ||
      (weights.isTensor() && weights.toTensor().sizes() != self.sizes())) {
    return false;  // the CPU's kernel raises, or returns zeros
  }
  const at::Tensor places = self.to(c10::kLong);
  const at::Tensor ends = at::stack({places.min(), places.max()}).cpu();
  TORCH_CHECK(ends[0].item<int64_t>() >= 0, "bincount only supports 1-d non-negative integral inputs.");
  const int64_t count = std::max(least, ends[1].item<int64_t>() + 1);
  at::Tensor added = at::ones({}, places.options()).expand(self.sizes());
  if (weights.isTensor()) {
    const at::Tensor& tensor = weights.toTensor();
    added = tensor.scalar_type() == c10::kFloat ? tensor : tensor.to(c10::kDouble);
  }
  results.emplace_back(at::zeros({count}, added.options()).index_add_(0, places, added));
  return true;
}

bool masked_select(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  const at::Tensor& mask = call.arg(1).toTensor();
  if (mask.scalar_type() != c10::kBool) {
    return false;
  }
  const std::vector<int64_t> sizes = at::infer_size(self.sizes(), mask.sizes());
  const at::Tensor places = places_of(mask.expand(sizes));
  results.emplace_back(self.expand(sizes).reshape({-1}).index_select(0, places));
  return true;
}

// Replace each mask by the coordinates of its set elements; nothing if a mask does not fit.
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

// Return a call's indices if they have masks, with the masks replaced.
std::optional<Indices> replaced_masks(const Call& call, const at::Tensor& self) {
  std::optional<Indices> indices;
  if (has_mask(call) && (indices = without_masks(self, call.arg(1).to<Indices>()))) {
    call.op().issue_known_warning(call);
  }
  return indices;
}

bool index_by_masks(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  const std::optional<Indices> indices = replaced_masks(call, self);
  if (indices) {
    results.emplace_back(at::index(self, *indices));
  }
  return indices.has_value();
}

bool put_by_masks(const Call& call, torch::jit::Stack& results) {
  at::Tensor self = call.arg(0).toTensor();
  const std::optional<Indices> indices = replaced_masks(call, self);
  if (indices) {
    self.index_put_(*indices, call.arg(2).toTensor(), call.arg(3).toBool());
    results.emplace_back(std::move(self));
  }
  return indices.has_value();
}

// Push what unique operators return for sorted or consecutive elements: the first element of each
// kind, the index of each input's kind, and the counts. `is_first` follows the elements' order;
// `order` says which input each element is.
void push_kinds(const at::Tensor& is_first, const std::optional<at::Tensor>& order, at::IntArrayRef shape,
                bool wants_inverse, bool wants_counts, torch::jit::Stack& results,
                const std::function<at::Tensor(const at::Tensor&)>& values_at) {
  const int64_t length = is_first.numel();
  const at::TensorOptions of_places = is_first.options().dtype(c10::kLong);
  const at::Tensor firsts = places_of(is_first);
  results.emplace_back(values_at(firsts));
  at::Tensor inverse = at::empty({0}, of_places);
  if (wants_inverse) {
    const at::Tensor kinds = is_first.cumsum(0, c10::kLong).sub(1);
    inverse = kinds.view(shape);
    if (order.has_value()) {
      inverse = at::empty(shape, of_places);
      inverse.view({-1}).scatter_(0, *order, kinds);
    }
  }
  results.emplace_back(std::move(inverse));
  at::Tensor counts = at::empty({0}, of_places);
  if (wants_counts) {
    counts = at::cat({firsts.slice(0, 1), at::full({1}, length, of_places)}).sub(firsts);
  }
  results.emplace_back(std::move(counts));
}

// Return true for each row of a matrix that differs from the one before it, and for the first.
at::Tensor begins_kind(const at::Tensor& rows) {
  const int64_t length = rows.size(0);
  const at::Tensor differs = rows.narrow(0, 1, length - 1).ne(rows.narrow(0, 0, length - 1));
  return at::cat({at::ones({1}, differs.options()), differs.any(1)});
}

// Sort one dimension. A flag alone, sort(true), would be taken as the dimension.
std::tuple<at::Tensor, at::Tensor> stable_order(const at::Tensor& keys) {
  return keys.sort(/*stable=*/std::optional<bool>(true), /*dim=*/0, /*descending=*/false);
}

bool unique(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  if (self.numel() == 0 || self.is_complex()) {
    return false;
  }
  const auto [values, order] = stable_order(self.reshape({-1}));
  const at::Tensor& sorted = values;
  push_kinds(begins_kind(sorted.unsqueeze(1)), order, self.sizes(), call.arg(2).toBool(), call.arg(3).toBool(), results,
             [&](const at::Tensor& firsts) { return sorted.index_select(0, firsts); });
  return true;
}

bool unique_consecutive(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  if (self.numel() == 0 || self.is_complex()) {
    return false;
  }
  const bool wants_inverse = call.arg(1).toBool(), wants_counts = call.arg(2).toBool();
  if (call.arg(3).isNone()) {
    const at::Tensor flat = self.reshape({-1});
    push_kinds(begins_kind(flat.unsqueeze(1)), std::nullopt, self.sizes(), wants_inverse, wants_counts, results,
               [&](const at::Tensor& firsts) { return flat.index_select(0, firsts); });
    return true;
  }
  const int64_t dim = c10::maybe_wrap_dim(call.arg(3).toInt(), self.dim());
  const at::Tensor rows = self.movedim(dim, 0).reshape({self.size(dim), -1});
  push_kinds(begins_kind(rows), std::nullopt, {self.size(dim)}, wants_inverse, wants_counts, results,
             [&](const at::Tensor& firsts) { return self.index_select(dim, firsts); });
  return true;
}

// Sort rows by their columns, from the last to the first. Each sort keeps
// the order of the earlier ones.
bool unique_along(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  if (self.numel() == 0 || self.is_complex() || self.dim() == 0) {
    return false;
  }
  const int64_t dim = c10::maybe_wrap_dim(call.arg(1).toInt(), self.dim());
  const at::Tensor rows = self.movedim(dim, 0).reshape({self.size(dim), -1});
  at::Tensor order = at::arange(rows.size(0), rows.options().dtype(c10::kLong));
  for (int64_t column = rows.size(1); column-- > 0;) {
    const at::Tensor keys = rows.select(1, column).index_select(0, order);
    order = order.index_select(0, std::get<1>(stable_order(keys)));
  }
  push_kinds(begins_kind(rows.index_select(0, order)), order, {self.size(dim)}, call.arg(3).toBool(),
             call.arg(4).toBool(), results,
             [&](const at::Tensor& firsts) { return self.index_select(dim, order.index_select(0, firsts)); });
  return true;
}

bool equal(const Call& call, torch::jit::Stack& results) {
  const at::Tensor& self = call.arg(0).toTensor();
  const at::Tensor& other = call.arg(1).toTensor();
  if (self.scalar_type() != other.scalar_type() || self.device() != other.device()) {
    return false;
  }
  results.emplace_back(self.sizes().equals(other.sizes()) &&
                       (self.numel() == 0 || at::eq(self, other).all().item<bool>()));
  return true;
}

// From this many tensors on, one plan for all is avoided. For fewer, a launch for each costs no
// more.
constexpr size_t kMaxJoinedTensors = 8;

// Return true if cat skips a tensor: any tensor of one dimension without elements.
bool is_skipped(const at::Tensor& tensor) {
  return tensor.dim() == 1 && tensor.numel() == 0;
}

// Return the tensors of one dtype that can be joined along `dim`, without the skipped ones. Empty
// if cat itself must raise or promote.
std::vector<at::Tensor> joined(const std::vector<at::Tensor>& tensors, int64_t* dim) {
  std::vector<at::Tensor> result;
  const auto is_taken = [](const at::Tensor& tensor) { return !is_skipped(tensor); };
  const auto first = std::find_if(tensors.begin(), tensors.end(), is_taken);
  if (first == tensors.end()) {
    return {};
  }
  *dim += *dim < 0 ? first->dim() : 0;
  if (*dim < 0 || *dim >= first->dim()) {
    return {};
  }
  for (const at::Tensor& tensor : tensors) {
    if (!is_device_tensor(*tensor.unsafeGetTensorImpl()) || tensor.scalar_type() != first->scalar_type() ||
        tensor.device() != first->device() || !has_plain_elements(tensor)) {
      return {};
    }
    if (is_skipped(tensor)) {
      continue;
    }
    if (tensor.dim() != first->dim()) {
      return {};
    }
    for (int64_t other = 0; other < tensor.dim(); ++other) {
      if (other != *dim && tensor.size(other) != first->size(other)) {
        return {};
      }
    }
    result.push_back(tensor);
  }
  return result;
}

// Join tensors one behind the other in new memory of `sizes`, with one launch. If they already lie
// like that, such as the results of _foreach_norm, one copy suffices.
at::Tensor joined_flat(const std::vector<at::Tensor>& tensors, at::IntArrayRef sizes) {
  const at::Tensor& first = tensors[0];
  at::Tensor result = at::empty(sizes, first.options());
  if (result.numel() == 0) {
    return result;
  }
  bool is_one = true;
  int64_t length = 0;
  std::vector<at::Tensor> sources, targets;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) {
      continue;
    }
    is_one &=
        tensor.storage().is_alias_of(first.storage()) && tensor.storage_offset() == first.storage_offset() + length;
    sources.push_back(flat_view(tensor, 0, tensor.numel()));
    targets.push_back(flat_view(result, length, tensor.numel()));
    length += tensor.numel();
  }
  if (is_one) {
    flat_view(result, 0, length).copy_(flat_view(first, 0, length));
  } else {
    at::_foreach_copy_(targets, sources);
  }
  return result;
}

// Join many tensors. A plan for all of them would have a kernel for each length of the list, and
// its text would grow with the list. Contiguous tensors are joined as rows, which are then
// reordered; the rest is joined a few at a time.
bool cat_of_many(const Call& call, torch::jit::Stack& results) {
  const c10::List<at::Tensor> list = call.arg(0).toTensorList();
  if (list.size() < kMaxJoinedTensors) {
    return false;
  }
  int64_t dim = call.arg(1).toInt();
  const std::vector<at::Tensor> all_tensors = list.vec();
  const std::vector<at::Tensor> tensors = joined(all_tensors, &dim);
  if (tensors.empty()) {
    return false;  // the operator itself raises or promotes
  }
  const at::Tensor& first = tensors[0];
  const auto is_contiguous = [](const at::Tensor& tensor) {
    return tensor.is_contiguous() && tensor.suggest_memory_format() == at::MemoryFormat::Contiguous;
  };
  const bool is_flat = std::all_of(tensors.begin(), tensors.end(), is_contiguous);
  const bool is_even = std::all_of(tensors.begin(), tensors.end(),
                                   [&](const at::Tensor& tensor) { return tensor.sizes() == first.sizes(); });
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes[static_cast<size_t>(dim)] = 0;
  for (const at::Tensor& tensor : tensors) {
    sizes[static_cast<size_t>(dim)] += tensor.size(dim);
  }
  const int64_t outside = c10::multiply_integers(sizes.begin(), sizes.begin() + dim);
  if (is_flat && outside == 1) {
    results.emplace_back(joined_flat(tensors, sizes));
  } else if (is_flat && is_even && outside > 0) {
    const auto count = static_cast<int64_t>(tensors.size());
    const at::Tensor rows = joined_flat(tensors, {count, outside, first.numel() / outside});
    results.emplace_back(rows.transpose(0, 1).contiguous().view(sizes));
  } else if (all_tensors.size() > kMaxJoinedTensors) {
    std::vector<at::Tensor> parts;
    for (size_t begin = 0; begin < all_tensors.size(); begin += kMaxJoinedTensors) {
      parts.push_back(at::cat(
          at::TensorList(all_tensors).slice(begin, std::min(kMaxJoinedTensors, all_tensors.size() - begin)), dim));
    }
    results.emplace_back(at::cat(parts, dim));
  } else {
    return false;
  }
  return true;
}

using Compose = bool (*)(const Call& call, torch::jit::Stack& results);

// Add a sparse tensor to a dense one in place, by operators over dense tensors.
bool add_sparse(const Call& call, torch::jit::Stack& results) {
  at::Tensor self = call.arg(0).toTensor();
  const at::Tensor& other = call.arg(1).toTensor();
  if (is_sparse_coo(self) || !is_sparse_coo(other) || self.sizes() != other.sizes() ||
      self.scalar_type() != other.scalar_type() || self.scalar_type() == c10::kBool) {
    return false;
  }
  const at::SparseTensorImpl* sparse = at::sparse::get_sparse_impl(other);
  const c10::Scalar& alpha = call.arg(2).toScalar();
  if (sparse->nnz() > 0) {
    at::Tensor values = alpha.equal(1) ? sparse->values() : sparse->values().mul(alpha);
    if (sparse->sparse_dim() == 0) {
      self.add_(values.sum(0, /*keepdim=*/false, self.scalar_type()));
    } else {
      c10::List<std::optional<at::Tensor>> indices;
      for (at::Tensor& index : sparse->indices().unbind(0)) {
        indices.push_back(std::move(index));
      }
      self.index_put_(indices, values, /*accumulate=*/true);
    }
  }
  results.emplace_back(std::move(self));
  return true;
}

Compose composition_of(const Operator& op) {
  static const std::unordered_map<std::string, Compose> known{
#define OB_COMPOSED(op, compose) {op, compose},
#include <built/book.inc>
#undef OB_COMPOSED
  };
  const auto entry = known.find(op.name);
  return entry == known.end() ? nullptr : entry->second;
}

}  // namespace

bool is_composed(const Operator& op) {
  return composition_of(op) != nullptr;
}

bool run_composed(const Call& call, torch::jit::Stack* stack) {
  const Compose compose = composition_of(call.op());
  torch::jit::Stack results;
  if (compose == nullptr || call.has_sparse() != (compose == add_sparse) || !compose(call, results)) {
    return false;
  }
  torch::jit::drop(*stack, call.op().args.size());
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
  return true;
}

}  // namespace outboard

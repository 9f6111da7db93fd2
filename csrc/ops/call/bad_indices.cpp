// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/bad_indices.h"

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <c10/core/Scalar.h>

#include <algorithm>
#include <string_view>

#include "ops/call/rule_arguments.h"

namespace outboard {

namespace {

// Return true for dtypes that torch takes as an index; masks are separated before.
bool is_index(c10::ScalarType dtype) {
  return dtype == c10::kLong || dtype == c10::kInt;
}

using Sizes = c10::SmallVector<int64_t, 6>;

// The sizes of self[indices] for indices that are numbers; nothing if a mask
// decides them, or if they do not fit.
struct Indexed {
  Sizes sizes;
  bool has_mask = false;
  bool is_bad = false;
};

Indexed indexed_by(const at::Tensor& self, const c10::IValue& indices) {
  Indexed result;
  at::DimVector broadcast;
  int64_t dim = 0;
  int64_t runs = 0;
  int64_t first = -1;
  bool was_index = false;
  Sizes rest;
  for (const c10::IValue& element : indices.toListRef()) {
    const bool is_given = element.isTensor() && element.toTensor().defined();
    const c10::ScalarType dtype = is_given ? element.toTensor().scalar_type() : c10::kLong;
    if (dtype == c10::kBool || dtype == c10::kByte) {
      const c10::IntArrayRef mask = element.toTensor().sizes();
      const auto rank = static_cast<int64_t>(mask.size());
      result.has_mask = true;
      result.is_bad = dim + rank > self.dim() ||
                      !mask.equals(self.sizes().slice(static_cast<size_t>(dim), static_cast<size_t>(rank)));
      return result;
    }
    if (dim >= self.dim() || !is_index(dtype)) {
      result.is_bad = true;
      return result;
    }
    if (!is_given) {
      rest.push_back(self.size(dim));
    } else {
      const c10::IntArrayRef sizes = element.toTensor().sizes();
      if (!broadcast.empty() || runs > 0) {
        if (!at::are_expandable(broadcast, sizes)) {
          result.is_bad = true;
          return result;
        }
        broadcast = at::infer_size_dimvector(broadcast, sizes);
      } else {
        broadcast.assign(sizes.begin(), sizes.end());
      }
      result.is_bad |= self.size(dim) == 0 && element.toTensor().numel() > 0;
      runs += was_index ? 0 : 1;
      first = first < 0 ? static_cast<int64_t>(rest.size()) : first;
    }
    was_index = is_given;
    ++dim;
  }
  for (; dim < self.dim(); ++dim) {
    rest.push_back(self.size(dim));
  }
  // Adjacent indices put their shape in their place, else in front.
  const auto at = rest.begin() + (runs == 1 ? first : 0);
  result.sizes.append(rest.begin(), at);
  result.sizes.append(broadcast.begin(), broadcast.end());
  result.sizes.append(at, rest.end());
  return result;
}

}  // namespace

bool is_bad_index_select(const Arguments& args) {
  const at::Tensor& index = args.tensor(1);
  return index.dim() > 1 || !is_index(args.dtype(1)) || (args.tensor(0).dim() == 0 && index.numel() != 1);
}

bool is_bad_index_reduce(const Arguments& args) {
  const at::Tensor& self = args.tensor(0);
  const at::Tensor& index = args.tensor(2);
  const at::Tensor& source = args.tensor(3);
  const int64_t rank = std::max<int64_t>(self.dim(), 1);
  if (args.dtype(3) != args.dtype(0) || !is_index(args.dtype(2)) || index.dim() > 1 || source.dim() != self.dim() ||
      args.integer(1) >= rank || args.integer(1) < -rank) {
    return true;
  }
  const int64_t dim = at::maybe_wrap_dim(args.integer(1), self.dim());
  for (int64_t i = 0; i < self.dim(); ++i) {
    if (source.size(i) != (i == dim ? index.numel() : self.size(i))) {
      return true;
    }
  }
  return false;
}

bool is_bad_reduction_name(const Arguments& args) {
  const std::string_view name = args[0].toStringRef();
  return name != "prod" && name != "mean" && name != "amax" && name != "amin";
}

bool is_bad_put(const Arguments& args) {
  return args.dtype(1) != c10::kLong || args.dtype(2) != args.dtype(0) ||
         args.tensor(1).numel() != args.tensor(2).numel() ||
         (args.tensor(0).numel() == 0 && args.tensor(1).numel() != 0);
}

bool is_bad_index_fill(const Arguments& args) {
  return args.dtype(1) != c10::kLong ||
         (args[2].isScalar() && args[2].toScalar().isComplex() && !c10::isComplexType(args.dtype(0)));
}

bool is_bad_index_copy(const Arguments& args) {
  return args.dtype(1) != c10::kLong || args.dtype(2) != args.dtype(0);
}

// With only a mask, one number is filled in as by masked_fill_, which accepts no bytes.
bool fills_by_bytes(const Arguments& args) {
  const at::Tensor* mask = nullptr;
  for (const c10::IValue& element : args[1].toListRef()) {
    if (element.isTensor() && element.toTensor().defined()) {
      if (mask != nullptr || element.toTensor().scalar_type() != c10::kByte) {
        return false;
      }
      mask = &element.toTensor();
    }
  }
  return mask != nullptr && !args[3].toBool() && args.tensor(2).numel() == 1;
}

bool is_bad_index_put(const Arguments& args) {
  if (args.dtype(2) != args.dtype(0) || fills_by_bytes(args)) {
    return true;
  }
  const Indexed indexed = indexed_by(args.tensor(0), args[1]);
  return indexed.is_bad || (!indexed.has_mask && !at::is_expandable_to(args.tensor(2).sizes(), indexed.sizes));
}

bool is_bad_index(const Arguments& args) {
  return indexed_by(args.tensor(0), args[1]).is_bad;
}

}  // namespace outboard

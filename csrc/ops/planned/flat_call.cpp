// SPDX-License-Identifier: BSD-3-Clause
#include "ops/planned/flat_call.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "ops/call/arguments.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

// Elementwise operators that torch does not tag as such, in alphabetical order.
constexpr std::array<std::string_view, 14> kUntagged{
    "aten::copy_",
    "aten::gelu_",
    "aten::hardsigmoid_backward",
    "aten::hardswish",
    "aten::hardswish_",
    "aten::hardswish_backward",
    "aten::hardtanh_backward",
    "aten::leaky_relu_backward",
    "aten::log_sigmoid_backward",
    "aten::masked_fill.Scalar",
    "aten::masked_fill_.Scalar",
    "aten::mish_backward",
    "aten::softplus_backward",
    "aten::threshold_",
};
static_assert(std::is_sorted(kUntagged.begin(), kUntagged.end()));

bool may_flatten(const Operator& op) {
  return op.is_torch_operator && (op.kind == OpKind::Makes || op.kind == OpKind::Writes) && !op.is_random &&
         (op.handle.hasTag(at::Tag::pointwise) || std::binary_search(kUntagged.begin(), kUntagged.end(), op.name));
}

bool has_dense_elements(const at::Tensor& tensor) {
  return is_device_tensor(*tensor.unsafeGetTensorImpl()) && tensor.numel() > 0 && has_plain_elements(tensor) &&
         tensor.is_non_overlapping_and_dense() && !tensor._is_zerotensor();
}

bool has_layout(c10::IntArrayRef sizes, c10::IntArrayRef strides, const at::Tensor& as) {
  return sizes.equals(as.sizes()) && same_strides(sizes, strides, as.strides());
}

// Return true if all tensors with dimensions have one dense layout, of several dimensions, and the
// results have it too. Tensors without dimensions may be beside them.
bool is_flattenable(const Call& call) {
  const Operator& op = call.op();
  if (!may_flatten(op) || call.has_sparse()) {
    return false;
  }
  const at::Tensor* first = nullptr;
  bool is_even = true;
  for (size_t i = 0; i < op.args.size() && is_even; ++i) {
    is_even = op.args[i].kind != ArgKind::TensorList && op.args[i].kind != ArgKind::OptionalTensorList;
    call.for_each_tensor(i, [&](size_t, const at::Tensor& tensor) {
      if (tensor.dim() > 0 && is_even) {
        first = first == nullptr ? &tensor : first;
        is_even = has_dense_elements(tensor) && has_layout(tensor.sizes(), tensor.strides(), *first);
      }
    });
  }
  if (!is_even || first == nullptr || first->dim() < 2) {
    return false;
  }
  if (op.kind == OpKind::Writes) {
    return true;
  }
  const std::shared_ptr<const CallShape> shape = shape_of(call);
  return shape->is_known() && std::all_of(shape->outputs.begin(), shape->outputs.end(), [&](const OutputShape& output) {
           return output.is_defined && has_layout(output.sizes, output.strides, *first);
         });
}

}  // namespace

FlatCall::FlatCall(const Call& original) : original_(original) {
  if (!is_flattenable(original)) {
    return;
  }
  for (size_t i = 0; i < original.op().args.size(); ++i) {
    const c10::IValue& value = original.arg(i);
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().dim() > 0) {
      stack_.emplace_back(flat_view(value.toTensor(), 0, value.toTensor().numel()));
    } else {
      stack_.push_back(value);
    }
  }
  flat_.emplace(original.op(), stack_);
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/overlap.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>

#include "ops/call/_generated/overlap_table.h"
#include "ops/call/call.h"

namespace outboard {

namespace {

bool is_strided(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided;
}

// Compare two pointers first: almost no call's arguments share memory.
bool may_share(const at::Tensor& a, const at::Tensor& b) {
  const c10::Storage& first = a.unsafeGetTensorImpl()->unsafe_storage();
  const c10::Storage& second = b.unsafeGetTensorImpl()->unsafe_storage();
  return first && second && first.is_alias_of(second);
}

// Return true if the call will resize the tensor: torch resizes outputs before it checks overlap.
bool will_be_resized(const Call& call, uint8_t index) {
  const std::shared_ptr<const CallShape> shape = shape_of(call);
  return std::any_of(shape->resized.begin(), shape->resized.end(), [&](const auto& resized) {
    return resized.first == index && call.arg(index).toTensor().sizes() != c10::IntArrayRef(resized.second.sizes);
  });
}

void refuse_overlap(const OverlapRule& rule, const Call& call) {
  const c10::IValue& value = call.arg(rule.written);
  if (C10_UNLIKELY(!value.isTensor() || !value.toTensor().defined() || !is_strided(value.toTensor()))) {
    return;
  }
  const at::Tensor& written = value.toTensor();
  if (C10_UNLIKELY(rule.refuses_internal && !written.is_non_overlapping_and_dense())) {
    at::assert_no_internal_overlap(written);
  }
  for (const uint8_t index : rule.partly) {
    call.for_each_tensor(index, [&](size_t, const at::Tensor& other) {
      if (C10_UNLIKELY(is_strided(other) && may_share(written, other))) {
        at::assert_no_partial_overlap(written, other);
      }
    });
  }
  for (const uint8_t index : rule.disjoint) {
    call.for_each_tensor(index, [&](size_t, const at::Tensor& other) {
      if (C10_UNLIKELY(is_strided(other) && may_share(written, other))) {
        at::assert_no_overlap(written, other);
      }
    });
  }
}

}  // namespace

std::vector<OverlapRule> overlap_rules(const Operator& op) {
  const auto by_name = [](const OverlapRow& row, const std::string& name) { return row.op < name; };
  std::vector<OverlapRule> rules;
  for (const auto* row = std::lower_bound(std::begin(kOverlapTable), std::end(kOverlapTable), op.name, by_name);
       row != std::end(kOverlapTable) && row->op == op.name; ++row) {
    if (row->pattern.size() != op.args.size()) {
      continue;  // the schema of another torch version
    }
    OverlapRule rule{};
    for (size_t i = 0; i < row->pattern.size(); ++i) {
      const auto index = static_cast<uint8_t>(i);
      switch (row->pattern[i]) {
        case 'W':
        case 'w':
          rule.written = index;
          rule.refuses_internal = row->pattern[i] == 'W';
          break;
        case 'p':
          rule.partly.push_back(index);
          break;
        case 'f':
          rule.disjoint.push_back(index);
          break;
        default:
          break;
      }
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

void check_overlap(const OverlapRule& rule, const Call& call) {
  try {
    refuse_overlap(rule, call);
  } catch (const c10::Error&) {
    if (!will_be_resized(call, rule.written)) {
      throw;
    }
  }
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Dropout on the device's generator. The CPU's kernel takes no generator and
// would draw from the CPU's own.
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>

#include <tuple>

#include "ops/own/factories.h"

namespace outboard {

namespace {

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  const auto mask_options = input.options().dtype(c10::kBool);
  if (input.numel() == 0) {
    return {input, at::empty_like(input, mask_options)};
  }
  if (!train.value_or(true)) {
    return {input.clone(), at::ones_like(input, mask_options, c10::MemoryFormat::Contiguous)};
  }
  const double kept = 1.0 - p;
  at::Tensor mask = at::empty_like(input, mask_options, c10::MemoryFormat::Contiguous);
  mask.bernoulli_(kept);
  at::Tensor output = input.mul(mask).mul_(kept == 0.0 ? 0.0 : 1.0 / kept);
  return {std::move(output), std::move(mask)};
}

}  // namespace

void register_dropout(torch::Library& aten) {
  aten.impl("native_dropout", native_dropout);
}

}  // namespace outboard

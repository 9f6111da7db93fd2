// SPDX-License-Identifier: BSD-3-Clause
// Dropout on the device's generator. The CPU's kernel takes no generator and
// would draw from the CPU's own. Devices with generated kernels run one kernel.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/DeviceGuard.h>

#include <tuple>

#include "ops/own/factories.h"
#include "ops/planned/generated_provider.h"
#include "ops/providers.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

using Dropped = std::tuple<at::Tensor, at::Tensor>;

// As aten::native_dropout, with a generator.
constexpr auto kDropout = "dropout(Tensor input, float p, *, Generator? generator=None) -> (Tensor, Tensor)";

Dropped dropout_of_parts(const at::Tensor& input, double p, std::optional<at::Generator> generator) {
  const double kept = 1.0 - p;
  at::Tensor mask = at::empty_like(input, input.options().dtype(c10::kBool), c10::MemoryFormat::Contiguous);
  mask.bernoulli_(kept, generator);
  at::Tensor output = input.mul(mask).mul_(kept == 0.0 ? 0.0 : 1.0 / kept);
  return {std::move(output), std::move(mask)};
}

Dropped dropout_shapes(const at::Tensor& input, double, std::optional<at::Generator>) {
  return {at::empty_like(input),
          at::empty_like(input, input.options().dtype(c10::kBool), c10::MemoryFormat::Contiguous)};
}

bool is_generated_dropout(const at::Tensor& input) {
  return allows_generated() && has_plain_elements(input) && may_generate(input.device().index());
}

Dropped native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  const auto mask_options = input.options().dtype(c10::kBool);
  if (input.numel() == 0) {
    return {input, at::empty_like(input, mask_options)};
  }
  if (!train.value_or(true)) {
    return {input.clone(), at::ones_like(input, mask_options, c10::MemoryFormat::Contiguous)};
  }
  // Not a temporary, of which the compiler warns.
  static const std::optional<at::Generator> none;
  // bernoulli_ refuses an invalid probability.
  if (!is_generated_dropout(input) || !(p >= 0 && p <= 1) || !c10::isFloatingType(input.scalar_type())) {
    return dropout_of_parts(input, p, none);
  }
  static const auto fused = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("outboard::dropout", "")
                                .typed<Dropped(const at::Tensor&, double, std::optional<at::Generator>)>();
  return fused.call(input, p, none);
}

}  // namespace

void register_dropout(torch::Library& aten) {
  // Permanent, like all registrations.
  auto& own = *new torch::Library(torch::Library::FRAGMENT, "outboard", std::nullopt, __FILE__, __LINE__);
  own.def(kDropout);
  own.impl("dropout", torch::dispatch(c10::DispatchKey::CPU, dropout_of_parts));
  own.impl("dropout", torch::dispatch(c10::DispatchKey::Meta, dropout_shapes));
  aten.impl("native_dropout", native_dropout);
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/known_warnings.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/DistributionTemplates.h>
#include <c10/core/WrapDimMinimal.h>

#include <optional>
#include <string_view>

#include "ops/call/call.h"
#include "ops/operator/operator.h"

namespace outboard {

namespace {

// Return how many elements are reduced to one: (self, dim, correction, …).
int64_t reduced(const at::Tensor& self, const c10::IValue& dims) {
  if (!dims.isIntList() || dims.toIntList().empty()) {
    return self.numel();
  }
  int64_t result = 1;
  for (const int64_t dim : dims.toIntList()) {
    result *= self.dim() == 0 ? 1 : self.size(c10::maybe_wrap_dim(dim, self.dim()));
  }
  return result;
}

void warn_degrees_of_freedom(const Call& call) {
  const double correction = call.arg(2).isNone() ? 1 : call.arg(2).toScalar().toDouble();
  if (static_cast<double>(reduced(call.arg(0).toTensor(), call.arg(1))) - correction > 0) {
    return;
  }
  const std::string_view name = call.op().name;
  TORCH_WARN(name.substr(6, name.find('.') - 6),
             "(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor (input numel"
             " divided by output numel).");
}

// Draws nothing: torch's function checks the bounds before it calls the kernel.
template <typename>
struct NoDraws {
  void operator()(at::TensorIteratorBase&, uint64_t, int64_t, const std::optional<at::Generator>&) {}
  void operator()(at::TensorIteratorBase&, const std::optional<at::Generator>&) {}
};

void check_random_bounds(at::Tensor self, int64_t from, std::optional<int64_t> to) {
  constexpr int64_t kExact = 256;  // every floating-point dtype holds integers up to it
  const bool are_exact = from >= -kExact && to.has_value() && *to <= kExact;
  if (at::isFloatingType(self.scalar_type()) && !are_exact) {
    at::native::templates::random_from_to_impl<NoDraws, at::CPUGeneratorImpl>(self, from, to, std::nullopt);
  }
}

void warn_two_bounds(const Call& call) {
  check_random_bounds(call.arg(0).toTensor(), call.arg(1).toInt(), call.arg(2).toOptional<int64_t>());
}

void warn_bound(const Call& call) {
  check_random_bounds(call.arg(0).toTensor(), 0, call.arg(1).toInt());
}

void warn_byte_indices(const Call& call) {
  call.for_each_tensor(1, [](size_t, const at::Tensor& index) {
    if (index.scalar_type() == c10::kByte) {
      TORCH_WARN("indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.");
    }
  });
}

}  // namespace

ArgumentWarnings argument_warnings_of(KnownWarning known_warning) {
  switch (known_warning) {
    case KnownWarning::DegreesOfFreedom:
      return warn_degrees_of_freedom;
    case KnownWarning::Bound:
      return warn_bound;
    case KnownWarning::TwoBounds:
      return warn_two_bounds;
    case KnownWarning::ByteIndices:
      return warn_byte_indices;
    case KnownWarning::None:
      break;
  }
  return nullptr;
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// fill_ and zero_: the driver's fill if the elements are gapless, else the provider chain.
#include <ATen/Dispatch_v2.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/Scalar.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/device.h"
#include "core/queue.h"
#include "ops/boxed.h"
#include "ops/call/observe.h"
#include "ops/own/factories.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

// Return true if every dtype holds the number, wrapped or not.
bool fits_every_dtype(const c10::Scalar& value) {
  constexpr double kLargest = 127;
  return !value.isComplex() && std::abs(value.toDouble()) <= kLargest;
}

// Return the element as the CPU fills it; raise if it refuses the number. The CPU checks less for
// one element than for none or for two.
at::Tensor filled_on_cpu(const at::Tensor& self, const c10::Scalar& value) {
  at::Tensor elements = at::detail::empty_cpu({std::min<int64_t>(self.numel(), 2)}, self.scalar_type());
  return elements.fill_(value);
}

// Queue the fill at the driver. Return false if it cannot do it.
bool fill_by_driver(const at::Tensor& self, const c10::Scalar& value, const at::Tensor& element) {
  if (!driver().fill_async || !is_dense(*self.unsafeGetTensorImpl()) || self.is_conj() || self.is_neg()) {
    return false;
  }
  std::byte pattern[16] = {};
  if (element.defined()) {
    std::memcpy(pattern, element.const_data_ptr(), element.itemsize());
  } else {
    AT_DISPATCH_V2(self.scalar_type(), "fill_", AT_WRAP([&] {
                     const auto number = value.to<scalar_t>();
                     static_assert(sizeof(number) <= sizeof(pattern));
                     std::memcpy(pattern, &number, sizeof(number));
                   }),
                   AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES),
                   AT_EXPAND(AT_FLOAT8_TYPES), c10::kComplexHalf, c10::kHalf, c10::kBool, c10::kBFloat16);
  }
  return queue_fill(current_stream(self.device().index()), reinterpret_cast<uint64_t>(self.data_ptr()), pattern,
                    static_cast<uint32_t>(self.element_size()), static_cast<uint64_t>(self.numel()));
}

// Return a view with each element once: torch's kernels fill an expanded tensor from a number.
at::Tensor without_repeats(const at::Tensor& self) {
  at::Tensor view = self;
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (self.stride(dim) == 0 && self.size(dim) > 1) {
      view = view.narrow(dim, 0, 1);
    }
  }
  return view;
}

at::Tensor& fill_scalar(at::Tensor& self, const c10::Scalar& value) {
  if (Observer* active = observer(); C10_UNLIKELY(active != nullptr)) {
    observe_tensors(*active, "aten::fill_", self.device().index(), self, {});
  }
  const at::Tensor element = C10_LIKELY(fits_every_dtype(value)) ? at::Tensor() : filled_on_cpu(self, value);
  if (self.numel() > 0 && !fill_by_driver(self, value, element)) {
    static Operator& op = operator_named("aten::fill_", "Scalar");
    torch::jit::Stack stack{without_repeats(self), value};
    run_chain(op, &stack);
  }
  return self;
}

// Fill from a number of any device, as torch's own kernels do. `self` may be a CPU tensor, whose
// call comes here because of the number.
at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value) {
  // Torch's error text. Its own check is in a meta kernel that not every version has.
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  if (value.device() != self.device()) {
    return self.fill_(value.item());
  }
  static Operator& op = operator_named("aten::fill_", "Tensor");
  torch::jit::Stack stack{self, value};
  run_chain(op, &stack);
  return self;
}

at::Tensor& zero(at::Tensor& self) {
  return fill_scalar(self, 0);
}

}  // namespace

void register_fill(torch::Library& aten) {
  aten.impl("fill_.Scalar", fill_scalar);
  aten.impl("fill_.Tensor", fill_tensor);
  aten.impl("zero_", zero);
}

}  // namespace outboard

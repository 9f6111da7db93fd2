// SPDX-License-Identifier: BSD-3-Clause
// fill_ and zero_: the driver's fill where the elements are gapless, else the provider chain.
#include <ATen/Dispatch_v2.h>
#include <c10/core/Scalar.h>
#include <c10/core/TensorImpl.h>

#include <cstring>

#include "core/device.h"
#include "core/queue.h"
#include "ops/boxed.h"
#include "ops/factories.h"
#include "ops/tensor_utils.h"
#include "ops/trace.h"

namespace outboard {

namespace {

// Queues the fill at the driver; false if it can't.
bool fill_by_driver(const at::Tensor& self, const c10::Scalar& value) {
  if (!driver().fill_async || !is_dense(*self.unsafeGetTensorImpl()) || self.is_conj() || self.is_neg()) {
    return false;
  }
  std::byte pattern[16] = {};
  AT_DISPATCH_V2(self.scalar_type(), "fill_", AT_WRAP([&] {
                   const auto element = value.to<scalar_t>();
                   static_assert(sizeof(element) <= sizeof(pattern));
                   std::memcpy(pattern, &element, sizeof(element));
                 }),
                 AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES),
                 AT_EXPAND(AT_FLOAT8_TYPES), c10::kComplexHalf, c10::kHalf, c10::kBool, c10::kBFloat16);
  return queue_fill(current_stream(self.device().index()), reinterpret_cast<uint64_t>(self.data_ptr()), pattern,
                    static_cast<uint32_t>(self.element_size()), static_cast<uint64_t>(self.numel()));
}

at::Tensor& fill_scalar(at::Tensor& self, const c10::Scalar& value) {
  if (Trace* active = trace(); C10_UNLIKELY(active != nullptr)) {
    trace_tensors(*active, "aten::fill_", self.device().index(), self, {});
  }
  if (self.numel() > 0 && !fill_by_driver(self, value)) {
    static OpPlan& plan = plan_named("aten::fill_", "Scalar");
    torch::jit::Stack stack{self, value};
    run_chain(plan, &stack);
  }
  return self;
}

// As torch's own kernels, a number of any device fills: also a tensor on the CPU, whose call comes here for the number.
at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value) {
  // Torch's words; its own check is in a kernel for shapes that not every torch has.
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  if (value.device() != self.device()) {
    return self.fill_(value.item());
  }
  static OpPlan& plan = plan_named("aten::fill_", "Tensor");
  torch::jit::Stack stack{self, value};
  run_chain(plan, &stack);
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

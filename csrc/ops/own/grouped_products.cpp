// SPDX-License-Identifier: BSD-3-Clause
// Products of groups of rows or columns, which mixtures of experts use. Torch's kernel for devices
// other than CUDA waits for the groups' ends and multiplies group by group. If the host reaches the
// memory, the whole is one queued call.
#include <ATen/native/GroupedMMUtils.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <utility>

#include "core/driver.h"
#include "ops/boxed.h"
#include "ops/operator/operator.h"
#include "ops/own/factories.h"
#include "ops/providers.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

using OptionalTensor = std::optional<at::Tensor>;

constexpr auto kProducts = "grouped_mm(Tensor self, Tensor mat2, Tensor? offs, Tensor(a!) out) -> Tensor(a!)";

at::Tensor& products_on_cpu(const at::Tensor& self, const at::Tensor& mat2, const OptionalTensor& offs,
                            at::Tensor& out) {
  at::native::_grouped_mm_fallback(self, mat2, offs, std::nullopt, std::nullopt, out);
  return out;
}

at::Tensor& products_shape(const at::Tensor&, const at::Tensor&, const OptionalTensor&, at::Tensor& out) {
  return out;
}

bool is_reached(const at::Tensor& tensor) {
  void* base = nullptr;
  return driver().host_address != nullptr && is_device_tensor(*tensor.unsafeGetTensorImpl()) &&
         storage_host_address(tensor.unsafeGetTensorImpl()->unsafe_storage(), &base);
}

class GroupedProducts final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    if (has_native(torchs_)) {
      run_chain(torchs_, stack);
      return;
    }
    auto dtype = torch::jit::pop(*stack).toOptional<c10::ScalarType>();
    auto bias = torch::jit::pop(*stack).toOptional<at::Tensor>();
    auto offs = torch::jit::pop(*stack).toOptional<at::Tensor>();
    const at::Tensor mat2 = torch::jit::pop(*stack).toTensor(), self = torch::jit::pop(*stack).toTensor();
    at::native::_grouped_mm_validate_inputs(self, mat2, offs, bias, dtype);
    const c10::ScalarType of_result = at::native::_resolve_grouped_mm_out_dtype(self, mat2, dtype);
    at::Tensor out = at::native::create_grouped_gemm_output_tensor(self, mat2, offs, of_result);
    if (allows_host() && !has_native(product_) && is_reached(self) && is_reached(mat2)) {
      torch::jit::push(*stack, self, mat2, offs, out);
      run_chain(queued_, stack);
    } else {
      at::native::_grouped_mm_fallback(self, mat2, offs, bias, dtype, out);
      stack->emplace_back(std::move(out));
    }
  }

 private:
  Operator& torchs_ = operator_named("aten::_grouped_mm");
  Operator& queued_ = operator_named("outboard::grouped_mm");
  const Operator& product_ = operator_named("aten::mm");
};

}  // namespace

void register_grouped_products(torch::Library& aten) {
  // Permanent, like all registrations.
  auto& own = *new torch::Library(torch::Library::FRAGMENT, "outboard", std::nullopt, __FILE__, __LINE__);
  own.def(kProducts);
  own.impl("grouped_mm", torch::dispatch(c10::DispatchKey::CPU, products_on_cpu));
  own.impl("grouped_mm", torch::dispatch(c10::DispatchKey::Meta, products_shape));
  aten.impl("_grouped_mm", torch::CppFunction::makeFromBoxedFunctor(std::make_unique<GroupedProducts>()));
}

}  // namespace outboard

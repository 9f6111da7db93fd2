// SPDX-License-Identifier: BSD-3-Clause
// RMS norms. Torch's own devices have a fused kernel for a norm, _fused_rms_norm, and kernels for
// its gradients, so autograd uses torch's formula for the fused operator. Elsewhere torch composes
// the norm from other operators, which autograd differentiates.
//
// A device runs the fused operator if kernels are generated for it, or if its driver has a fused
// kernel. Other devices run the composite form, whose gradients equal the CPU's to the last bit.

#include <ATen/OpMathType.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/_fused_rms_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rms_norm_compositeimplicitautograd_dispatch.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/device.h"
#include "ops/operator/operator.h"
#include "ops/own/factories.h"
#include "ops/own/fused.h"
#include "ops/planned/generated_provider.h"
#include "ops/providers.h"

namespace outboard {

namespace {

using MaybeTensor = std::optional<at::Tensor>;

// Its CPU kernel serves _fused_rms_norm_backward, for which torch has no CPU kernel
// (kernels/book/norms.py).
constexpr auto kRmsNormGradients =
    "rms_norm_backward(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor rstd, Tensor? weight,"
    " bool[2] output_mask) -> (Tensor, Tensor)";

// True if a fused kernel was registered with torch before the device was attached.
bool has_registered_norm = false;

// Return the gradients of the input and of the weight. Half types are computed in float.
std::tuple<at::Tensor, at::Tensor> rms_norm_gradients(const at::Tensor& grad_out, const at::Tensor& input,
                                                      at::IntArrayRef normalized_shape, const at::Tensor& rstd,
                                                      const MaybeTensor& weight, std::array<bool, 2> wanted) {
  const auto wide = at::toOpMathType(input.scalar_type());
  const bool has_weight = weight.has_value() && weight->defined();
  const int64_t first = input.dim() - static_cast<int64_t>(normalized_shape.size());
  std::vector<int64_t> outer, inner;
  for (int64_t dim = 0; dim < input.dim(); ++dim) {
    (dim < first ? outer : inner).push_back(dim);
  }
  const at::Tensor grad = grad_out.to(wide);
  const at::Tensor normal = input.to(wide).mul(rstd);
  at::Tensor of_input, of_weight;
  if (wanted[0]) {
    const at::Tensor scaled = has_weight ? grad.mul(weight->to(wide)) : grad;
    const at::Tensor along = normal.mul(scaled).mean(inner, /*keepdim=*/true);
    of_input = scaled.sub(normal.mul(along)).mul(rstd).to(input.scalar_type());
  }
  if (wanted[1] && has_weight) {
    const at::Tensor products = grad.mul(normal);
    of_weight = (outer.empty() ? products : products.sum(outer)).to(weight->scalar_type());
  }
  return {std::move(of_input), std::move(of_weight)};
}

// Return true if the device has fused kernels. The input may be fake.
bool has_fused_norm(const at::Tensor& input) {
  // Looked up once: this runs in every call.
  static const Operator& fused = operator_named("aten::_fused_rms_norm");
  if (has_registered_norm || (has_native(fused) && allows_native())) {
    return true;
  }
  const c10::DeviceIndex index = input.device().index();
  const c10::DeviceIndex device = index < 0 ? current_device() : index;
  return allows_generated() && device < device_count() && may_generate(device);
}

at::Tensor rms_norm(const at::Tensor& input, c10::SymIntArrayRef normalized_shape, const MaybeTensor& weight,
                    std::optional<double> eps) {
  const bool has_weight = weight.has_value() && weight->defined();
  const bool is_mixed = has_weight && weight->scalar_type() != input.scalar_type();  // of which torch warns
  if (is_mixed || (fits_fused(input) && (!has_weight || fits_fused(*weight)) && has_fused_norm(input))) {
    return at::compositeimplicitautograd::rms_norm_symint(input, normalized_shape, weight, eps);
  }
  at::native::_check_rms_norm_inputs_symint(input, normalized_shape, has_weight ? *weight : at::Tensor());
  const std::vector<int64_t> as_many(normalized_shape.size());  // the composite form reads only their number
  return std::get<0>(at::compositeimplicitautograd::_fused_rms_norm(input, as_many, weight, eps));
}

}  // namespace

void register_rms_norm() {
  has_registered_norm =
      operator_named("aten::_fused_rms_norm").handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
  // Permanent, like all registrations.
  auto& own = *new torch::Library(torch::Library::FRAGMENT, "outboard", std::nullopt, __FILE__, __LINE__);
  own.def(kRmsNormGradients);
  own.impl("rms_norm_backward", torch::dispatch(c10::DispatchKey::CPU, rms_norm_gradients));
  for (const c10::DispatchKey key : {c10::DispatchKey::AutogradPrivateUse1, c10::DispatchKey::PrivateUse1}) {
    auto& aten = *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    aten.impl("rms_norm", rms_norm);
  }
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// scaled_dot_product_attention: the composite ("math") form, whose operators the provider chain runs.
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

#include "ops/factories.h"

namespace outboard {

namespace {

int64_t choose_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                         double, bool, std::optional<double>, bool) {
  return static_cast<int64_t>(sdp::SDPBackend::math);
}

}  // namespace

void register_attention() {
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(choose_attention);
}

}  // namespace outboard

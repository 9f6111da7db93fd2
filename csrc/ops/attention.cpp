// SPDX-License-Identifier: BSD-3-Clause
// scaled_dot_product_attention: which of torch's forms of it a device takes.
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>

#include "core/device.h"
#include "core/error.h"
#include "ops/compiled_kernel.h"
#include "ops/factories.h"
#include "ops/plan.h"
#include "ops/tensor_utils.h"

namespace outboard {

namespace {

bool is_on_host(const at::Tensor& tensor) {
  if (driver().host_address == nullptr) {
    return false;
  }
  if (tensor.unsafeGetTensorImpl()->is_python_dispatch() || !tensor.has_storage()) {
    // A fake tensor, which a compiler traces with, has no memory to ask about, but a device that has some.
    const c10::DeviceIndex device = tensor.device().index();
    return device >= device_count() || reaches_memory(device < 0 ? current_device() : device);
  }
  void* base = nullptr;
  return storage_host_address(tensor.unsafeGetTensorImpl()->unsafe_storage(), &base);
}

// The driver's own kernel for the whole, if it brought one. Else the fused kernel of the CPU, where the CPU would take
// it and would run the parts as well: it makes no matrix of all queries by all keys. Else the parts, in operators.
int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  // Found once: this runs in every call.
  static const OpPlan& whole = plan_named("aten::_scaled_dot_product_fused_attention_overrideable");
  static const OpPlan& fused = plan_named("aten::_scaled_dot_product_flash_attention_for_cpu");
  static const OpPlan& product = plan_named("aten::bmm");
  if (has_native(whole)) {
    return static_cast<int64_t>(sdp::SDPBackend::overrideable);
  }
  if (!has_native(fused) && (has_native(product) || !is_on_host(query))) {
    return static_cast<int64_t>(sdp::SDPBackend::math);
  }
  // It looks at sizes, strides and dtypes only.
  return at::_ops::_fused_sdp_choice::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), query, key, value, mask,
                                                 dropout, is_causal, scale, enable_gqa);
}

}  // namespace

void register_attention() {
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(choose_attention);
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// scaled_dot_product_attention: which of torch's forms a device uses.
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <ATen/ops/empty.h>

#include <array>
#include <vector>

#include "core/device.h"
#include "core/error.h"
#include "ops/native/native_c.h"
#include "ops/operator/operator.h"
#include "ops/own/factories.h"
#include "ops/own/fused.h"
#include "ops/planned/generated_provider.h"
#include "ops/providers.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

// The largest head for which the kernels keep results in registers
// (torch_outboard/kernels/templates/attention.py).
constexpr int64_t kMaxHead = 256;

// True if a fused kernel was registered with torch before the device was attached.
bool has_registered_fused = false;

bool is_on_host(const at::Tensor& tensor) {
  if (driver().host_address == nullptr) {
    return false;
  }
  if (tensor.unsafeGetTensorImpl()->is_python_dispatch() || !tensor.has_storage()) {
    // A fake tensor, which a compiler traces with, has no memory to query, but its device has.
    const c10::DeviceIndex device = tensor.device().index();
    return device >= device_count() || reaches_memory(device < 0 ? current_device() : device);
  }
  void* base = nullptr;
  return storage_host_address(tensor.unsafeGetTensorImpl()->unsafe_storage(), &base);
}

bool has_size(const at::Tensor& tensor, int64_t dim, const c10::SymInt& size) {
  return tensor.sym_size(dim).sym_eq(size).guard_bool(__FILE__, __LINE__);
}

// `gives_gradient`: a mask that needs a gradient fits if it has all queries and keys.
bool is_fitting_mask(const at::Tensor& mask, const at::Tensor& query, const c10::SymInt& keys, bool gives_gradient) {
  if (!fits_fused(mask) || mask.dim() < 2 || mask.dim() > 4 ||
      (mask.scalar_type() != c10::kBool && mask.scalar_type() != c10::kFloat &&
       mask.scalar_type() != query.scalar_type())) {
    return false;
  }
  if (mask.requires_grad() && at::GradMode::is_enabled() &&
      !(gives_gradient && has_size(mask, -1, keys) && has_size(mask, -2, query.sym_size(2)))) {
    return false;
  }
  const std::array<c10::SymInt, 4> wanted{query.sym_size(0), query.sym_size(1), query.sym_size(2), keys};
  for (int64_t dim = 1; dim <= mask.dim(); ++dim) {
    if (!has_size(mask, -dim, 1) && !has_size(mask, -dim, wanted[static_cast<size_t>(4 - dim)])) {
      return false;
    }
  }
  return true;
}

// Return true if the tensors suit a fused kernel: batches of heads, of a size that kernels support.
// The tensors may be fake, with symbolic sizes.
bool fits(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
          const std::optional<at::Tensor>& mask, bool enable_gqa, bool gives_gradient = false) {
  const c10::ScalarType dtype = query.scalar_type();
  if (dtype != c10::kFloat && dtype != c10::kHalf && dtype != c10::kBFloat16) {
    return false;
  }
  for (const at::Tensor* tensor : {&query, &key, &value}) {
    if (!fits_fused(*tensor) || tensor->dim() != 4 || tensor->scalar_type() != dtype ||
        !has_size(*tensor, 0, query.sym_size(0)) || tensor->sym_numel().sym_eq(0).guard_bool(__FILE__, __LINE__) ||
        tensor->sym_size(3).sym_gt(kMaxHead).guard_bool(__FILE__, __LINE__)) {
      return false;
    }
  }
  const c10::SymInt keys = key.sym_size(2);
  const bool are_heads_right = enable_gqa
                                   ? (query.sym_size(1) % key.sym_size(1)).sym_eq(0).guard_bool(__FILE__, __LINE__)
                                   : has_size(query, 1, key.sym_size(1));
  return are_heads_right && has_size(value, 1, key.sym_size(1)) && has_size(value, 2, keys) &&
         has_size(key, 3, query.sym_size(3)) &&
         (!mask.has_value() || is_fitting_mask(*mask, query, keys, gives_gradient));
}

// Return true if the kernels generated for a device take a call that fits. If the driver has its
// own kernel, generated kernels take no call with dropout: gradients must drop the same weights,
// and the two draw differently.
bool is_generated(const at::Tensor& query, double dropout, bool may_be_native) {
  const c10::DeviceIndex index = query.device().index();
  const c10::DeviceIndex device = index < 0 ? current_device() : index;
  return allows_generated() && device < device_count() && generates_for(device) && has_generated_attention() &&
         (dropout == 0 || (dropout > 0 && dropout < 1 && !may_be_native));
}

// Ask the driver about a call that fits. torch converts masks of
// flags before it calls the operator.
NativeAnswer query_driver(Operator& fused, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                          std::optional<double> scale) {
  torch::jit::Stack operands{query, key, value, c10::IValue(), dropout, is_causal, false, scale};
  const Call call(fused, operands);
  std::vector<c10::IValue> described(operands.begin(), operands.end());
  if (mask.has_value()) {
    described[3] = mask->scalar_type() == c10::kBool
                       ? at::empty(mask->sizes(), at::TensorOptions(query.scalar_type()).device(c10::kMeta))
                       : *mask;
  }
  return query_native(call, described);
}

// Return true if the driver's own fused kernel takes a call. Assume so if it cannot be asked.
bool is_native(Operator& fused, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double dropout, bool is_causal, std::optional<double> scale,
               bool enable_gqa) {
  if (!has_native(fused) || !allows_native()) {
    return false;
  }
  if (!can_query_native(fused)) {
    return true;
  }
  if (!fits(query, key, value, mask, enable_gqa)) {
    return false;
  }
  // A compiler's fake tensors may have symbols for sizes. Generated kernels take the calls that the
  // driver then declines.
  return query.unsafeGetTensorImpl()->is_python_dispatch()
             ? is_generated(query, dropout, /*may_be_native=*/true)
             : query_driver(fused, query, key, value, mask, dropout, is_causal, scale) == NativeAnswer::Accepts;
}

// Choose in this order. First, the driver's own fused kernel, or a fused kernel that a vendor
// registered with torch. Second, generated kernels, even if the driver has its own kernels for
// products: on an H100, products by its vendor's library took four times as long as generated
// attention. Products also make a matrix of all queries by all keys. Third, the CPU's fused kernel,
// if the CPU would take it and would also run the composite form. Last, the composite form, in
// operators.
int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                         std::optional<double> scale, bool enable_gqa) {
  // Looked up once: this runs in every call.
  static Operator& fused = operator_named("aten::_scaled_dot_product_fused_attention_overrideable");
  static const Operator& flash = operator_named("aten::_scaled_dot_product_flash_attention_for_cpu");
  static const Operator& product = operator_named("aten::bmm");
  const bool is_enabled = at::globalContext().userEnabledOverrideableSDP();
  if (has_registered_fused ||
      (is_enabled && is_native(fused, query, key, value, mask, dropout, is_causal, scale, enable_gqa))) {
    return static_cast<int64_t>(sdp::SDPBackend::overrideable);
  }
  if (!has_native(flash)) {
    // A driver's own fused kernel would come first again when the operator is called.
    const bool may_be_native = has_native(fused) && allows_native();
    if (is_enabled && is_generated(query, dropout, may_be_native)) {
      const bool gives_gradient = !may_be_native && has_generated_mask_gradients(query.scalar_type());
      if (fits(query, key, value, mask, enable_gqa, gives_gradient)) {
        return static_cast<int64_t>(sdp::SDPBackend::overrideable);
      }
    }
    if (has_native(product) || !is_on_host(query)) {
      return static_cast<int64_t>(sdp::SDPBackend::math);
    }
  }
  // It reads only sizes, strides and dtypes.
  return at::_ops::_fused_sdp_choice::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), query, key, value, mask,
                                                 dropout, is_causal, scale, enable_gqa);
}

}  // namespace

void register_attention() {
  has_registered_fused = operator_named("aten::_scaled_dot_product_fused_attention_overrideable")
                             .handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(choose_attention);
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Operators that a device may run as a single kernel, and that torch otherwise composes from parts.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/driver.h"

namespace outboard {

// Return true for a strided tensor of the device, possibly fake, that is not a wrapper around other
// tensors, like torch.func's: these have rules only for the parts. Return false for forward
// derivatives, for which fused operators have no formula, or a formula that returns another type.
inline bool fits_fused(const at::Tensor& tensor) {
  static const c10::DispatchKeySet others(
      {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::NestedTensor});
  return tensor.device().type() == kDeviceType && tensor.layout() == c10::kStrided &&
         !tensor.key_set().has_any(others) && !tensor._fw_grad(/*level=*/0).defined();
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Operators of which a device has kernels of the whole, and which torch else composes of parts.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/driver.h"

namespace outboard {

// Return true for a strided tensor of the device, also a fake one, that is not a view of several,
// as torch.func's are: those have rules for the parts alone. Return false for forward derivatives,
// for which wholes have no formula, or one that returns another type.
inline bool fits_whole(const at::Tensor& tensor) {
  static const c10::DispatchKeySet others(
      {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::NestedTensor});
  return tensor.device().type() == kDeviceType && tensor.layout() == c10::kStrided &&
         !tensor.key_set().has_any(others) && !tensor._fw_grad(/*level=*/0).defined();
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Registration of a driver's own kernels, in Python or C.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "core/export.h"
#include "ops/operator/api.h"

namespace outboard {

// Make `kernel` the native provider of an operator ("aten::relu", "aten::add.Tensor") and of its
// other forms (ops/native/native.h). Replaces an earlier kernel. It runs with the device guard set.
// Raise ValueError for an unknown operator.
OUTBOARD_API void register_native_kernel(const std::string& op, NativeKernel kernel);

// Let the driver register its kernels, if it has any.
void register_driver_kernels();

// Provide the bytes that `recall` of ob_registrar returns for a key, unless the folder of programs
// has some. Replaces earlier bytes of the key.
OUTBOARD_API void provide_kept(c10::DeviceIndex device, const std::string& key, std::string bytes);

}  // namespace outboard

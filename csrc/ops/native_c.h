// SPDX-License-Identifier: BSD-3-Clause
// Operator kernels that a driver brings in C.
#pragma once

namespace outboard {
// Lets the driver register its kernels, if it has any.
void register_driver_kernels();
}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Dtypes by torch's names.
#pragma once

#include <c10/core/ScalarType.h>

#include <string_view>

namespace outboard::kernels {

// Return the dtype for "float32"; Undefined for an unknown name.
c10::ScalarType dtype_named(std::string_view name);

}  // namespace outboard::kernels

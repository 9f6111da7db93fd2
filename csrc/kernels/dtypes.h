// SPDX-License-Identifier: BSD-3-Clause
// Element types by torch's names.
#pragma once

#include <c10/core/ScalarType.h>

#include <string_view>

namespace outboard::kernels {

// "float32"; Undefined for a name that there isn't.
c10::ScalarType dtype_named(std::string_view name);

}  // namespace outboard::kernels

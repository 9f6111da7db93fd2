// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

namespace outboard::kernels {

// Return the 32 bytes of SHA-256 (FIPS 180-4).
std::string sha256(std::string_view data);

// Return bytes as hexadecimal digits.
std::string hex(std::string_view bytes);

}  // namespace outboard::kernels

// SPDX-License-Identifier: BSD-3-Clause
// Errors: a status code, and the calling thread's text for it.
#pragma once

#include <cstddef>
#include <string>

#include "torch_outboard/driver.h"

namespace sim {

// Store the formatted text as this thread's last error and return `code`.
[[gnu::format(printf, 2, 3)]] ob_status fail(ob_status code, const char* format, ...);

// Copy this thread's last error to `buffer`, cut to `size` bytes with the final zero. `repeats`, if
// not empty, follows in parentheses.
void copy_last_error(const std::string& repeats, char* buffer, size_t size);

// Return "OUT_OF_MEMORY" for OB_OUT_OF_MEMORY; the number as text for a code without a name.
std::string status_name(ob_status code);

// Return the code that `text` names or numbers. Return false if there is none, or if it is OB_OK.
bool parse_status(const std::string& text, ob_status* out_code);

// "1.50 GiB (1610612736 bytes)"
std::string size_text(unsigned long long bytes);

}  // namespace sim

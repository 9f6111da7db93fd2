// SPDX-License-Identifier: BSD-3-Clause
// Slang's compiler, which is opened when a text is to be compiled.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "torch_outboard/driver.h"

namespace vulkan {

// Compile a text to SPIR-V, with words of Slang's command line as options. `library` names the
// compiler's library, "" the usual ones. OB_UNAVAILABLE if there is no compiler, OB_PROGRAM_REFUSED
// if it refuses the text.
ob_status compile_slang(const std::string& library, const std::string& source, const std::string& options,
                        std::vector<uint32_t>* out_words);

// Return the compiler's version, or "" if none was opened.
std::string slang_version();

}  // namespace vulkan

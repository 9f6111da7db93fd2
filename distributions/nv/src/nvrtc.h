// SPDX-License-Identifier: BSD-3-Clause
// Compile CUDA C++ to machine code, if NVIDIA's run-time compiler is installed.
#pragma once

#include <string>

#include "torch_outboard/driver.h"

namespace nv {

// Compile for one architecture: machine code for "sm_90", PTX for "compute_90". `libraries` are
// NVRTC's files, with ":" between them, or "" for the usual names; the first that compiles for the
// architecture is used.
// Return OB_UNAVAILABLE without NVRTC, OB_INVALID_ARGUMENT if none compiles for the architecture,
// and OB_PROGRAM_REFUSED, with the log and the source lines that it names, if the source does not
// compile.
ob_status compile_cuda(const std::string& libraries, const std::string& source, const std::string& options,
                       const std::string& architecture, std::string* out_image);

}  // namespace nv

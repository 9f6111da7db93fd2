// SPDX-License-Identifier: BSD-3-Clause
// Compile CUDA C++ to machine code, if NVIDIA's run-time compiler is installed.
#pragma once

#include <string>

#include "torch_outboard/driver.h"

namespace nv {

// Compile for one architecture ("sm_90"). `library` is NVRTC's file, or "" for the usual names.
// Return OB_UNAVAILABLE without NVRTC, and OB_PROGRAM_REFUSED, with the log and the source lines
// that it names, if the source does not compile.
ob_status compile_cuda(const std::string& library, const std::string& source, const std::string& options,
                       const std::string& architecture, std::string* out_image);

}  // namespace nv

// SPDX-License-Identifier: BSD-3-Clause
// Programs in a driver's language, built once a device and text. They are never destroyed: queued launches, graphs and
// whoever keeps a kernel's handle name them.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

#include "core/export.h"

namespace outboard::kernels {

struct ProgramText {
  std::string language;  // what the driver says it builds: "opencl_c", "ptx", …
  std::string code;
  std::string options;
};

// The driver refuses a program's text, and will each time: OB_PROGRAM_REFUSED, a mistake in what was asked for, or a text
// without the kernel.
class OUTBOARD_API ProgramRefused : public c10::ValueError {
  using c10::ValueError::ValueError;
};

// A kernel of a program, by name: the driver's handle, valid as long as the process. The first call for a device and a
// text waits for the compiler, and others that ask meanwhile wait for it; a build that failed is tried anew by the next.
//
// NotSupportedError if the driver builds no programs, ProgramRefused if it refuses this one. What it says of a failure, the
// build log, is in the error, and so is `name`, by which whoever wrote the kernel knows it.
OUTBOARD_API uint64_t find_kernel(c10::DeviceIndex device, const ProgramText& program, const std::string& entry,
                                  const std::string& name);

}  // namespace outboard::kernels

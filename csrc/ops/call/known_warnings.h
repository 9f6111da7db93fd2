// SPDX-License-Identifier: BSD-3-Clause
// Warnings of the CPU's kernels that the arguments predict. A queued kernel would issue them at the next wait; a
// generated kernel only computes values.
#pragma once

#include <string>

namespace outboard {

class Call;

// A function that issues the warnings of the CPU's kernel for a call.
using ArgumentWarnings = void (*)(const Call& call);

// Return an operator's function; null if none is known. Its warnings are all that the kernel issues.
ArgumentWarnings argument_warnings_of(const std::string& op);

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Warnings of the CPU's kernels that the arguments predict. A queued kernel would issue them at the
// next wait; a generated kernel only computes values.
#pragma once

#include "ops/operator/facts.h"

namespace outboard {

class Call;

// A function that issues the warnings of the CPU's kernel for a call.
using ArgumentWarnings = void (*)(const Call& call);

// Return the function for an operator's warnings, which are all that its kernel
// issues; null if none is known.
ArgumentWarnings argument_warnings_of(Warns warns);

}  // namespace outboard

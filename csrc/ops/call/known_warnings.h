// SPDX-License-Identifier: BSD-3-Clause
// Warnings of the CPU's kernels that can be predicted from the arguments. A queued kernel would
// issue them at the next wait; a generated kernel would not issue them at all.
#pragma once

#include "ops/operator/facts.h"

namespace outboard {

class Call;

// A function that issues the warnings of the CPU's kernel for a call.
using ArgumentWarnings = void (*)(const Call& call);

// Return the function that issues all of an operator's warnings, or null if none is known.
ArgumentWarnings argument_warnings_of(KnownWarning known_warning);

}  // namespace outboard

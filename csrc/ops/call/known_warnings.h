// SPDX-License-Identifier: BSD-3-Clause
// Warnings of the CPU's kernels that the arguments predict. A queued kernel would issue them at the next wait; a
// generated kernel only computes values.
#pragma once

#include <string>

namespace outboard {

class Call;

// Issues what the CPU's kernel warns of for a call.
using ArgumentWarnings = void (*)(const Call& call);

// Those of an operator; null if nothing is known of it. They are all that its kernel warns of.
ArgumentWarnings argument_warnings_of(const std::string& op);

}  // namespace outboard

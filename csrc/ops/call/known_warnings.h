// SPDX-License-Identifier: BSD-3-Clause
// What the CPU's kernels warn of that arguments foretell. Queued ones would say it at the next wait, generated ones compute
// the values alone.
#pragma once

#include <string>

namespace outboard {

class Call;

// Issues what the CPU's kernel warns of for a call.
using ArgumentWarnings = void (*)(const Call& call);

// Those of an operator; null if nothing is known of it. They are all that its kernel warns of.
ArgumentWarnings argument_warnings_of(const std::string& op);

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// What the CPU's kernels warn of that arguments foretell: a generated kernel computes the values alone.
#pragma once

#include <string>

namespace outboard {

class Call;

// Empty if they warn of nothing.
std::string known_warning(const Call& call);

}  // namespace outboard

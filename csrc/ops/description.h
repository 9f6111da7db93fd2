// SPDX-License-Identifier: BSD-3-Clause
// Descriptions of how an operator is run and why, for `outboard kernels explain`.
#pragma once

#include <string>
#include <vector>

#include "core/export.h"

namespace outboard {

struct OperatorNote {
  std::string of;  // "operator", "checks", "native", "generated" or "host"
  std::string text;
  std::string place;  // a file, the name of a row of the book ("aten::add"), or ""
};

// Return the notes about an operator, "aten::add.Tensor", in the order in which they decide. Raise
// ValueError, with the existing overloads, if no operator has the name.
OUTBOARD_API std::vector<OperatorNote> describe_operator(const std::string& name);

}  // namespace outboard

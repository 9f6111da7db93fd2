// SPDX-License-Identifier: BSD-3-Clause
// Argument values that an operator refuses at the call, for every provider: the values for which
// CUDA's operators wait, too. Kernels check all other values, and the next wait raises.
#pragma once

#include <optional>
#include <string_view>

namespace outboard {

class Call;
struct Operator;

struct BadValueRule {
  void (*check)(const Call& call);  // raises
  bool is_left_to_kernels;          // in a capture, which cannot wait
  std::string_view row;             // the name of the book's row
};

// Return an operator's rule from the table, if there is one.
std::optional<BadValueRule> bad_value_rule(const Operator& op);

// Wait for the call's values, and raise if they are bad.
void check_bad_values(const BadValueRule& rule, const Call& call);

}  // namespace outboard

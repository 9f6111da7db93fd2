// SPDX-License-Identifier: BSD-3-Clause
// Arguments that an operator's CPU kernel refuses when it runs, but that its meta kernel accepts,
// or checks only for a new shape. Without these checks, a queued call would raise only at a later
// wait.
#pragma once

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ops/call/stand_ins.h"

namespace outboard {

class Arguments;
class Call;
struct Operator;

struct BadArgumentRule {
  static constexpr size_t kMaxArguments = 4;

  bool (*is_bad)(const Arguments&);  // takes the arguments in the rule's order
  std::array<uint8_t, kMaxArguments> index;  // their indices in the schema
  StandIn stand_in;
  bool is_about_dtypes;  // about the CPU kernel's dtypes: a driver's kernel may support others
  std::string_view args;  // the arguments' names, separated by blanks
  std::string_view row;   // the name of the book's row
};

// Return true if a kernel that converts the number to the dtype may refuse the number. The kernel
// itself decides.
bool may_overflow(const c10::Scalar& number, c10::ScalarType dtype);

// Return an operator's rules from the table.
std::vector<BadArgumentRule> bad_argument_rules(const Operator& op);

// Raise the CPU kernel's error if the rule finds the arguments bad.
void check_bad_arguments(const BadArgumentRule& rule, const Call& call);

}  // namespace outboard

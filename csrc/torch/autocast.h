// SPDX-License-Identifier: BSD-3-Clause
// Autocast for the device: torch's lists of operators and policies, which a driver opts into, as a table that may
// change at run time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/export.h"

namespace outboard {

// The names are torch's own (at::autocast::CastPolicy), and three more.
enum class CastPolicy : uint8_t {
  LowerPrecisionFp,  // inputs are cast to the region's dtype
  Fp32,  // inputs are cast to float32
  Fp32SetOptDtype,  // the optional dtype argument becomes float32 unless it is given
  Fp32AppendDtype,  // the overload with a dtype is called, with float32
  Fp32CastBack,  // inputs are cast to float32, and results to the dtype of the first input
  Promote,  // inputs are cast to the widest of their dtypes
  Banned,  // raises
  Fallthrough,  // runs as it is
  Count
};
OUTBOARD_API const char* cast_policy_name(CastPolicy policy);

// Registers torch's lists with its dispatcher, for good; once.
OUTBOARD_API void register_autocast();
OUTBOARD_API bool has_autocast();

// Gives an operator ("aten::softmax.int", "aten::mm") the policy of that name; "default" gives it back its own. What
// runs on other threads meanwhile takes the one or the other. ValueError for an unknown operator or policy, or for two
// that don't fit together; NotSupportedError before register_autocast.
OUTBOARD_API void set_cast_policy(const std::string& op, const std::string& policy);

// Raises what set_cast_policy would for these arguments, and changes nothing; register_autocast need not have run.
OUTBOARD_API void check_cast_policy(const std::string& op, const std::string& policy);

struct CastPolicyRow {
  std::string op;
  CastPolicy policy;  // in force
  CastPolicy default_policy;
};
// The operators that the lists name or that were given a policy, by name.
OUTBOARD_API std::vector<CastPolicyRow> cast_policies();

}  // namespace outboard

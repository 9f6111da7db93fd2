// SPDX-License-Identifier: BSD-3-Clause
// Autocast for the device: torch's lists of operators and policies, which a driver opts into, as a
// table that may change at run time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/export.h"

namespace outboard {

// Torch's own policies and names (at::autocast::CastPolicy), and three more.
enum class CastPolicy : uint8_t {
  LowerPrecisionFp,  // inputs are cast to the region's dtype
  Fp32,  // inputs are cast to float32
  Fp32SetOptDtype,  // the optional dtype argument becomes float32 unless it is given
  Fp32AppendDtype,  // calls the overload with a dtype argument, with float32
  Fp32CastBack,  // inputs are cast to float32, and results to the dtype of the first input
  Promote,  // inputs are cast to the widest of their dtypes
  Banned,  // raises
  Fallthrough,  // runs unchanged
  Count
};
OUTBOARD_API const char* cast_policy_name(CastPolicy policy);

// Register torch's lists with its dispatcher, once and permanently.
OUTBOARD_API void register_autocast();
OUTBOARD_API bool has_autocast();

// Set the policy of an operator ("aten::softmax.int", "aten::mm"); "default" restores the
// operator's own. Concurrent calls on other threads use either policy. Raise ValueError for an
// unknown operator or policy, or if the operator cannot have the policy, and NotSupportedError
// before register_autocast.
OUTBOARD_API void set_cast_policy(const std::string& op, const std::string& policy);

// Raise the errors of set_cast_policy for these arguments, and change nothing.
// register_autocast need not have run.
OUTBOARD_API void check_cast_policy(const std::string& op, const std::string& policy);

struct CastPolicyRow {
  std::string op;
  CastPolicy policy;  // the policy in force
  CastPolicy default_policy;
};
// Return the operators that the lists name or that were given a policy, sorted by name.
OUTBOARD_API std::vector<CastPolicyRow> cast_policies();

}  // namespace outboard

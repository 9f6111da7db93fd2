// SPDX-License-Identifier: BSD-3-Clause
// Checks for arguments that share memory in a way that an operator's kernels refuse. Raises at the
// call, for every provider.
#pragma once

#include <cstdint>
#include <vector>

namespace outboard {

class Call;
struct Operator;

// The memory that one written argument must not share.
struct OverlapRule {
  uint8_t written;
  bool refuses_internal;        // its own elements must not share memory
  std::vector<uint8_t> partly;  // may be the same tensor, but must not overlap otherwise
  std::vector<uint8_t> disjoint;  // arguments that must not overlap it at all
};

// Return an operator's rules from the generated table. Empty for an operator that writes no
// argument or accepts any overlap.
std::vector<OverlapRule> overlap_rules(const Operator& op);

// Raise torch's error if a call breaks a rule.
void check_overlap(const OverlapRule& rule, const Call& call);

}  // namespace outboard

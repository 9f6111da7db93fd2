// SPDX-License-Identifier: BSD-3-Clause
// Arguments that share memory although an operator's kernels refuse it. Raises at the call, for every provider.
#pragma once

#include <cstdint>
#include <vector>

namespace outboard {

class Call;
struct Operator;

// What one written argument may not share.
struct OverlapRule {
  uint8_t written;
  bool refuses_internal;        // its own elements may not share memory
  std::vector<uint8_t> partly;  // arguments that may be it, but not overlap it otherwise
  std::vector<uint8_t> wholly;  // arguments that may not overlap it at all
};

// The rules of an operator, from the generated table; none for one that writes no argument, or minds no overlap.
std::vector<OverlapRule> overlap_rules(const Operator& op);

// Raises torch's error if a call breaks a rule.
void check_overlap(const OverlapRule& rule, const Call& call);

}  // namespace outboard

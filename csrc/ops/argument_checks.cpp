// SPDX-License-Identifier: BSD-3-Clause
#include "ops/argument_checks.h"

namespace outboard {

std::unique_ptr<const ArgumentChecks> argument_checks(const OpPlan& plan) {
  auto checks = std::make_unique<ArgumentChecks>();
  checks->overlaps = overlap_rules(plan);
  if (checks->overlaps.empty()) {
    return nullptr;
  }
  return checks;
}

void run_argument_checks(const ArgumentChecks& checks, const Call& call) {
  for (const OverlapRule& rule : checks.overlaps) {
    check_overlap(rule, call);
  }
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Checks of arguments that run on the calling thread, before any provider, whether or not the
// call's shape is already known. A call that torch refuses therefore raises immediately.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ops/call/bad_arguments.h"
#include "ops/call/bad_values.h"
#include "ops/call/call.h"
#include "ops/call/overlap.h"

namespace outboard {

// The checks of one operator.
struct ArgumentChecks {
  std::vector<OverlapRule> overlaps;
  std::vector<BadArgumentRule> bad_arguments;
  std::optional<uint8_t> promoted_argument;  // the argument that an element-wise operator writes its result to
  std::vector<uint8_t> numbers;  // arguments of type Scalar, which a kernel converts to its tensors' types
  std::optional<BadValueRule> bad_values;
};

// Return the operator's checks, or null if it has none.
std::unique_ptr<const ArgumentChecks> argument_checks(const Operator& op);

void run_argument_checks(const ArgumentChecks& checks, const Call& call);

inline void check_arguments(const Call& call) {
  if (const ArgumentChecks* checks = call.op().checks.get()) {
    run_argument_checks(*checks, call);
  }
}

}  // namespace outboard

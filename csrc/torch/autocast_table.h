// SPDX-License-Identifier: BSD-3-Clause
// Declarations shared by csrc/torch/autocast.cpp and csrc/torch/autocast_lists.cpp.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <atomic>
#include <string>
#include <vector>

#include "torch/autocast.h"

namespace outboard {

// An operator that has a policy. It lives as long as the process.
struct AutocastOp {
  c10::OperatorHandle op;
  std::string name;
  CastPolicy default_policy;
  std::atomic<CastPolicy> policy;

  AutocastOp(const c10::OperatorHandle& handle, std::string full_name, CastPolicy default_one)
      : op(handle), name(std::move(full_name)), default_policy(default_one), policy(default_one) {}
};

// One line of torch's lists.
struct ListedOp {
  const char* name;
  CastPolicy policy;
  // Return the unboxed kernel for a policy: torch's own while `op` has this policy, and
  // run_cast_policy otherwise.
  torch::CppFunction (*make_kernel)(AutocastOp& op);
};
const std::vector<ListedOp>& listed_ops();

// Run an operator with its current policy. `keys` is the call's dispatch key set.
void run_cast_policy(const AutocastOp& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace outboard

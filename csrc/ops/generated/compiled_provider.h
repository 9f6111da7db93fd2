// SPDX-License-Identifier: BSD-3-Clause
// The provider 'compiled': an operator runs as device kernels that were generated from torch's own lowerings.
//
// A call is looked up by its signature: the shape cache's, and what else decides which kernels run, such as numbers
// that are written into them. A known call runs the steps of its plan (kernels/plan.h) with all formulas already
// computed. For an unknown call the recipes of its class are tried in turn. A recipe is a plan with guards, for calls
// of the same dtypes, ranks and numbers, and mostly for all sizes. The first call of a class looks for plans on disk.
// If no guards hold, the builder makes a plan: Python code that the bindings install. It refuses any call that it
// cannot prove correct. A refusal is remembered and listed, and the call goes to the next provider.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/export.h"
#include "kernels/device_kernel.h"
#include "ops/call/call.h"

namespace outboard {

// What the builder answers: a plan and its kernels, or why there is none.
struct BuiltPlan {
  std::string text;
  std::vector<std::unique_ptr<const kernels::DeviceKernel>> kernels;
  std::string refusal;  // "" if there is a plan
  bool refuses_class = false;  // else these arguments alone
  bool is_kept = false;  // it was read from disk
  std::string damage;  // why what was read can't be used: of the rest there is the text alone
};

struct PlanBuilder {
  // The arguments of an operator, a bit each, whose numbers plans take by value; the same at every call. The upper half has
  // a bit for each argument whose integers plans may look at: they have guards for them, as for sizes.
  uint64_t (*numbers)(const Operator& op);
  // What is kept on disk for calls of this one's class: plans, for those calls for which their guards hold, or one refusal
  // of the class; empty if nothing is. `is_aliased`: a tensor that is written shares memory with another argument, so that
  // it may be written only when all has been read. An exception is one for the program, such as KeyboardInterrupt.
  std::vector<BuiltPlan> (*load)(const Call& call, uint64_t numbers, bool is_aliased);
  // A plan for this call, or why there is none; as `load`.
  BuiltPlan (*build)(const Call& call, uint64_t numbers, bool is_aliased);
  // The same of an operator over lists of tensors as one launch (kernels/chunk_plan.h). `arguments` are the call's, with
  // lists cut to their first element.
  uint64_t (*numbers_of_lists)(const Operator& op);
  BuiltPlan (*build_chunks)(const Operator& op, const torch::jit::Stack& arguments, c10::DeviceIndex device);
  // Whether plans have kernels for attention as a whole; the same at every call.
  bool (*has_attention)();
  // Forget a plan that `load` returned for such calls and that can't be used: it is removed from disk, reported, and not
  // returned again.
  void (*drop)(const Call& call, uint64_t numbers, bool is_aliased, const std::string& text, const std::string& why);
  // The same of `build_chunks`. Return false if the plan was not read from disk, so that another one would be the same.
  bool (*drop_chunks)(const Operator& op, const torch::jit::Stack& arguments, c10::DeviceIndex device,
                      const std::string& text, const std::string& why);
  // A refusal with what to do about it.
  std::string (*explained)(const std::string& refusal);
};
// Kept, not copied.
OUTBOARD_API void set_plan_builder(const PlanBuilder* builder);
// Null if nobody builds plans.
const PlanBuilder* plan_builder();
// Counts one that was built.
void count_plan();

// Whether calls of this thread may run as generated kernels of the device; opens it the first time.
bool may_compile(c10::DeviceIndex device);

// Runs the call by its plan and replaces the arguments on the stack by the results. False, with the stack as it was but
// for an `out=` that has its size, if the call must go on down the chain.
bool run_compiled(const Call& call, torch::jit::Stack* stack);

// Why the last call of the operator on this thread was refused, and what to do about it; "" if it wasn't.
std::string last_refusal(const Operator& op);

// Operators that were refused, with the reasons.
OUTBOARD_API std::vector<std::pair<std::string, std::string>> refused_operators();

// Has no call on this thread compiled from now on: the builder's, which would wait for itself.
OUTBOARD_API void forbid_compiling();

// Whether plans have kernels for attention as a whole, in the language of the devices.
bool has_generated_attention();

// Plans that were built or read since the start.
OUTBOARD_API uint64_t built_plans();
// Calls from now on have plans of their own for each number, 0 at first: what is tried out beside what is there.
OUTBOARD_API void set_plan_variant(uint32_t variant);

}  // namespace outboard

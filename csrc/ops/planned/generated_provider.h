// SPDX-License-Identifier: BSD-3-Clause
// The provider 'generated': an operator runs as device kernels that were
// generated from torch's own lowerings.
//
// A call is looked up by its signature: the shape cache's signature, plus everything else that
// determines which kernels run, such as numbers written into them. A known call runs the steps of
// its plan (kernels/plan.h) with all formulas already computed. For an unknown call, the recipes of
// its class are tried in turn. A recipe is a plan with guards, for calls with the same dtypes,
// ranks and numbers, and usually for all sizes. The first call of a class looks for plans on disk.
// If no guards hold, the builder makes a plan: Python code that the bindings install. It refuses
// any call that it cannot prove correct. A refusal is remembered and listed, and the call goes to
// the next provider.
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

// The builder's answer: a plan and its kernels, or the reason for refusing one.
struct BuiltPlan {
  std::string text;
  std::vector<std::unique_ptr<const kernels::DeviceKernel>> kernels;
  std::string refusal;  // "" if there is a plan
  bool refuses_class = false;  // true: the whole class; false: these arguments only
  bool is_from_disk = false;
  std::string unusable_reason;  // why the text on disk cannot be used; only `text` is set then

  // Neither: another process has stored a plan of the class meanwhile.
  bool is_elsewhere() const { return text.empty() && refusal.empty(); }
};

struct PlanBuilder {
  // Return a bit mask of the operator's arguments whose numbers plans take by value; the same at
  // every call. The upper half has a bit for each argument whose integers plans may read: plans
  // have guards for these, as for sizes.
  uint64_t (*numbers)(const Operator& op);
  // Return the stored answers for the call's class: plans, each for calls that pass its guards, or
  // one refusal of the class; empty if nothing is stored. `is_aliased`: a written tensor shares
  // memory with another argument, so it may be written only after everything has been read.
  // Exceptions, such as KeyboardInterrupt, are meant for the program.
  std::vector<BuiltPlan> (*load)(const Call& call, uint64_t numbers, bool is_aliased);
  // Return a plan for this call, or the reason for refusing one; parameters as for `load`.
  BuiltPlan (*build)(const Call& call, uint64_t numbers, bool is_aliased);
  // Do the same for an operator over lists of tensors as one launch (kernels/chunk_plan.h).
  // `arguments` are the call's, with lists cut to their first element.
  uint64_t (*numbers_of_lists)(const Operator& op);
  BuiltPlan (*build_chunks)(const Operator& op, const torch::jit::Stack& arguments, c10::DeviceIndex device);
  // Return a bit mask, the same at every call: bit 0 if plans have fused attention kernels, bits 1
  // to 3 if these have gradients of the mask for float, half and bfloat16, bit 4 if matrix units
  // round float to TF32 where torch's switches allow it.
  uint32_t (*abilities)();
  // Forget an unusable plan that `load` returned for such calls: it is removed from disk,
  // reported, and not returned again.
  void (*drop)(const Call& call, uint64_t numbers, bool is_aliased, const std::string& text, const std::string& why);
  // Do the same for `build_chunks`. Return false if the plan was not read from disk: another
  // build would produce the same plan.
  bool (*drop_chunks)(const Operator& op, const torch::jit::Stack& arguments, c10::DeviceIndex device,
                      const std::string& text, const std::string& why);
  // Return a refusal with advice.
  std::string (*explained)(const std::string& refusal);
};
// Install the builder. Only the pointer is stored.
OUTBOARD_API void set_plan_builder(const PlanBuilder* builder);
// Return the builder, or null if there is none.
const PlanBuilder* plan_builder();
// Count a plan that was built.
void count_plan();

// Return true if calls of this thread may run as generated kernels of the device.
// Opens the device the first time.
bool may_generate(c10::DeviceIndex device);

// Run the call by its plan and replace the arguments on the stack by the results. Return false if
// the next provider must run the call; the stack is then unchanged, except that an `out=` may have
// been resized.
bool run_generated(const Call& call, torch::jit::Stack* stack);

// Return the sentence that explains why the last call of the operator on this thread has no plan,
// with advice: to be appended to a sentence, without its full stop. "" if it was not refused.
std::string explain_last_refusal(const Operator& op);

// Return the refused operators and the reasons.
OUTBOARD_API std::vector<std::pair<std::string, std::string>> refused_operators();

// From now on, compile no call of this thread. For the builder's thread, which would otherwise wait
// for itself.
OUTBOARD_API void forbid_compiling();

// Return true if plans have fused attention kernels in the devices' language.
bool has_generated_attention();
// Return true if these kernels have gradients of masks, for such queries.
bool has_generated_mask_gradients(c10::ScalarType dtype);

// Return the number of plans that were built or read since the start.
OUTBOARD_API uint64_t built_plans();
// Make later calls use separate plans per variant number (initially 0), to try plans next to the
// existing ones.
OUTBOARD_API void set_plan_variant(uint32_t variant);

}  // namespace outboard

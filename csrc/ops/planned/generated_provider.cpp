// SPDX-License-Identifier: BSD-3-Clause
#include "ops/planned/generated_provider.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "core/device.h"
#include "ops/call/results.h"
#include "ops/planned/composed.h"
#include "ops/planned/recipes.h"
#include "ops/providers.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

// A plan that calls operators may reach itself again through them.
constexpr int kMaxDepth = 4;
thread_local int depth = 0;
// The refusal of this thread's last call, for the provider that runs it instead.
thread_local const Operator* refused_op = nullptr;
thread_local std::shared_ptr<const PlannedCall> refused_call;

class NestingGuard {
 public:
  NestingGuard() { ++depth; }
  ~NestingGuard() { --depth; }
  NestingGuard(const NestingGuard&) = delete;
  NestingGuard& operator=(const NestingGuard&) = delete;
};

// Return true if sizes decide the shapes of a call's results.
bool has_shapes(const Call& call) {
  const Operator& op = call.op();
  return (op.kind == OpKind::Makes || op.kind == OpKind::Writes || op.returns_sizes) &&
         !(op.facts.has_shape_of_masks && has_mask(call));
}

// Return true for a call in which the driver's own kernel may drop numbers, and for its gradients.
bool may_use_native_dropout(const Call& call) {
  const size_t place = call.op().facts.dropout_argument;
  if (place == 0 || call.arg(place).toDouble() == 0) {
    return false;
  }
  constexpr std::string_view kSuffix = "_backward";
  const std::string& name = call.op().name;
  const size_t length = name.size() - (name.ends_with(kSuffix) ? kSuffix.size() : 0);
  return allows_native() && has_native(operator_named(name.substr(0, length)));
}

bool may_run(const Call& call) {
  return has_shapes(call) && call.has_signature() && !call.requires_cpu_kernel() && !may_use_native_dropout(call);
}

bool run_composition(const Call& call, torch::jit::Stack* stack) {
  const NestingGuard nested;
  if (!run_composed(call, stack)) {
    return false;
  }
  call.op().planned_calls.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool has_outputs(const Operator& op) {
  return std::any_of(op.args.begin(), op.args.end(), [](const ArgInfo& info) { return info.is_output; });
}

bool is_usable(const std::shared_ptr<const PlannedCall>& planned) {
  return planned != nullptr &&
         (planned->recipe == nullptr || !(planned->recipe->is_dropped.load(std::memory_order_relaxed) ||
                                          planned->recipe->is_refused.load(std::memory_order_relaxed)));
}

enum class Outcome : uint8_t { Ran, Declined, Dropped };

// Run a recipe. A recipe from disk that fails is dropped. The call is tried again, as is one whose
// program was refused meanwhile, unless it has changed what it reads.
Outcome run_or_drop(OperatorRecipes& known, const PlannedCall& planned, const Call& call, torch::jit::Stack* stack) {
  const NestingGuard nested;
  RunFailure failure;
  try {
    return run_recipe(planned, call, stack, &failure) ? Outcome::Ran : Outcome::Declined;
  } catch (const std::exception& error) {
    if (!was_refused_meanwhile(*planned.recipe, error)) {
      if (planned.recipe->kept.empty() || !failure.may_be_plan_failure || !may_be_plan_failure(error, call.device())) {
        throw;
      }
      known.drop(*planned.recipe, call, error);
    }
    if (failure.has_written) {
      throw;
    }
  }
  return Outcome::Dropped;
}

using PlannedCallPtr = std::shared_ptr<const PlannedCall>;

// `is_accepted`: the CPU kernel accepts the call.
bool run_planned(const Call& call, torch::jit::Stack* stack, PlannedCallPtr* out_refused, bool is_accepted = false) {
  OperatorRecipes& known = OperatorRecipes::of(call.op());
  const PlannedKey key = known.key_of(call);
  std::shared_ptr<const PlannedCall> planned;
  bool has_warned = call.op().issue_known_warning == nullptr;
  Outcome outcome = Outcome::Dropped;
  while (outcome == Outcome::Dropped) {
    planned = known.find(key);
    if (C10_UNLIKELY(!is_usable(planned))) {
      if (!is_accepted && call.op().kind != OpKind::Waits) {
        accepted_shape_of(call);  // decompositions and guards of plans check less than the operator
      }
      const NestingGuard nested;  // the builder may call operators
      planned = known.make(call, key);
    }
    if (C10_UNLIKELY(planned->recipe == nullptr)) {
      *out_refused = std::move(planned);
      return false;
    }
    planned->group->was_used.store(true, std::memory_order_relaxed);
    if (C10_UNLIKELY(!std::exchange(has_warned, true))) {
      call.op().issue_known_warning(call);
    }
    outcome = run_or_drop(known, *planned, call, stack);
  }
  if (outcome == Outcome::Declined) {
    return false;
  }
  call.op().planned_calls.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool run_by_kernels(const Call& call, torch::jit::Stack* stack, PlannedCallPtr* out_refused) {
  if (call.has_sparse() || !may_run(call)) {
    return run_composition(call, stack);
  }
  ensure_open(call.device());
  if (call.op().facts.is_composed_first && run_composition(call, stack)) {
    return true;
  }
  if (!has_outputs(call.op())) {
    if (run_planned(call, stack, out_refused)) {
      return true;
    }
    // Callers that cannot do without the kernel report why there is none.
    refused_op = &call.op();
    refused_call = *out_refused;
    return run_composition(call, stack);
  }
  const std::shared_ptr<const CallShape> shape = accepted_shape_of(call);
  if (!shape->is_known() || shape->requires_cpu_kernel) {
    return false;
  }
  if (shape->resized.empty()) {
    return run_planned(call, stack, out_refused, /*is_accepted=*/true);
  }
  resize_written(call, *shape);
  return run_planned(Call(call.op(), *stack), stack, out_refused, /*is_accepted=*/true);
}

// Return why no plan was asked for.
std::string explain_missing_plan(const Call& call) {
  return call.has_sparse() ? "an argument is not a dense strided tensor [layout]"
         : call.op().kind == OpKind::Waits
             ? "the result's size depends on values, and there is no decomposition [values-decide]"
         : may_use_native_dropout(call)
             ? "only the provider of the forward call knows which elements were dropped [cpu-alone]"
             : "only the CPU kernel defines the result for these arguments [cpu-alone]";
}

}  // namespace

std::string explain_last_refusal(const Operator& op) {
  if (refused_op != &op || refused_call == nullptr || refused_call->refusal.empty()) {
    return {};
  }
  const PlanBuilder* active_builder = plan_builder();
  std::string refusal =
      active_builder != nullptr ? active_builder->explained(refused_call->refusal) : refused_call->refusal;
  if (refusal.ends_with('.')) {
    refusal.pop_back();
  }
  return ". None was generated: " + refusal;
}

void forbid_compiling() {
  depth = kMaxDepth;
}

bool may_generate(c10::DeviceIndex device) {
  return depth < kMaxDepth && generates_for(device);
}

bool run_generated(const Call& call, torch::jit::Stack* stack) {
  refused_op = nullptr;
  if (!may_generate(call.device())) {
    return false;
  }
  PlannedCallPtr refused;
  if (run_by_kernels(call, stack, &refused)) {
    return true;
  }
  // Parts of the call may have been refused too. This is the reason for the call itself.
  if (refused == nullptr) {
    refused = OperatorRecipes::of(call.op()).refuse(explain_missing_plan(call));
  }
  refused_op = &call.op();
  refused_call = std::move(refused);
  return false;
}

}  // namespace outboard

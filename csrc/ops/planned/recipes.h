// SPDX-License-Identifier: BSD-3-Clause
// The data of the provider 'generated' about one operator: recipes by class of calls, refusals, and
// known calls.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/plan.h"
#include "ops/call/recent_failure.h"
#include "ops/operator/signatures.h"
#include "ops/planned/flat_call.h"
#include "ops/planned/recipe_classes.h"

namespace outboard {

// A plan with its kernels and operators, shared by calls. Its programs outlive it, because queued
// launches and captured graphs refer to them.
struct Recipe : RecipeState {
  Recipe(kernels::Plan new_plan, BuiltPlan& built, const Operator& op);

  kernels::Plan plan;
  std::vector<std::unique_ptr<const kernels::DeviceKernel>> kernels;
  std::vector<c10::OperatorHandle> operators;  // called by the steps, in order
  mutable RecentFailure failure;  // failure to build its programs
};

// A recipe for one signature, with everything computed; or a refusal.
struct PlannedCall {
  std::shared_ptr<const Recipe> recipe;
  std::shared_ptr<RecipeClass<Recipe>> group;  // the class to mark as used; null without a recipe
  std::string refusal;  // if there is no recipe
  bool is_aliased = false;  // a written tensor shares memory with another argument
  std::vector<int64_t> numbers;
  std::vector<kernels::LaunchSizes> sizes;  // sizes of the launches, in order
  bool uses_flat_views = false;  // a step uses the tensors of a flat call as tensors of one dimension
  std::shared_ptr<const CallShape> shape;  // of results for which the plan of a flat call has one dimension
};

// The signature of a call for this provider.
struct PlannedKey {
  uint64_t hash = 0;
  SignatureWords words;
  bool is_aliased = false;
};

class OperatorRecipes final : public ProviderMemory {
 public:
  // Return the operator's recipes, which are made on first use.
  static OperatorRecipes& of(Operator& op);

  PlannedKey key_of(const Call& call);

  // Return the entry of a known call, or null.
  std::shared_ptr<const PlannedCall> find(const PlannedKey& key) { return known_.find(key.hash, key.words); }
  // Find a recipe for the call, or build one. The result is cached.
  std::shared_ptr<const PlannedCall> make(const Call& call, const PlannedKey& key);

  // Forget a recipe that was read from disk and failed for a call, here and on disk.
  void drop(const Recipe& recipe, const Call& call, const std::exception& failure);

  // Refuse a call without asking the builder.
  std::shared_ptr<const PlannedCall> refuse(const std::string& reason) { return refuse(reason, nullptr); }

  // Add a reason to the list of refusals.
  void list(const std::string& reason);
  std::set<std::string> refusals();

 private:
  using Class = RecipeClass<Recipe>;

  static constexpr size_t kMaxRefusals = 64;  // refusals listed for single calls

  // Return a bit mask of the arguments whose numbers the call's plan takes by value. Arguments with
  // the schema's default are excluded: most calls use the default, which is worth a separate
  // kernel.
  uint64_t numbers(const Call& call);
  // Return a call with a recipe of its class, after building its programs, or null if a guard does
  // not hold. Raise a failure that prevents building the programs, unless it is a refusal.
  std::shared_ptr<const PlannedCall> use(const std::shared_ptr<const Recipe>& recipe, const FlatCall& flat,
                                         const std::shared_ptr<Class>& group);
  // Load recipes from the class's plans on disk, or refuse the class.
  void load(const Call& call, const PlannedKey& key, Class& group);
  std::shared_ptr<const PlannedCall> build(const FlatCall& flat, const PlannedKey& key,
                                           const std::shared_ptr<Class>& group);
  std::shared_ptr<const PlannedCall> refuse(const std::string& reason, Class* group);

  OperatorNumbers numbers_;
  SignatureTable<PlannedCall> known_;
  RecipeClasses<Recipe> classes_;
  std::mutex mutex_;  // guards the reasons
  std::set<std::string> refusals_;
};

// Return true if a tensor that the operator writes shares memory with another argument.
bool is_aliased(const Call& call);

// Return the reason why a plan that was just built, or one of its programs, cannot be used. Warn
// about the first such plan: its calls run with other kernels or on the CPU.
std::string explain_unusable_plan(const Operator& op, const c10::Error& error);

// Return a call with a recipe; null if a guard does not hold, or a result has other strides. Raise
// ValueError for a recipe that does not fit the call.
std::shared_ptr<PlannedCall> instantiate(const std::shared_ptr<const Recipe>& recipe, const FlatCall& flat);

// Return the strides of a call's new results, as far as they are known before it runs;
// nothing for an undefined tensor.
OUTBOARD_API std::vector<std::optional<std::vector<int64_t>>> strides_of_results(const Call& call);

// How far a failed recipe ran.
struct RunFailure {
  bool may_be_plan_failure = false;  // the failed step was not queued, or the call waited for it
  bool has_written = false;  // it wrote to an argument that the call reads, so the call cannot be repeated
};

// Run the steps. Return false, before the first step, if a tensor has no memory (a zero tensor of
// torch's). `out_failure` is filled before an exception is raised.
bool run_recipe(const PlannedCall& planned, const Call& call, torch::jit::Stack* stack, RunFailure* out_failure);

// Return true if an exception may be caused by a call's plan. Return false if it concerns memory,
// the device or the program.
bool may_be_plan_failure(const std::exception& error, c10::DeviceIndex device);

// Return an exception's message, without the stack that torch adds to its own exceptions.
std::string message_of(const std::exception& error);

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// What the provider 'compiled' knows of one operator: its recipes by class of calls, its refusals, and the calls that
// it has seen.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/plan.h"
#include "ops/call/recent_failure.h"
#include "ops/generated/compiled_kernel.h"
#include "ops/generated/compiled_provider.h"
#include "ops/operator/signatures.h"

namespace outboard {

// A plan with its kernels and operators. Calls share it. Its programs outlive it, since queued launches and captured graphs
// name them.
struct Recipe {
  Recipe(kernels::Plan made, BuiltPlan& built, const Operator& op);

  kernels::Plan plan;
  std::vector<std::unique_ptr<CompiledKernel>> kernels;
  std::vector<c10::OperatorHandle> operators;  // of the steps that call one, in order
  std::string kept;  // the plan's text, if it was read from disk
  mutable std::atomic<bool> is_dropped{false};  // it was read from disk, and is no good: another one is built
  mutable std::atomic<bool> was_used{true};  // since the last search for one to evict
  mutable RecentFailure failure;  // of building its programs
};

// The calls that one set of recipes may serve.
struct RecipeClass {
  std::vector<std::shared_ptr<const Recipe>> recipes;
  std::string refusal;
  bool is_building = false;
  bool is_loaded = false;  // what is kept on disk is among the recipes
  std::atomic<bool> was_used{true};  // since the last search for one to evict
  RecentFailure failure;  // of making a plan
};

// A recipe for one signature, with all that is computed; or a refusal.
struct CompiledCall {
  std::shared_ptr<const Recipe> recipe;
  std::shared_ptr<RecipeClass> group;  // to mark as used; null without a recipe
  std::string refusal;  // if there is no recipe
  bool is_aliased = false;  // a tensor that is written shares memory with another argument
  std::vector<int64_t> numbers;
  std::vector<kernels::LaunchSizes> sizes;  // of the launches, in order
};

// The signature of a call for this provider.
struct CompiledKey {
  uint64_t hash = 0;
  SignatureWords words;
  bool is_aliased = false;
};

class OperatorRecipes final : public ProviderMemory {
 public:
  // The operator's, made when it is first asked for.
  static OperatorRecipes& of(Operator& op);

  CompiledKey key_of(const Call& call);

  // What is known of a call; null if nothing is.
  std::shared_ptr<const CompiledCall> find(const CompiledKey& key) { return known_.find(key.hash, key.words); }
  // Finds a recipe for the call, or has one built; remembers what came of it.
  std::shared_ptr<const CompiledCall> make(const Call& call, const CompiledKey& key);

  // Forget a recipe that was read from disk and failed for a call, here and on disk.
  void drop(const Recipe& recipe, const Call& call, const std::exception& failure);

  // Has a reason listed why calls were refused.
  void list(const std::string& reason);
  std::set<std::string> refusals();

 private:
  using Class = RecipeClass;
  using Classes = std::map<std::vector<uint64_t>, std::shared_ptr<Class>>;
  class Building;

  // Full ones give up what was not used since the last search. Classes that are refused don't crowd out the others.
  static constexpr size_t kMaxClasses = 1024;
  static constexpr size_t kMaxRefusedClasses = 256;
  static constexpr size_t kMaxRecipes = 32;  // of a class
  static constexpr size_t kMaxRefusals = 64;  // that are listed of single calls

  // The arguments, a bit each, whose numbers the call's plan takes by value: not those that are the schema's default,
  // which most calls have, and which are worth a kernel without them.
  uint64_t numbers(const Call& call);
  std::shared_ptr<const CompiledCall> find_or_build(const Call& call, const CompiledKey& key,
                                                    const std::shared_ptr<Class>& group);
  // A call with a recipe of its class, whose programs are built by then; null if a guard doesn't hold. What keeps programs
  // from being built, and is no refusal of theirs, is raised.
  std::shared_ptr<const CompiledCall> use(const std::shared_ptr<const Recipe>& recipe, const Call& call,
                                          const std::shared_ptr<Class>& group);
  // Makes recipes of what is kept of the class on disk, or refuses it.
  void load(const Call& call, const CompiledKey& key, Class& group);
  std::shared_ptr<const CompiledCall> build(const Call& call, const CompiledKey& key,
                                            const std::shared_ptr<Class>& group);
  std::shared_ptr<Class> class_for(const Call& call, bool is_aliased);
  void keep(std::shared_ptr<const Recipe> recipe, Class& group);
  // With the lock held.
  size_t count_classes(bool are_refused) const;
  // With the lock held: makes room for a class that is refused, or for another one. What is evicted is destroyed without
  // the lock, as its failure may be Python's.
  std::shared_ptr<Class> evict_class(bool is_refused);
  std::shared_ptr<const CompiledCall> refuse(const std::string& reason, Class* group);

  std::atomic<uint64_t> numbers_{kUnknown};
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  SignatureTable<CompiledCall> known_;

  std::mutex mutex_;  // guards what follows; never held while Python or the driver is called
  std::condition_variable built_;
  Classes classes_;
  std::vector<uint64_t> hand_;  // the class behind which the next search begins
  std::set<std::string> refusals_;
};

// Whether a tensor that the operator writes shares memory with another argument.
bool is_aliased(const Call& call);

// The reason for which a plan, or a program of it, can't be used.
std::string unusable(const c10::Error& error);

// A call with a recipe: null if a guard does not hold, or a result has other strides. ValueError for a recipe that makes
// no sense for the call.
std::shared_ptr<CompiledCall> instantiate(const std::shared_ptr<const Recipe>& recipe, const Call& call);

// The strides of what a call returns beside the tensors that it writes, as far as they are known before it runs: nothing
// for an undefined tensor.
OUTBOARD_API std::vector<std::optional<std::vector<int64_t>>> strides_of_results(const Call& call);

// How far a recipe came that failed.
struct RunFailure {
  bool may_be_plans = false;  // else it is about the values, or about the device
  bool has_written = false;  // to what the call reads: it can't be repeated
};

// Runs the steps. False, before the first, if a tensor has no memory (a zero tensor of torch's). `out_failure` is filled
// before an exception is raised.
bool run_recipe(const CompiledCall& compiled, const Call& call, torch::jit::Stack* stack, RunFailure* out_failure);

// Whether an exception may come from the plan of a call. Not if it is about memory, the device or the program.
bool may_be_plans(const std::exception& error, c10::DeviceIndex device);

// What an exception says, without the stack that torch's own carry.
std::string words_of(const std::exception& error);

}  // namespace outboard

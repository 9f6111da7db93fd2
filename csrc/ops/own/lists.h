// SPDX-License-Identifier: BSD-3-Clause
// Operators over lists of tensors (_foreach_*, fused optimizers, the check of AMP's scaler). Each is one launch over
// chunks of all tensors' elements, or two if each tensor is reduced. The device needs generated kernels that follow
// addresses.
//
// The lists must meet the conditions of torch's own fast paths: one device, one dtype a list, the same sizes and
// strides at the same places, no gaps, and no written tensor shares memory with another. Other calls, and calls for
// which the builder has no kernel, run as they would without this.
#pragma once

#include <ATen/core/stack.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels/chunk_plan.h"
#include "kernels/device_kernel.h"
#include "ops/call/recent_failure.h"
#include "ops/generated/generated_provider.h"
#include "ops/operator/operator.h"
#include "ops/own/chunk_table.h"

namespace outboard {

// The kernels over chunks and their arguments. Without kernels: such calls have none. Graphs that captured a launch
// need nothing of it.
struct ListRecipe {
  std::vector<std::unique_ptr<const kernels::DeviceKernel>> kernels;
  std::optional<kernels::ChunkPlan> plan;
  ChunkTables tables;
  std::string kept;  // the plan's text, if it was read from disk
  std::atomic<bool> was_used{true};  // since the last search for a recipe to evict
};

// What is known of one operator's calls. Thread-safe.
class ListOperator {
 public:
  // `promotes`: the dtypes of its arguments decide that of the results, by torch's type promotion.
  ListOperator(Operator& op, bool promotes);

  Operator& op() { return op_; }

  // Run a call and replace the arguments on the stack by the results. Return false, and do nothing, if the call must
  // run another way.
  bool run(torch::jit::Stack* stack);

 private:
  using Words = std::vector<uint64_t>;

  // Beyond these, recipes that were not used since the last search are evicted.
  static constexpr size_t kMaxRecipes = 1024;

  uint64_t numbers();
  std::shared_ptr<ListRecipe> recipe_for(c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device);
  // Build a recipe. If the builder refuses, or its result is unusable, return a recipe without kernels, and list the
  // reason.
  std::shared_ptr<ListRecipe> build(c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device);
  // Evict a recipe. Call it with the lock held, and destroy the result without it.
  std::shared_ptr<ListRecipe> evict();
  // Drop a recipe from disk that failed when it ran, so that the next call gets another.
  void drop(const std::shared_ptr<ListRecipe>& recipe, c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device,
            const std::string& why);
  void fill(ListRecipe& recipe, BuiltPlan built, c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device) const;

  Operator& op_;
  const bool promotes_;
  bool converts_ = false;  // its numbers to its tensors' dtype, which the CPU's kernels refuse if they do not fit
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  std::atomic<uint64_t> numbers_{kUnknown};
  std::mutex mutex_;  // guards the recipes; never held while Python or the driver is called
  std::map<Words, std::shared_ptr<ListRecipe>> recipes_;
  Words hand_;  // the next search begins behind this class
  std::map<Words, std::shared_ptr<RecentFailure>> failures_;  // of classes that have no recipe yet
};

}  // namespace outboard

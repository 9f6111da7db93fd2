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
#include "ops/generated/compiled_provider.h"
#include "ops/operator/operator.h"
#include "ops/own/chunk_table.h"

namespace outboard {

// The kernels over chunks with what they are passed; without any: there are none for such calls. Graphs that captured a
// launch need nothing of it.
struct ListRecipe {
  std::vector<std::unique_ptr<const kernels::DeviceKernel>> kernels;
  std::optional<kernels::ChunkPlan> plan;
  ChunkTables tables;
  std::string kept;  // the plan's text, if it was read from disk
  std::atomic<bool> was_used{true};  // since the last search for one to evict
};

// What is known of one operator's calls. Thread-safe.
class ListOperator {
 public:
  // `promotes`: types of its arguments decide that of the results, as torch promotes them.
  ListOperator(Operator& op, bool promotes);

  Operator& op() { return op_; }

  // Runs a call and replaces the arguments on the stack by the results; false, with nothing done, if it must go another way.
  bool run(torch::jit::Stack* stack);

 private:
  using Words = std::vector<uint64_t>;

  // Beyond them those that were not used since the last search are evicted.
  static constexpr size_t kMaxRecipes = 1024;

  uint64_t numbers();
  std::shared_ptr<ListRecipe> recipe_for(c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device);
  // A recipe without kernels, and a reason that is listed, where the builder refuses or what it builds can't be used.
  std::shared_ptr<ListRecipe> build(c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device);
  // With the lock held. What is evicted is destroyed without it.
  std::shared_ptr<ListRecipe> evict();
  // Drops a recipe from disk that failed when it ran, so that the next call has another.
  void drop(const std::shared_ptr<ListRecipe>& recipe, c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device,
            const std::string& why);
  void fill(ListRecipe& recipe, BuiltPlan built, c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device) const;

  Operator& op_;
  const bool promotes_;
  bool converts_ = false;  // its numbers to its tensors' dtype, which the CPU's kernels refuse where they don't fit
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  std::atomic<uint64_t> numbers_{kUnknown};
  std::mutex mutex_;  // guards the recipes; never held while Python or the driver is called
  std::map<Words, std::shared_ptr<ListRecipe>> recipes_;
  Words hand_;  // the class behind which the next search begins
  std::map<Words, std::shared_ptr<RecentFailure>> failures_;  // of classes that have no recipe yet
};

}  // namespace outboard

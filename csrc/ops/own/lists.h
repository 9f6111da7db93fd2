// SPDX-License-Identifier: BSD-3-Clause
// Operators over lists of tensors (_foreach_*, fused optimizers, the check of AMP's scaler). Each
// is one launch over chunks of all tensors' elements, or two if each tensor is reduced. The device
// needs generated kernels that follow addresses.
//
// The lists must meet the conditions of torch's own fast paths: one device, one dtype per list, the
// same sizes and strides at the same positions, no gaps, and no written tensor that shares memory
// with another tensor. Other calls, and calls for which the builder has no kernel, run as they
// would without this file.
#pragma once

#include <ATen/core/stack.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/chunk_plan.h"
#include "kernels/device_kernel.h"
#include "ops/operator/operator.h"
#include "ops/operator/signatures.h"
#include "ops/own/chunk_table.h"
#include "ops/planned/recipe_classes.h"

namespace outboard {

// The kernels over chunks and their arguments. If there are no kernels, such calls are refused.
// Graphs that captured a launch do not need the recipe.
struct ListRecipe : RecipeState {
  std::vector<std::unique_ptr<const kernels::DeviceKernel>> kernels;
  std::optional<kernels::ChunkPlan> plan;
  mutable ChunkTables tables;
};
using ListRecipeRef = std::shared_ptr<const ListRecipe>;

// Data about one operator's calls. Thread-safe.
class ListOperator {
 public:
  // `promotes`: the results' dtype follows from the arguments' dtypes by torch's type promotion.
  ListOperator(Operator& op, bool promotes);

  Operator& op() { return op_; }

  // Run a call and replace the arguments on the stack by the results. Return false, and do nothing,
  // if the call must run another way.
  bool run(torch::jit::Stack* stack);

 private:
  ListRecipeRef recipe_for(c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device);
  // Build a recipe. If the builder refuses, or its result is unusable, return a recipe without
  // kernels, list the reason, and store it for the class or for the call.
  ListRecipeRef refused(const ListRecipeRef& recipe, c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device);
  ListRecipeRef build(c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device, RecipeClass<ListRecipe>& group);
  ListRecipeRef ask_for_recipe(c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device,
                               BuiltPlan* out_refusal) const;
  ListRecipeRef make(BuiltPlan& built, c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device) const;
  // Drop a recipe that was read from disk and failed when it ran, so that the next call builds
  // another.
  void drop(const ListRecipe& recipe, c10::ArrayRef<c10::IValue> arguments, c10::DeviceIndex device,
            const std::string& why);

  Operator& op_;
  const bool promotes_;
  bool converts_ = false;  // converts its numbers to its tensors' dtype; CPU kernels refuse numbers that do not fit
  OperatorNumbers numbers_;
  RecipeClasses<ListRecipe> classes_;
  SignatureTable<ListRecipe> refused_;  // recipes without kernels, for refused calls
};

}  // namespace outboard

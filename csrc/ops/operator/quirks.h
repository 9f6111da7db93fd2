// SPDX-License-Identifier: BSD-3-Clause
// Operators whose CPU kernels depart from their schema or their meta kernel, each with its reason.
#pragma once

#include <ATen/core/stack.h>

#include <optional>
#include <string>

#include "ops/operator/operator.h"

namespace outboard {

// Return true if the CPU kernel's outputs have other shapes than the meta kernel's: only the kernel itself knows them.
bool has_misleading_meta(const std::string& name);

// Return true if it needs no meta kernel: it writes its arguments in place, whatever their shapes.
bool keeps_shapes(const std::string& name);

// Return true if it writes the argument although the schema, which is older than alias annotations, does not declare
// it.
bool writes_in_secret(const std::string& name, const std::string& arg);

// Return true if the values of its Scalar arguments decide its result's shape.
bool has_shape_of_scalars(const std::string& name);

// Elements of arguments: 0, 1, or identity matrices in the last two dimensions.
enum class Elements : uint8_t { Zeros, Ones, Identities };

// Return the elements that the CPU kernel accepts in its arguments; none if the accepted values depend on sizes. A call
// that is wrong whatever its values (`is_refused`) may be tried with values that do not suit its sizes either.
std::optional<Elements> harmless_elements(const std::string& name, bool is_refused = false);

// Return true if the CPU kernel of a structured operator checks no more than the meta kernel, once it accepts the
// dtypes.
bool checks_all_in_meta(const std::string& name);

// Return true if it draws nothing although torch tags it as random: an argument has the numbers.
bool is_given_samples(const std::string& name);

// Correct the shape of a call, if a rule is known.
void correct_shape(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape);

}  // namespace outboard

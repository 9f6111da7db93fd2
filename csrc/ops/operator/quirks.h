// SPDX-License-Identifier: BSD-3-Clause
// Operators whose CPU kernels depart from their schema or their meta kernel, each with its reason.
#pragma once

#include <ATen/core/stack.h>

#include <optional>
#include <string>

#include "ops/operator/operator.h"

namespace outboard {

// The CPU kernel's outputs have other shapes than the meta kernel's: only the kernel itself can tell.
bool has_misleading_meta(const std::string& name);

// Needs no meta kernel: it writes its arguments in place, whatever their shapes.
bool keeps_shapes(const std::string& name);

// Writes arguments although the schema (older than alias annotations) doesn't say so.
bool writes_in_secret(const std::string& name, const std::string& arg);

// The values of its Scalar arguments decide its result's shape.
bool has_shape_of_scalars(const std::string& name);

// Elements of arguments: 0, 1, or those of identity matrices in the last two dimensions.
enum class Elements : uint8_t { Zeros, Ones, Identities };

// What the CPU kernel takes as the elements of its arguments; none if it depends on sizes which values it takes. A call
// that is wrong whatever its values (`is_refused`) may be asked about with values that don't suit its sizes either.
std::optional<Elements> harmless_elements(const std::string& name, bool is_refused = false);

// Whether the CPU kernel of a structured operator checks no more than the meta kernel, once it takes the dtypes.
bool checks_all_in_meta(const std::string& name);

// Draws nothing, although torch tags it as random: an argument has the numbers.
bool is_given_samples(const std::string& name);

// Mends the shape of a call where the rule is known.
void correct_shape(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape);

}  // namespace outboard

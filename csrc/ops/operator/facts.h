// SPDX-License-Identifier: BSD-3-Clause
// Facts about an operator beyond its schema: where its CPU kernel deviates from the schema or the
// meta kernel, which arguments the kernel accepts, and which shapes depend on values. The facts
// come from rows of the book (torch_outboard/kernels/book), from which cmake/book.py generates
// tables for this file and its users: bad arguments and values (ops/call), shape rules,
// compositions (ops/planned).
//
// Which arguments may overlap is measured instead of declared: ops/call/_generated/overlap_table.h.
#pragma once

#include <ATen/core/operator_name.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/export.h"

namespace outboard {

struct CallShape;
struct Operator;

// Elements of arguments: 0, 1, or identity matrices in the last two dimensions.
enum class Elements : uint8_t { Zeros, Ones, Identities };

// Values of a call that the CPU kernel checks depending on sizes, so that it cannot be tried on
// stand-ins.
enum class CheckedValues : uint8_t {
  Nothing,
  Sums,  // a call that is wrong whatever its values may still be tried
  Values
};

// The layout of a CPU kernel's results, if the meta kernel follows the arguments in another way.
enum class Layout : uint8_t {
  AsMeta,
  Contiguous,
  Suggested,  // in the memory format that the argument `like` suggests
  Like        // as empty_like of the argument `like`
};

// Warnings of the CPU kernel that can be predicted from the arguments: ops/call/known_warnings.cpp.
enum class KnownWarning : uint8_t { None, DegreesOfFreedom, Bound, TwoBounds, ByteIndices };

struct Facts {
  // The CPU kernel returns other shapes than the meta kernel, so only running it reveals them.
  bool has_misleading_meta = false;
  // The operator needs no meta kernel: it writes its arguments in place, whatever their shapes.
  bool keeps_shapes = false;
  // The result's shape depends on the values of Scalar arguments.
  bool has_shape_of_scalars = false;
  // The operator is structured, and once it accepts the dtypes, its CPU kernel checks no more than
  // the meta kernel.
  bool checks_all_in_meta = false;
  // The operator draws nothing although torch tags it as random: an argument holds the samples.
  bool is_given_samples = false;
  // Its integer arguments are bounds of random numbers and do not affect shapes.
  bool has_bounds = false;
  // If an index is a mask, the result's shape depends on the mask's values.
  bool has_shape_of_masks = false;
  // Compose the operator from others before trying a plan: a plan for many tensors would need one
  // launch per tensor, and no plan can wait for values.
  bool is_composed_first = false;
  // Its CPU kernel reads past an argument whose elements share memory, so it is passed a copy.
  bool misreads_expanded = false;
  // The operator raises value errors at the call on every device, so the caller waits. Operators
  // with an argument `check_errors` do so if it is true.
  bool raises_at_call = false;
  // Stand-in elements that the CPU kernel accepts in its arguments. An in-place form uses the
  // functional form's.
  Elements accepts = Elements::Zeros;
  CheckedValues checked_values = CheckedValues::Nothing;
  KnownWarning known_warning = KnownWarning::None;
  Layout layout = Layout::AsMeta;
  uint8_t like = 0;  // the argument that suggests the layout
  uint8_t layout_count = 1;  // the number of leading results to which the layout applies
  // The argument with the dropout probability of the operator or of its forward operator. Only the
  // provider of the forward call can determine which numbers were dropped.
  uint8_t dropout_argument = 0;
  // Corrects the shape of a call.
  void (*correct)(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape) = nullptr;
  // Names, separated by blanks, of arguments that the operator writes although the schema, which
  // predates alias annotations, does not declare it.
  std::string_view undeclared_writes;
  // The operator whose CPU kernel is used instead, if torch has no CPU kernel for this operator.
  std::string_view cpu_operator;
  std::string_view row;  // the name of the row in the book
};

// Return an operator's facts, merged from the rows for its overload and for all its overloads.
Facts facts_of(const c10::OperatorName& name);

// Return the facts that only the code generator uses, each with the name of a row.
OUTBOARD_API std::span<const std::pair<std::string_view, std::string_view>> kernel_traits();

// Return a description of the row's facts; empty without a row.
std::vector<std::string> described(const Facts& facts);

// Return true if the operator writes the argument, and its schema does not declare it.
bool is_undeclared_write(const Facts& facts, std::string_view argument);

// Return the elements that the CPU kernel accepts; none if the accepted values depend on sizes. A
// call that is wrong whatever its values (`is_refused`) may also be tried with values that do not
// match its sizes.
inline std::optional<Elements> harmless_elements(const Facts& facts, bool is_refused = false) {
  if (facts.checked_values == CheckedValues::Values || (facts.checked_values == CheckedValues::Sums && !is_refused)) {
    return std::nullopt;
  }
  return facts.accepts;
}

}  // namespace outboard

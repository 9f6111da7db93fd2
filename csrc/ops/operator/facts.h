// SPDX-License-Identifier: BSD-3-Clause
// What is known of an operator beyond its schema: where its CPU kernel departs from the schema or
// from the meta kernel, what it accepts, and what its values decide. The rows are the book's,
// torch_outboard/kernels/book; cmake/book.py makes tables of them for this file and for its users:
// bad arguments and values (ops/call), shape rules, compositions (ops/planned).
//
// Which arguments may overlap is measured, not written: ops/call/_generated/overlap_table.h.
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

// Which values of a call the CPU kernel judges in a way that depends on sizes, so that it cannot be
// tried on stand-ins.
enum class Judges : uint8_t {
  Nothing,
  Sums,  // a call that is wrong whatever its values may be tried all the same
  Values
};

// The layout of a CPU kernel's results, if the meta kernel follows the arguments in another way.
enum class Layout : uint8_t {
  AsMeta,
  Contiguous,
  Suggested,  // in the memory format that the argument `like` suggests
  Like        // as empty_like of the argument `like`
};

// Warnings of the CPU kernel that the arguments predict: ops/call/known_warnings.cpp.
enum class Warns : uint8_t { No, OfFreedom, OfBound, OfTwoBounds, OfBytes };

struct Facts {
  // The CPU kernel's outputs have other shapes than the meta kernel's: only the kernel itself knows
  // them.
  bool has_misleading_meta = false;
  // It needs no meta kernel: it writes its arguments in place, whatever their shapes.
  bool keeps_shapes = false;
  // The values of its Scalar arguments decide its result's shape.
  bool has_shape_of_scalars = false;
  // It is structured, and its CPU kernel checks no more than the meta kernel, once it accepts the
  // dtypes.
  bool checks_all_in_meta = false;
  // It draws nothing although torch tags it as random: an argument has the numbers.
  bool is_given_samples = false;
  // Its integers are bounds of random numbers, which decide no shape.
  bool has_bounds = false;
  // If an index is a mask, its values decide the result's shape.
  bool masks_decide = false;
  // It is composed of others before a plan is tried: a plan for many tensors would have a launch
  // for each, and no plan can wait for values.
  bool is_composed_first = false;
  // Its CPU kernel reads past an argument whose elements share memory: it gets a copy.
  bool misreads_expanded = false;
  // It raises errors of values at the call on every device: the caller waits for it. Operators with
  // an argument `check_errors` do so if it is true.
  bool raises_at_call = false;
  // The elements that the CPU kernel accepts in its arguments; of an in-place form, those of the
  // functional one.
  Elements accepts = Elements::Zeros;
  Judges judges = Judges::Nothing;
  Warns warns = Warns::No;
  Layout layout = Layout::AsMeta;
  uint8_t like = 0;  // the argument that suggests the layout
  uint8_t laid_out = 1;  // the number of leading results that it applies to
  // The probability by which it, or its forward operator, drops numbers. Which ones, the provider
  // of the forward call alone knows.
  uint8_t drops_at = 0;
  // Corrects the shape of a call.
  void (*correct)(const Operator& op, const torch::jit::Stack& arguments, CallShape& shape) = nullptr;
  // The names of the arguments that it writes although the schema, which is older than alias
  // annotations, does not declare it; separated by blanks.
  std::string_view written_in_secret;
  // The operator whose CPU kernel serves this one, if torch has no CPU kernel of it.
  std::string_view on_cpu;
  std::string_view row;  // the name of the row in the book
};

// Return what is known of an operator, merged of the rows for its overload and for all its
// overloads.
Facts facts_of(const c10::OperatorName& name);

// Return the facts that only the code generator knows what to do with, each with the name of a row.
OUTBOARD_API std::span<const std::pair<std::string_view, std::string_view>> kernel_traits();

// Return what the row says, in words; empty without a row.
std::vector<std::string> described(const Facts& facts);

// Return true if the operator writes the argument, and its schema does not declare it.
bool writes_in_secret(const Facts& facts, std::string_view argument);

// Return the elements that the CPU kernel accepts; none if the accepted values depend on sizes. A
// call that is wrong whatever its values (`is_refused`) may be tried with values that do not suit
// its sizes either.
inline std::optional<Elements> harmless_elements(const Facts& facts, bool is_refused = false) {
  if (facts.judges == Judges::Values || (facts.judges == Judges::Sums && !is_refused)) {
    return std::nullopt;
  }
  return facts.accepts;
}

}  // namespace outboard

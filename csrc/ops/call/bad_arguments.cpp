// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/bad_arguments.h"

#include <c10/core/Scalar.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "ops/call/bad_indices.h"
#include "ops/call/call.h"
#include "ops/call/rule_arguments.h"

namespace outboard {

namespace {

bool is_integral(c10::ScalarType dtype) {
  return c10::isIntegralType(dtype, /*includeBool=*/true);
}

// ---- Numbers ----

bool is_bad_interval(const Arguments& args) {
  constexpr double kSurelyFinite = 65504;  // in float16; beyond it torch checks the dtype
  const double from = args.number(1, 0);
  const double to = args.number(2, 1);
  return is_integral(args.dtype(0)) || !(from <= to && from >= -kSurelyFinite && to <= kSurelyFinite);
}

// Return the integers that every element of a dtype can hold; for
// floating dtypes, those that are exact.
std::pair<int64_t, int64_t> range_of(c10::ScalarType dtype) {
  const auto exact = [](int digits) { return std::pair(-(int64_t{1} << digits), int64_t{1} << digits); };
  const auto all = [](auto zero) {
    return std::pair<int64_t, int64_t>(std::numeric_limits<decltype(zero)>::min(),
                                       std::numeric_limits<decltype(zero)>::max());
  };
  switch (dtype) {
    case c10::kBool:
      return {0, 1};
    case c10::kByte:
      return all(uint8_t{});
    case c10::kChar:
      return all(int8_t{});
    case c10::kShort:
      return all(int16_t{});
    case c10::kInt:
      return all(int32_t{});
    case c10::kLong:
      return all(int64_t{});
    case c10::kHalf:
      return exact(11);
    case c10::kBFloat16:
      return exact(8);
    case c10::kFloat:
      return exact(24);
    case c10::kDouble:
      return exact(53);
    default:
      return {0, -1};  // torch decides
  }
}

bool is_bad_range_of_integers(c10::ScalarType dtype, int64_t from, int64_t to) {
  const auto [lowest, highest] = range_of(dtype);
  return !(from < to && from >= lowest && to - 1 <= highest);
}

bool is_bad_range(const Arguments& args) {
  const int64_t from = args.integer(1);
  if (!args.has(2)) {
    return from < range_of(args.dtype(0)).first;
  }
  return is_bad_range_of_integers(args.dtype(0), from, args.integer(2));
}

bool is_bad_end(const Arguments& args) {
  return is_bad_range_of_integers(args.dtype(0), 0, args.integer(1));
}

bool divides_by_zero(const Arguments& args) {
  if (!args[1].isTensor() || !is_integral(args.dtype(0)) || !is_integral(args.dtype(1))) {
    return args[1].isInt() && args[1].toInt() == 0 && is_integral(args.dtype(0));
  }
  const at::Tensor& divisor = args.tensor(1);
  return divisor.is_cpu() && divisor.numel() == 1 && !divisor.item<bool>();
}

bool is_not_one_element(const Arguments& args) {
  return args.tensor(0).numel() != 1;
}

// Also refuses an exponent that is not a number.
bool is_bad_order(const Arguments& args) {
  return !(args.number(1, 1) >= 0);
}

bool is_bad_margin_order(const Arguments& args) {
  const double order = args[0].toScalar().toDouble();
  return order != 1 && order != 2;
}

bool is_bad_scalar_interval(const Arguments& args) {
  return !(args[0].toScalar().toDouble() <= args[1].toScalar().toDouble());
}

bool is_bad_norm(const Arguments& args) {
  return !(args[0].toScalar().toDouble() > 0 && args[1].toScalar().toDouble() >= 0);
}

// The CPU's kernel requires that the element type can hold the value. float16 has the smallest
// range.
bool is_bad_threshold(const Arguments& args) {
  return !(args.number(0, 0.5) >= 0 && args.number(0, 0.5) <= 65504);
}

bool is_bad_histogram_range(const Arguments& args) {
  const double least = args[0].toScalar().toDouble(), greatest = args[1].toScalar().toDouble();
  return !(least <= greatest && std::isfinite(least) && std::isfinite(greatest));
}

bool is_negative(const Arguments& args) {
  return !(args.number(1, 1) >= 0);
}

bool is_not_positive(const Arguments& args) {
  return !(args.number(1, 1) > 0);
}

bool is_bad_probability(const Arguments& args) {
  return !(args.number(1, 1) >= 0 && args.number(1, 1) <= 1);
}

bool is_bad_inner_probability(const Arguments& args) {
  return !(args.number(1, 0.5) > 0 && args.number(1, 0.5) < 1);
}

bool has_too_many_samples(const Arguments& args) {
  const at::Tensor& weights = args.tensor(0);
  const int64_t samples = args.integer(1);
  constexpr int64_t kMaxCategories = 1 << 24;
  return !c10::isFloatingType(args.dtype(0)) || samples <= 0 || weights.dim() == 0 ||
         weights.size(-1) > kMaxCategories || (!args[2].toBool() && samples > weights.size(-1));
}

bool is_integer_to_negative_power(const Arguments& args) {
  if (!args[0].isTensor() || !args[1].isScalar()) {
    return false;
  }
  const c10::Scalar exponent = args[1].toScalar();
  return is_integral(args.dtype(0)) && exponent.isIntegral(/*includeBool=*/true) && exponent.toLong() < 0;
}

bool has_boolean(const Arguments& args) {
  return args.dtype(0) == c10::kBool || args.dtype(1) == c10::kBool;
}

bool are_integral(const Arguments& args) {
  return is_integral(args.dtype(0)) && is_integral(args.dtype(1));
}

bool are_boolean(const Arguments& args) {
  return args.dtype(0) == c10::kBool && args.dtype(1) == c10::kBool;
}

// The gradient of a function that was applied in place, if its sign
// does not follow from the result.
bool slope_of_result_is_negative(const Arguments& args) {
  return args[1].toBool() && args[0].toScalar().toDouble() < 0;
}

// Sums with a factor: torch multiplies integers by integers, and only bools by bools.
bool factor_does_not_fit(const Arguments& args) {
  if (C10_LIKELY(args[2].isInt())) {
    return false;
  }
  const c10::Scalar alpha = args[2].toScalar();
  const auto is_all = [&](auto&& matches) {
    return matches(args.dtype(0)) && (!args[1].isTensor() || matches(args.dtype(1)));
  };
  if (alpha.isBoolean()) {
    return !is_all([](c10::ScalarType dtype) { return dtype == c10::kBool; });
  }
  return is_all(is_integral) && (args[1].isTensor() || args[1].toScalar().isIntegral(/*includeBool=*/true));
}

// ---- Element types ----

// Return true if a present argument has another dtype than the first; mm, convolutions and
// similar operators promote nothing.
template <size_t count>
bool dtypes_differ(const Arguments& args) {
  const c10::ScalarType dtype = args.dtype(0);
  for (size_t i = 1; i < count; ++i) {
    if (args.has_tensor(i) && args.dtype(i) != dtype) {
      return true;
    }
  }
  return false;
}

bool has_bad_class_indices(const Arguments& args) {
  const c10::ScalarType dtype = args.dtype(1);
  return (dtype != c10::kLong && dtype != c10::kByte) || (args.has_tensor(2) && args.dtype(2) != args.dtype(0));
}

bool has_bad_truth_type(const Arguments& args) {
  return args.dtype(0) != c10::kBool && args.dtype(0) != c10::kByte;
}

bool has_integral_type(const Arguments& args) {
  return is_integral(args.dtype(0));
}

bool has_complex_type(const Arguments& args) {
  return c10::isComplexType(args.dtype(0));
}

bool is_not_floating(const Arguments& args) {
  return !c10::isFloatingType(args.dtype(0));
}

bool is_boolean(const Arguments& args) {
  return args.dtype(0) == c10::kBool;
}

bool is_boolean_or_complex(const Arguments& args) {
  return args.dtype(0) == c10::kBool || has_complex_type(args);
}

bool is_boolean_or_unsigned(const Arguments& args) {
  return args.dtype(0) == c10::kBool || args.dtype(0) == c10::kByte;
}

bool is_bad_mask(const Arguments& args) {
  return args.dtype(0) != c10::kBool;
}

bool is_bad_index_type(const Arguments& args) {
  return args.dtype(0) != c10::kLong;
}

bool is_bad_complex_type(const Arguments& args) {
  return args.dtype(1) != c10::toComplexType(args.dtype(0));
}

bool is_bad_masked_fill(const Arguments& args) {
  return args.dtype(1) != c10::kBool ||
         (args[2].isScalar() && args[2].toScalar().isComplex() && !has_complex_type(args));
}

bool is_bad_approximation(const Arguments& args) {
  const std::string& name = args[0].toStringRef();
  return name != "none" && name != "tanh";
}

bool has_no_integral_types(const Arguments& args) {
  return !is_integral(args.dtype(0)) || (args.has_tensor(1) && !is_integral(args.dtype(1)));
}

bool has_no_integral_type(const Arguments& args) {
  return !is_integral(args.dtype(0));
}

bool has_boolean_or_no_integral_types(const Arguments& args) {
  return args.dtype(0) == c10::kBool || has_no_integral_types(args);
}

// ---- Shapes ----

bool reduces_nothing(const Arguments& args) {
  const at::Tensor& self = args.tensor(0);
  const int64_t dim = args.integer(1);
  return self.numel() == 0 && dim < self.dim() && dim >= -self.dim() && self.dim() > 0 && self.size(dim) == 0;
}

bool is_bad_dilation(const Arguments& args) {
  const auto dilation = args[0].toListRef();
  return std::any_of(dilation.begin(), dilation.end(), [](const c10::IValue& step) { return step.toInt() <= 0; });
}

bool has_no_elements(const Arguments& args) {
  return args.tensor(0).numel() == 0;
}

bool has_several_dimensions(const Arguments& args) {
  return args.tensor(0).dim() != 1;
}

// The other grid samplers' meta kernels check this themselves.
bool is_bad_grid(const Arguments& args) {
  const at::Tensor& input = args.tensor(0);
  const at::Tensor& grid = args.tensor(1);
  return input.dim() != 4 || grid.dim() != 4 || grid.size(3) != 2 || grid.size(0) != input.size(0) ||
         input.size(2) == 0 || input.size(3) == 0;
}

// ---- The table ----

// A row for an operator, for all its overloads and those of its in-place form that have these
// arguments; or for one overload. The predicates return true for arguments that torch refuses.
struct Row {
  std::string_view op;
  std::string_view args;
  bool (*is_bad)(const Arguments&);
  std::string_view in_book;
};

#define OB_ROW(op, args, is_bad, in_book) Row{op, args, is_bad, in_book},

// Numbers. One element of a tensor suffices to get the kernel's error.
constexpr Row kNumbers[] = {
#define OB_BAD_NUMBERS OB_ROW
#include <built/book.inc>
#undef OB_BAD_NUMBERS
};

// Shapes, and dtypes of one argument that must fit another's.
constexpr Row kArguments[] = {
#define OB_BAD_ARGUMENTS OB_ROW
#include <built/book.inc>
#undef OB_BAD_ARGUMENTS
};

// Dtypes that neither the CPU nor CUDA has kernels for.
constexpr Row kDtypes[] = {
#define OB_BAD_DTYPES OB_ROW
#include <built/book.inc>
#undef OB_BAD_DTYPES
};

#undef OB_ROW

bool names(const Row& row, const Operator& op) {
  if (row.op == op.name) {
    return true;
  }
  std::string_view base = op.handle.operator_name().name;
  base.remove_prefix(std::min(base.size(), std::string_view("aten::").size()));
  return row.op == base || (base.ends_with('_') && row.op == base.substr(0, base.size() - 1));
}

// Bind a row to an operator; nothing if the row names an argument that the overload lacks.
std::optional<BadArgumentRule> bind(const Row& row, const Operator& op) {
  BadArgumentRule rule{row.is_bad, {}, StandIn::Whole, false, row.args, row.in_book};
  const auto& declared = op.handle.schema().arguments();
  size_t count = 0;
  for (std::string_view rest = row.args; !rest.empty(); ++count) {
    const std::string_view name = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    const auto position =
        std::find_if(declared.begin(), declared.end(), [&](const auto& arg) { return arg.name() == name; });
    if (position == declared.end()) {
      return std::nullopt;
    }
    rule.index[count] = static_cast<uint8_t>(position - declared.begin());
  }
  return rule;
}

template <size_t count>
void add_rules(const Row (&rows)[count], const Operator& op, StandIn stand_in, bool is_about_dtypes,
               std::vector<BadArgumentRule>& rules) {
  for (const Row& row : rows) {
    if (!names(row, op)) {
      continue;
    }
    if (std::optional<BadArgumentRule> rule = bind(row, op)) {
      rule->stand_in = stand_in;
      rule->is_about_dtypes = is_about_dtypes;
      rules.push_back(*rule);
    }
  }
}

}  // namespace

bool may_overflow(const c10::Scalar& number, c10::ScalarType dtype) {
  if (!is_integral(dtype)) {
    const double most = dtype == c10::kHalf ? 65504 : dtype == c10::kDouble ? INFINITY : 0x1.FEp127;  // of bfloat16
    const double size = number.isComplex() ? 0 : std::abs(number.toDouble());
    return std::isfinite(size) && size > most;
  }
  const auto [least, highest] = range_of(dtype);
  const int64_t lowest = dtype == c10::kByte ? -highest : least;  // negative numbers wrap
  if (number.isIntegral(/*includeBool=*/true)) {
    return number.type() == c10::kUInt64 || number.toLong() < lowest || number.toLong() > highest;
  }
  return !(number.toDouble() >= static_cast<double>(lowest) && number.toDouble() <= static_cast<double>(highest));
}

std::vector<BadArgumentRule> bad_argument_rules(const Operator& op) {
  std::vector<BadArgumentRule> rules;
  // Overloads for mixed dtypes support what the others lack.
  if (op.name.starts_with("aten::") && op.handle.operator_name().overload_name.find("dtype") == std::string::npos) {
    add_rules(kNumbers, op, StandIn::Element, /*is_about_dtypes=*/false, rules);
    add_rules(kArguments, op, StandIn::Whole, /*is_about_dtypes=*/false, rules);
    add_rules(kDtypes, op, StandIn::Whole, /*is_about_dtypes=*/true, rules);
  }
  return rules;
}

void check_bad_arguments(const BadArgumentRule& rule, const Call& call) {
  if (C10_LIKELY(call.has_sparse() || !rule.is_bad(Arguments(rule, call)))) {
    return;
  }
  if (rule.is_about_dtypes && call.op().native.load(std::memory_order_acquire) != nullptr) {
    return;
  }
  check_on_stand_ins(call, rule.stand_in);
}

}  // namespace outboard

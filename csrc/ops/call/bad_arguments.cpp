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

bool no_interval(const Arguments& args) {
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

bool no_integers(c10::ScalarType dtype, int64_t from, int64_t to) {
  const auto [lowest, highest] = range_of(dtype);
  return !(from < to && from >= lowest && to - 1 <= highest);
}

bool no_integers_from(const Arguments& args) {
  const int64_t from = args.integer(1);
  if (!args.has(2)) {
    return from < range_of(args.dtype(0)).first;
  }
  return no_integers(args.dtype(0), from, args.integer(2));
}

bool no_integers_to(const Arguments& args) {
  return no_integers(args.dtype(0), 0, args.integer(1));
}

bool divides_by_zero(const Arguments& args) {
  if (!args[1].isTensor() || !is_integral(args.dtype(0)) || !is_integral(args.dtype(1))) {
    return args[1].isInt() && args[1].toInt() == 0 && is_integral(args.dtype(0));
  }
  const at::Tensor& divisor = args.tensor(1);
  return divisor.is_cpu() && divisor.numel() == 1 && !divisor.item<bool>();
}

// Also refuses an exponent that is not a number.
bool no_order(const Arguments& args) {
  return !(args.number(1, 1) >= 0);
}

bool no_margin_order(const Arguments& args) {
  const double order = args[0].toScalar().toDouble();
  return order != 1 && order != 2;
}

bool no_scalar_interval(const Arguments& args) {
  return !(args[0].toScalar().toDouble() <= args[1].toScalar().toDouble());
}

bool no_norm(const Arguments& args) {
  return !(args[0].toScalar().toDouble() > 0 && args[1].toScalar().toDouble() >= 0);
}

// The CPU's kernel requires that the element type holds the value; float16 holds the least.
bool no_threshold(const Arguments& args) {
  return !(args.number(0, 0.5) >= 0 && args.number(0, 0.5) <= 65504);
}

bool no_range(const Arguments& args) {
  const double least = args[0].toScalar().toDouble(), greatest = args[1].toScalar().toDouble();
  return !(least <= greatest && std::isfinite(least) && std::isfinite(greatest));
}

bool negative(const Arguments& args) {
  return !(args.number(1, 1) >= 0);
}

bool not_positive(const Arguments& args) {
  return !(args.number(1, 1) > 0);
}

bool no_probability(const Arguments& args) {
  return !(args.number(1, 1) >= 0 && args.number(1, 1) <= 1);
}

bool no_inner_probability(const Arguments& args) {
  return !(args.number(1, 0.5) > 0 && args.number(1, 0.5) < 1);
}

bool too_many_samples(const Arguments& args) {
  const at::Tensor& weights = args.tensor(0);
  const int64_t samples = args.integer(1);
  constexpr int64_t kMostCategories = 1 << 24;
  return !c10::isFloatingType(args.dtype(0)) || samples <= 0 || weights.dim() == 0 ||
         weights.size(-1) > kMostCategories || (!args[2].toBool() && samples > weights.size(-1));
}

bool integer_to_negative_power(const Arguments& args) {
  if (!args[0].isTensor() || !args[1].isScalar()) {
    return false;
  }
  const c10::Scalar exponent = args[1].toScalar();
  return is_integral(args.dtype(0)) && exponent.isIntegral(/*includeBool=*/true) && exponent.toLong() < 0;
}

bool any_boolean(const Arguments& args) {
  return args.dtype(0) == c10::kBool || args.dtype(1) == c10::kBool;
}

bool all_integral(const Arguments& args) {
  return is_integral(args.dtype(0)) && is_integral(args.dtype(1));
}

bool all_boolean(const Arguments& args) {
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

bool no_class_indices(const Arguments& args) {
  const c10::ScalarType dtype = args.dtype(1);
  return (dtype != c10::kLong && dtype != c10::kByte) || (args.has_tensor(2) && args.dtype(2) != args.dtype(0));
}

bool no_truth_values(const Arguments& args) {
  return args.dtype(0) != c10::kBool && args.dtype(0) != c10::kByte;
}

bool integral(const Arguments& args) {
  return is_integral(args.dtype(0));
}

bool complex(const Arguments& args) {
  return c10::isComplexType(args.dtype(0));
}

bool not_floating(const Arguments& args) {
  return !c10::isFloatingType(args.dtype(0));
}

bool boolean(const Arguments& args) {
  return args.dtype(0) == c10::kBool;
}

bool boolean_or_complex(const Arguments& args) {
  return args.dtype(0) == c10::kBool || complex(args);
}

bool boolean_or_unsigned(const Arguments& args) {
  return args.dtype(0) == c10::kBool || args.dtype(0) == c10::kByte;
}

bool no_mask(const Arguments& args) {
  return args.dtype(0) != c10::kBool;
}

bool not_of_indices(const Arguments& args) {
  return args.dtype(0) != c10::kLong;
}

bool not_of_the_parts(const Arguments& args) {
  return args.dtype(1) != c10::toComplexType(args.dtype(0));
}

bool masks_badly(const Arguments& args) {
  return args.dtype(1) != c10::kBool || (args[2].isScalar() && args[2].toScalar().isComplex() && !complex(args));
}

bool no_approximation(const Arguments& args) {
  const std::string& name = args[0].toStringRef();
  return name != "none" && name != "tanh";
}

bool not_integral(const Arguments& args) {
  return !is_integral(args.dtype(0)) || (args.has_tensor(1) && !is_integral(args.dtype(1)));
}

bool not_integral_alone(const Arguments& args) {
  return !is_integral(args.dtype(0));
}

bool boolean_or_not_integral(const Arguments& args) {
  return args.dtype(0) == c10::kBool || not_integral(args);
}

// ---- Shapes ----

bool reduces_nothing(const Arguments& args) {
  const at::Tensor& self = args.tensor(0);
  const int64_t dim = args.integer(1);
  return self.numel() == 0 && dim < self.dim() && dim >= -self.dim() && self.dim() > 0 && self.size(dim) == 0;
}

bool no_dilation(const Arguments& args) {
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
bool no_grid(const Arguments& args) {
  const at::Tensor& input = args.tensor(0);
  const at::Tensor& grid = args.tensor(1);
  return input.dim() != 4 || grid.dim() != 4 || grid.size(3) != 2 || grid.size(0) != input.size(0) ||
         input.size(2) == 0 || input.size(3) == 0;
}

// ---- The table ----

// A line for an operator, for all its overloads and those of its in-place form that have these
// arguments; or for one overload.
struct Row {
  std::string_view op;
  std::string_view args;
  bool (*is_bad)(const Arguments&);
  int line = __builtin_LINE();  // of the row, if the row names its type
};

// Numbers. One element of a tensor suffices to get the kernel's error.
constexpr Row kNumbers[] = {
    Row{"add", "self other alpha", factor_does_not_fit},
    Row{"bernoulli", "self p", no_probability},
    Row{"cauchy", "self sigma", not_positive},
    Row{"elu_backward", "alpha is_result", slope_of_result_is_negative},
    Row{"div", "self other rounding_mode", divides_by_zero},
    Row{"exponential", "self lambd", not_positive},
    Row{"floor_divide", "self other", divides_by_zero},
    Row{"fmod", "self other", divides_by_zero},
    Row{"huber_loss", "self delta", not_positive},
    Row{"geometric", "self p", no_inner_probability},
    Row{"histc", "min max", no_range},
    Row{"leaky_relu_backward", "negative_slope self_is_result", slope_of_result_is_negative},
    Row{"log_normal", "self std", not_positive},
    Row{"normal", "mean std", negative},
    Row{"pow", "self exponent", integer_to_negative_power},
    Row{"aten::random_.from", "self from to", no_integers_from},
    Row{"aten::random_.to", "self to", no_integers_to},
    Row{"remainder", "self other", divides_by_zero},
    Row{"rrelu_with_noise", "lower upper", no_scalar_interval},
    Row{"rsub", "self other alpha", factor_does_not_fit},
    Row{"smooth_l1_loss", "self beta", negative},
    Row{"rsub", "self other", any_boolean},
    Row{"softshrink", "lambd", no_threshold},
    Row{"sub", "self other alpha", factor_does_not_fit},
    Row{"sub", "self other", any_boolean},
    Row{"uniform", "self from to", no_interval},
};

// Shapes, and dtypes of one argument that must fit another's.
constexpr Row kArguments[] = {
    Row{"_cdist_forward", "x1 p", no_order},
    Row{"_index_put_impl_", "self indices values accumulate", puts_at_indices_badly},
    Row{"addbmm", "self batch1 batch2", dtypes_differ<3>},
    Row{"addmm", "self mat1 mat2", dtypes_differ<3>},
    Row{"addmv", "self mat vec", dtypes_differ<3>},
    Row{"all", "out", no_truth_values},
    Row{"aminmax", "self min max", dtypes_differ<3>},
    Row{"any", "out", no_truth_values},
    Row{"baddbmm", "self batch1 batch2", dtypes_differ<3>},
    Row{"binary_cross_entropy", "self target weight", dtypes_differ<3>},
    Row{"bmm", "self mat2", dtypes_differ<2>},
    Row{"bucketize", "boundaries", has_several_dimensions},
    Row{"complex", "real imag", dtypes_differ<2>},
    Row{"complex", "real out", not_of_the_parts},
    Row{"convolution", "dilation", no_dilation},
    Row{"convolution", "input weight bias", dtypes_differ<3>},
    Row{"dot", "self tensor", dtypes_differ<2>},
    Row{"gelu", "approximate", no_approximation},
    Row{"grid_sampler_2d_backward", "input grid", no_grid},
    Row{"index", "self indices", indexes_badly},
    Row{"index_copy", "self index source", copies_badly},
    Row{"index_fill", "self index value", fills_badly},
    Row{"index_reduce", "reduce", no_reduction_into},
    Row{"index_reduce", "self dim index source", reduces_into_badly},
    Row{"index_select", "self index", selects_badly},
    Row{"linear", "input weight bias", dtypes_differ<3>},
    Row{"masked_fill", "self mask value", masks_badly},
    Row{"masked_scatter", "mask", no_mask},
    Row{"aten::max", "self", has_no_elements},
    Row{"max", "self dim", reduces_nothing},
    Row{"median", "self dim", reduces_nothing},
    Row{"aten::min", "self", has_no_elements},
    Row{"min", "self dim", reduces_nothing},
    Row{"mm", "self mat2", dtypes_differ<2>},
    Row{"mode", "self dim", reduces_nothing},
    Row{"multi_margin_loss", "p", no_margin_order},
    Row{"multi_margin_loss_backward", "p", no_margin_order},
    Row{"multinomial", "out", not_of_indices},
    Row{"multinomial", "self num_samples replacement", too_many_samples},
    Row{"nanmedian", "self dim", reduces_nothing},
    Row{"neg", "self out", dtypes_differ<2>},
    Row{"nll_loss2d_forward", "self target weight", no_class_indices},
    Row{"nll_loss_forward", "self target weight", no_class_indices},
    Row{"polar", "abs angle", dtypes_differ<2>},
    Row{"put", "self index source", puts_badly},
    Row{"renorm", "p maxnorm", no_norm},
    Row{"vdot", "self other", dtypes_differ<2>},
};

// Dtypes that neither the CPU nor CUDA has kernels for.
constexpr Row kDtypes[] = {
    Row{"_log_softmax", "self", integral},
    Row{"_softmax", "self", integral},
    Row{"aten::bernoulli", "self", integral},
    Row{"aten::bernoulli.out", "self", integral},
    Row{"aten::bernoulli_.Tensor", "p", integral},
    Row{"aten::bernoulli_.float", "self", complex},
    Row{"bitwise_and", "self other", not_integral},
    Row{"bitwise_left_shift", "self other", boolean_or_not_integral},
    Row{"bitwise_not", "self", not_integral_alone},
    Row{"bitwise_or", "self other", not_integral},
    Row{"bitwise_right_shift", "self other", boolean_or_not_integral},
    Row{"bitwise_xor", "self other", not_integral},
    Row{"abs", "self", boolean},
    Row{"addcdiv", "tensor1 tensor2", all_integral},
    Row{"addcmul", "tensor1 tensor2", all_boolean},
    Row{"atan2", "self", complex},
    Row{"avg_pool2d", "self", integral},
    Row{"cauchy", "self", not_floating},
    Row{"ceil", "self", boolean_or_complex},
    Row{"clamp", "self", boolean_or_complex},
    Row{"cholesky", "self", integral},
    Row{"cholesky_inverse", "self", integral},
    Row{"copysign", "self", complex},
    Row{"erfinv", "self", complex},
    Row{"exponential", "self", not_floating},
    Row{"clamp_max", "self max", all_boolean},
    Row{"clamp_min", "self min", all_boolean},
    Row{"floor", "self", boolean_or_complex},
    Row{"floor_divide", "self other", all_boolean},
    Row{"fmax", "self", complex},
    Row{"fmin", "self", complex},
    Row{"fmod", "self", boolean_or_complex},
    Row{"frac", "self", integral},
    Row{"gcd", "self other", boolean_or_not_integral},
    Row{"gelu", "self", integral},
    Row{"geometric", "self", boolean_or_complex},
    Row{"hardtanh", "self", boolean_or_unsigned},
    Row{"heaviside", "self", complex},
    Row{"hypot", "self", boolean_or_complex},
    Row{"isin", "element test_elements", any_boolean},
    Row{"isin", "elements test_element", any_boolean},
    Row{"isin", "elements test_elements", any_boolean},
    Row{"lcm", "self other", boolean_or_not_integral},
    Row{"leaky_relu", "self", integral},
    Row{"lerp", "self", integral},
    Row{"log_normal", "self", not_floating},
    Row{"aten::logit_", "self", integral},
    Row{"max", "self", complex},
    Row{"maximum", "self", complex},
    Row{"min", "self", complex},
    Row{"minimum", "self", complex},
    Row{"nextafter", "self", boolean_or_complex},
    Row{"normal", "self", integral},
    Row{"random", "self", complex},
    Row{"relu", "self", boolean_or_complex},
    Row{"remainder", "self", boolean_or_complex},
    Row{"sign", "self", complex},
    Row{"silu", "self", integral},
    Row{"sort", "self", complex},
    Row{"trunc", "self", boolean_or_complex},
    Row{"var", "self", integral},
};

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
  BadArgumentRule rule{row.is_bad, {}, StandIn::Whole, false, row.args, row.line};
  const auto& declared = op.handle.schema().arguments();
  size_t count = 0;
  for (std::string_view rest = row.args; !rest.empty(); ++count) {
    const std::string_view name = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    const auto found =
        std::find_if(declared.begin(), declared.end(), [&](const auto& arg) { return arg.name() == name; });
    if (found == declared.end()) {
      return std::nullopt;
    }
    rule.index[count] = static_cast<uint8_t>(found - declared.begin());
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
  rehearse(call, rule.stand_in);
}

}  // namespace outboard

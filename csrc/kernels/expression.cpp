// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/expression.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>
#include <utility>

namespace outboard::kernels {

namespace {

constexpr size_t kMaxDepth = 16;  // values that wait for their operation

template <class Number>
bool read_number(const char* begin, const char* end, Number* out_number) {
  const auto [last, error] = std::from_chars(begin, end, *out_number);
  return error == std::errc() && last == end && begin != end;
}

}  // namespace

Expression::Expression(const std::string& text) : text_(text) {
  size_t depth = 0;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const Step step = parse(word);
    const bool is_value = step.operation == Operation::Number || step.operation == Operation::Value;
    TORCH_CHECK_VALUE(is_value || depth >= 2, "the formula '", text, "' has too few values for '", word, "'");
    depth = is_value ? depth + 1 : depth - 1;
    TORCH_CHECK_VALUE(depth <= kMaxDepth, "the formula '", text, "' has more than ", kMaxDepth,
                      " values before an operation");
    steps_.push_back(step);
  }
  TORCH_CHECK_VALUE(depth == 1, "the formula '", text, "' returns ", depth, " values, not one");
}

Expression::Step Expression::parse(const std::string& word) {
  static constexpr std::pair<const char*, Operation> kOperations[] = {
      {"add", Operation::Add},         {"sub", Operation::Sub},
      {"mul", Operation::Mul},         {"floordiv", Operation::FloorDiv},
      {"ceildiv", Operation::CeilDiv}, {"mod", Operation::Mod},
      {"min", Operation::Min},         {"max", Operation::Max},
      {"eq", Operation::Eq},           {"ne", Operation::Ne},
      {"lt", Operation::Lt},           {"le", Operation::Le},
      {"gt", Operation::Gt},           {"ge", Operation::Ge},
      {"and", Operation::And},         {"or", Operation::Or},
  };
  for (const auto& [name, operation] : kOperations) {
    if (word == name) {
      return {operation, 0};
    }
  }
  const char* const end = word.data() + word.size();
  Step step{Operation::Number, 0};
  if (read_number(word.data(), end, &step.number)) {
    return step;
  }
  uint16_t value = 0;
  TORCH_CHECK_VALUE(word[0] == 'a' && read_number(word.data() + 1, end, &value), "the formula '", text_,
                    "' has the word '", word, "', which is not a number, a value such as a0, or an operation");
  values_.push_back(value);
  return {Operation::Value, value};
}

int64_t Expression::run(c10::ArrayRef<int64_t> values) const {
  int64_t stack[kMaxDepth];
  size_t depth = 0;
  for (const Step& step : steps_) {
    switch (step.operation) {
      case Operation::Number:
        stack[depth++] = step.number;
        break;
      case Operation::Value:
        stack[depth++] = values[static_cast<size_t>(step.number)];
        break;
      default:
        --depth;
        stack[depth - 1] = apply(step.operation, stack[depth - 1], stack[depth]);
    }
  }
  return stack[0];
}

int64_t Expression::apply(Operation operation, int64_t left, int64_t right) const {
  switch (operation) {
    case Operation::Min:
      return std::min(left, right);
    case Operation::Max:
      return std::max(left, right);
    case Operation::Eq:
      return left == right ? 1 : 0;
    case Operation::Ne:
      return left != right ? 1 : 0;
    case Operation::Lt:
      return left < right ? 1 : 0;
    case Operation::Le:
      return left <= right ? 1 : 0;
    case Operation::Gt:
      return left > right ? 1 : 0;
    case Operation::Ge:
      return left >= right ? 1 : 0;
    case Operation::And:
      return left != 0 && right != 0 ? 1 : 0;
    case Operation::Or:
      return left != 0 || right != 0 ? 1 : 0;
    default:
      return calculate(operation, left, right);
  }
}

int64_t Expression::calculate(Operation operation, int64_t left, int64_t right) const {
  int64_t result = 0;
  bool overflows = false;
  switch (operation) {
    case Operation::Add:
      overflows = __builtin_add_overflow(left, right, &result);
      break;
    case Operation::Sub:
      overflows = __builtin_sub_overflow(left, right, &result);
      break;
    case Operation::Mul:
      overflows = __builtin_mul_overflow(left, right, &result);
      break;
    default: {
      TORCH_CHECK_VALUE(right != 0, "the formula '", text_, "' divides by zero");
      if (right == -1) {  // the only division that may overflow
        overflows = __builtin_sub_overflow(int64_t{0}, left, &result);
        result = operation == Operation::Mod ? 0 : result;
        overflows = overflows && operation != Operation::Mod;
        break;
      }
      const int64_t rest = left % right;
      const bool is_below = rest != 0 && (rest < 0) != (right < 0);  // the quotient is truncated towards zero
      result = operation == Operation::Mod        ? (is_below ? rest + right : rest)
               : operation == Operation::FloorDiv ? left / right - (is_below ? 1 : 0)
                                                  : left / right + (rest != 0 && !is_below ? 1 : 0);
    }
  }
  TORCH_CHECK_VALUE(!overflows, "the formula '", text_, "' overflows 64 bits");
  return result;
}

}  // namespace outboard::kernels

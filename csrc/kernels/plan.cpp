// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/plan.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "kernels/dtypes.h"

namespace outboard::kernels {

namespace {

// More than any operator needs, but small enough that a text cannot exhaust the process's memory.
constexpr size_t kMaxText = size_t{1} << 20;
constexpr size_t kMaxLines = 10000;
constexpr size_t kMaxItems = 4096;  // in a list
constexpr uint32_t kMaxRank = 64;   // of torch's tensors
constexpr uint32_t kMaxIndex = 65535;

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == std::string_view::npos ? std::string_view()
                                         : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

}  // namespace

// Reads a text line by line. Its errors name the line.
class PlanReader {
 public:
  PlanReader(Plan& plan, c10::ArrayRef<ArgumentKinds> kernels) : plan_(plan), kernels_(kernels) {}

  void read(std::string_view text) {
    require(text.size() <= kMaxText, "the text is longer than ", kMaxText, " bytes");
    while (!text.empty()) {
      const size_t end = text.find('\n');
      rest_ = text.substr(0, end);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
      require(++line_ <= kMaxLines, "there are more than ", kMaxLines, " lines");
      read_line();
    }
    require(line_ > 0, "the text is empty");
    require(!is_repeated_, "a 'repeat' has no 'end'");
  }

 private:
  template <typename... Parts>
  void require(bool holds, const Parts&... parts) const {
    TORCH_CHECK_VALUE(holds, "line ", line_, " of a plan: ", parts...);
  }

  void read_line() {
    const std::string word(next_word());
    if (line_ == 1) {
      require(word == "plan" && next_word() == "1", "a plan begins with 'plan 1'");
    } else if (word == "value") {
      read_value();
    } else if (word == "guard") {
      require(plan_.steps_.empty(), "guards must come before the steps");
      plan_.guards_.push_back(formula(std::exchange(rest_, {})));
    } else if (word == "return") {
      read_return();
    } else {
      require(plan_.returns_.empty(), "steps must come before returns");
      read_step(word);
    }
    require(trim(rest_).empty(), "'", rest_, "' is unexpected");
  }

  void read_value() {
    require(plan_.guards_.empty() && plan_.steps_.empty() && plan_.returns_.empty(),
            "values must come before guards, steps and returns");
    const std::string_view source = next_word();
    PlanValue value{};
    if (source == "size" || source == "stride") {
      value.source = source == "size" ? PlanValue::Source::Size : PlanValue::Source::Stride;
      value.argument = next_index(kMaxIndex);
      value.dimension = next_index(kMaxRank - 1);
    } else if (source == "element") {
      value.source = PlanValue::Source::Element;
      value.argument = next_index(kMaxIndex);
      value.dimension = next_index(kMaxIndex);
    } else {
      require(source == "number", "'", source, "' is not a size, stride, number or element");
      value.source = PlanValue::Source::Number;
      value.argument = next_index(kMaxIndex);
    }
    plan_.values_.push_back(value);
  }

  void read_step(const std::string& word) {
    require(!is_repeated_ || word == "launch" || word == "end", "only launches can be repeated");
    if (word == "end") {
      require(is_repeated_, "there is no 'repeat' before this 'end'");
      is_repeated_ = false;
      return;
    }
    PlanStep step{};
    if (word == "number") {
      step.kind = PlanStep::Kind::Number;
      step.index = next_index(kMaxIndex);
      step.dtype = next_dtype();
      freed_.push_back(false);
    } else if (word == "seed") {
      step.kind = PlanStep::Kind::Seed;
      freed_.push_back(false);
    } else if (word == "allocate") {
      step.kind = PlanStep::Kind::Allocate;
      step.dtype = next_dtype();
      read_layout(step);
      freed_.push_back(false);
    } else if (word == "view") {
      step.kind = PlanStep::Kind::View;
      step.target = tensor(next_word());
      if (!trim(rest_).starts_with('[')) {
        step.dtype = next_dtype();
      }
      read_layout(step);
      step.formulas.push_back(formula(std::exchange(rest_, {})));
      freed_.push_back(false);
    } else if (word == "launch") {
      read_launch(step);
    } else if (word == "call") {
      read_call(step);
    } else if (word == "copy") {
      step.kind = PlanStep::Kind::Copy;
      step.target = tensor(next_word());
      require(!step.target->is_buffer, "a copy must write to a tensor of the call");
      step.source = tensor(next_word());
    } else if (word == "repeat") {
      step.kind = PlanStep::Kind::Repeat;
      step.formulas.push_back(formula(std::exchange(rest_, {})));
      repeat_ = plan_.steps_.size();
      is_repeated_ = true;
    } else {
      require(word == "free", "there is no step '", word, "'");
      step.kind = PlanStep::Kind::Free;
      step.target = tensor(next_word());
      require(step.target->is_buffer, "a plan cannot free a tensor of the call");
      freed_[step.target->index] = true;
    }
    plan_.steps_.push_back(std::move(step));
  }

  void read_layout(PlanStep& step) {
    for (const std::string_view size : next_list()) {
      step.formulas.push_back(formula(size));
    }
    step.rank = static_cast<uint32_t>(step.formulas.size());
    for (const std::string_view stride : next_list()) {
      step.formulas.push_back(formula(stride));
    }
    require(step.rank <= kMaxRank && step.formulas.size() == 2 * step.rank, "there are ", step.rank, " sizes and ",
            step.formulas.size() - step.rank, " strides");
  }

  void read_launch(PlanStep& step) {
    step.kind = PlanStep::Kind::Launch;
    if (is_repeated_) {
      ++plan_.steps_[repeat_].index;
    }
    step.index = next_index(kMaxIndex);
    require(step.index < kernels_.size(), "there are only ", kernels_.size(), " kernels");
    const ArgumentKinds& kinds = kernels_[step.index];
    const std::vector<std::string_view> items = next_list();
    require(items.size() == kinds.size(), "the kernel takes ", kinds.size(), " arguments, not ", items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      PlanArgument argument{};
      if (takes_tensor(kinds[i])) {
        argument.kind = PlanArgument::Kind::Tensor;
        argument.tensors.push_back(tensor(items[i]));
      } else {
        require(kinds[i] == ArgumentKind::Int64 || kinds[i] == ArgumentKind::Int32, "argument ", i,
                " of the kernel is not an integer");
        if (is_repeated_ && items[i] == "turn") {
          argument.kind = PlanArgument::Kind::RepeatIndex;
          step.arguments.push_back(std::move(argument));
          continue;
        }
        argument.kind = PlanArgument::Kind::Number;
        argument.numbers = 1;
        step.formulas.push_back(formula(items[i]));
      }
      step.arguments.push_back(std::move(argument));
    }
  }

  void read_call(PlanStep& step) {
    step.kind = PlanStep::Kind::Call;
    step.index = next_index(kMaxRank);
    step.op = std::string(next_word());
    require(step.op.find("::") != std::string::npos, "'", step.op, "' is not an operator");
    for (const std::string_view item : next_list()) {
      step.arguments.push_back(read_argument(item, step));
    }
    freed_.resize(freed_.size() + step.index, false);
  }

  PlanArgument read_argument(std::string_view item, PlanStep& step) {
    PlanArgument argument{};
    if (item == "none") {
      argument.kind = PlanArgument::Kind::None;
    } else if (item == "true" || item == "false") {
      argument.kind = PlanArgument::Kind::Bool;
      argument.real = item == "true" ? 1 : 0;
    } else if (take(item, "real ")) {
      argument.kind = PlanArgument::Kind::Real;
      argument.real = real(item);
    } else if (take(item, "numbers")) {
      argument.kind = PlanArgument::Kind::Numbers;
      for (const std::string_view number : split(item, ';')) {
        step.formulas.push_back(formula(number));
        ++argument.numbers;
      }
    } else if (take(item, "tensors")) {
      argument.kind = PlanArgument::Kind::Tensors;
      for (const std::string_view text : split(item, ';')) {
        argument.tensors.push_back(tensor(text));
      }
    } else if (is_tensor(item)) {
      argument.kind = PlanArgument::Kind::Tensor;
      argument.tensors.push_back(tensor(item));
    } else {
      argument.kind = PlanArgument::Kind::Number;
      argument.numbers = 1;
      step.formulas.push_back(formula(item));
    }
    return argument;
  }

  void read_return() {
    PlanReturn returned;
    const std::string_view text = trim(rest_);
    if (text == "none") {
      rest_ = {};
    } else if (take(rest_, " number ")) {
      returned.is_number = true;
      returned.formulas.push_back(formula(std::exchange(rest_, {})));
    } else {
      returned.is_list = !text.empty() && text[0] == '[';
      for (const std::string_view item : returned.is_list ? next_list() : std::vector<std::string_view>{next_word()}) {
        returned.buffers.push_back(tensor(item));
        require(returned.buffers.back().is_buffer,
                "a plan returns buffers only, because the schema says which arguments are returned");
      }
    }
    plan_.returns_.push_back(std::move(returned));
  }

  // Words and lists.

  std::string_view next_word() {
    rest_ = trim(rest_);
    const size_t end = std::min(rest_.find(' '), rest_.size());
    const std::string_view word = rest_.substr(0, end);
    require(!word.empty(), "a word is missing at the end");
    rest_.remove_prefix(end);
    return word;
  }

  // "[a, b]"
  std::vector<std::string_view> next_list() {
    rest_ = trim(rest_);
    const size_t end = rest_.find(']');
    require(!rest_.empty() && rest_[0] == '[' && end != std::string_view::npos, "a list in brackets is missing");
    const std::string_view inside = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return split(inside, ',');
  }

  std::vector<std::string_view> split(std::string_view text, char separator) const {
    std::vector<std::string_view> items;
    if (trim(text).empty()) {
      return items;
    }
    for (;;) {
      const size_t end = text.find(separator);
      items.push_back(trim(text.substr(0, end)));
      require(!items.back().empty() && items.size() <= kMaxItems, "a list has an empty item, or too many items");
      if (end == std::string_view::npos) {
        return items;
      }
      text.remove_prefix(end + 1);
    }
  }

  static bool take(std::string_view& text, std::string_view prefix) {
    if (!text.starts_with(prefix)) {
      return false;
    }
    text.remove_prefix(prefix.size());
    return true;
  }

  bool parse_index(std::string_view word, uint32_t* out_index) const {
    const auto [last, error] = std::from_chars(word.data(), word.data() + word.size(), *out_index);
    return error == std::errc() && last == word.data() + word.size();
  }

  uint32_t next_index(uint32_t most) {
    const std::string_view word = next_word();
    uint32_t index = 0;
    require(parse_index(word, &index) && index <= most, "'", word, "' is not a number from 0 to ", most);
    return index;
  }

  c10::ScalarType next_dtype() {
    const std::string_view word = next_word();
    const c10::ScalarType dtype = dtype_named(word);
    require(dtype != c10::ScalarType::Undefined, "'", word, "' is not a dtype");
    return dtype;
  }

  double real(std::string_view text) const {
    const bool is_negative = take(text, "-");
    if (text == "inf" || text == "nan") {
      const double number =
          text == "inf" ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
      return is_negative ? -number : number;
    }
    require(take(text, "0x"), "a real number must be hexadecimal, such as 0x1.8p+1");
    double number = 0;
    const auto [last, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::hex);
    require(error == std::errc() && last == text.data() + text.size(), "'", text, "' is not a real number");
    return is_negative ? -number : number;
  }

  Expression formula(std::string_view text) const {
    try {
      Expression expression{std::string(trim(text))};
      for (const size_t value : expression.values()) {
        require(value < plan_.values_.size(), "the formula '", expression.text(), "' reads a", value,
                ", but there are ", plan_.values_.size(), " values");
      }
      return expression;
    } catch (const c10::ValueError& error) {
      const std::string message = error.what_without_backtrace();
      TORCH_CHECK_VALUE(false,
                        message.starts_with("line ") ? "" : "line " + std::to_string(line_) + " of a plan: ", message);
    }
  }

  static bool is_tensor(std::string_view word) {
    return word.size() > 1 && (word[0] == 't' || word[0] == 'b') && word[1] >= '0' && word[1] <= '9';
  }

  PlanTensor tensor(std::string_view word) const {
    uint32_t index = 0;
    require(is_tensor(word) && parse_index(word.substr(1), &index) && index <= kMaxIndex, "'", word,
            "' is not a tensor such as t0 or b0");
    const bool is_buffer = word[0] == 'b';
    require(!is_buffer || (index < freed_.size() && !freed_[index]), "there is no buffer ", word,
            " here: no earlier step created it, or it was freed");
    return {is_buffer, index};
  }

  Plan& plan_;
  c10::ArrayRef<ArgumentKinds> kernels_;
  std::string_view rest_;
  size_t line_ = 0;
  std::vector<bool> freed_;  // by buffer
  bool is_repeated_ = false;  // the next step is
  size_t repeat_ = 0;         // by the step of this index
};

Plan::Plan(std::string_view text, c10::ArrayRef<ArgumentKinds> kernels) {
  PlanReader(*this, kernels).read(text);
}

bool Plan::holds(c10::ArrayRef<int64_t> values) const {
  try {
    return std::all_of(guards_.begin(), guards_.end(),
                       [values](const Expression& guard) { return guard.evaluate(values) != 0; });
  } catch (const c10::ValueError&) {
    return false;  // overflow or division by zero: the guard does not hold
  }
}

std::vector<int64_t> Plan::numbers(c10::ArrayRef<int64_t> values) const {
  std::vector<int64_t> result;
  const auto add = [&](const std::vector<Expression>& formulas) {
    for (const Expression& formula : formulas) {
      result.push_back(formula.evaluate(values));
    }
  };
  for (const PlanStep& step : steps_) {
    add(step.formulas);
  }
  for (const PlanReturn& returned : returns_) {
    add(returned.formulas);
  }
  return result;
}

}  // namespace outboard::kernels

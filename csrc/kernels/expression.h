// SPDX-License-Identifier: BSD-3-Clause
// Integer formulas in postfix form, such as the number of blocks of a launch and of threads in a
// block. They are text, so generated code, files and Python pass them in the same way.
//
// Words are separated by spaces: a decimal number, a0, a1, … for a value, or an operation on the
// two values before it: add, sub, mul, floordiv, mod (as Python's), ceildiv (rounds up), min, max;
// eq, ne, lt, le, gt, ge, which return 1 or 0; and, or, for which every number except 0 is true.
// "a2 255 add 256 floordiv" is (a2 + 255) // 256.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>

#include "core/export.h"

namespace outboard::kernels {

class OUTBOARD_API Expression {
 public:
  // Raise ValueError if the text is not a formula.
  explicit Expression(const std::string& text);

  // Return the result. Raise ValueError for a division by zero and for a result beyond 64 bits.
  int64_t evaluate(c10::ArrayRef<int64_t> values) const {
    return C10_LIKELY(steps_.size() == 1 && steps_[0].operation == Operation::Number) ? steps_[0].number : run(values);
  }
  // Return the indices of the values that the formula reads.
  c10::ArrayRef<size_t> values() const noexcept { return values_; }
  const std::string& text() const noexcept { return text_; }

 private:
  enum class Operation : uint8_t {
    Number,
    Value,
    Add,
    Sub,
    Mul,
    FloorDiv,
    CeilDiv,
    Mod,
    Min,
    Max,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or
  };
  struct Step {
    Operation operation;
    int64_t number;  // the number, or the index of the value
  };

  Step parse(const std::string& word);
  int64_t run(c10::ArrayRef<int64_t> values) const;
  int64_t apply(Operation operation, int64_t left, int64_t right) const;
  // Compute operations that may overflow or divide by zero.
  int64_t calculate(Operation operation, int64_t left, int64_t right) const;

  std::string text_;
  c10::SmallVector<Step, 4> steps_;
  c10::SmallVector<size_t, 2> values_;
};

}  // namespace outboard::kernels

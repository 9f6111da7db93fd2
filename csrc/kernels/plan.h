// SPDX-License-Identifier: BSD-3-Clause
// The steps of an operator's call on the device: allocations, launches and calls of other
// operators, in order, with integer formulas for numbers that depend on the call's sizes. A plan is
// text, so its builder needs no tensors, and people can read it. The text is verified when it is
// read, and never trusted.
//
//   plan 1
//   value size 0 1                          a0 is the size of the call's first tensor in its second dimension;
//   value stride 0 0                        a1 a stride; likewise an integer argument, `number 3`, and an element of
//                                           a list of integers, `element 3 1`
//   guard a0 64 ge                          the plan serves calls for which this is not 0
//   number 2 float32                        b0: one element, the number that is the call's third argument, or that
//                                           this argument holds, a CPU tensor without dimensions
//   seed                                    another buffer: one int64, for the next draw of the call's generator
//   allocate float32 [a0, 4] [4, 1]         b1: new memory, by sizes and strides
//   view b1 [4, a0] [1, 4] 0                b2: a view of a buffer; its offset in elements from b1's beginning
//   view t1 float32 [a0] [2] 1              another buffer: a view as another type, such as the imaginary parts of
//                                           complex numbers; strides and the offset count elements of that type
//   launch 0 [t0, b0, b1, a0 4 mul]         a kernel with tensors of the call, buffers, and numbers by formulas
//   call 1 aten::mm [t0, b2]                an operator; the first number counts the buffers that it returns
//   copy t0 b1                              into a tensor that the operator writes
//   free b2                                 the last step that uses it has run
//   repeat a0                               the launches until `end` run this often, one after the other; `turn` in
//   launch 1 [t0, b1, turn, a0]             place of a number counts the turns from 0
//   end
//   return b1                               what the operator returns beside the tensors that it writes, in order;
//                                           `return none` for an undefined tensor, `return [b1,
//                                           b3]` for a list, `return number a0` for an integer
//
// A call has all arguments of the operator's schema: a tensor, a formula for an integer,
// `real 0x1p-2`, `true`, `false`, `none`, `numbers F; F` for a list of integers, `tensors
// t0; b1` for a list of tensors.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/export.h"
#include "kernels/argument_kind.h"
#include "kernels/expression.h"

namespace outboard::kernels {

// The source of a value of the formulas.
struct PlanValue {
  enum class Source : uint8_t { Size, Stride, Number, Element };
  Source source;
  uint32_t argument;  // index among the call's tensors; for Number and Element, among the schema's arguments
  uint32_t dimension;  // for Size and Stride; for Element, the index in the list
};

// A tensor of the call, or a buffer of the plan.
struct PlanTensor {
  bool is_buffer;
  uint32_t index;
};

struct PlanArgument {
  enum class Kind : uint8_t { Tensor, Number, RepeatIndex, Real, Bool, None, Numbers, Tensors };
  Kind kind;
  double real = 0;  // for Real; for Bool, 1 or 0
  std::vector<PlanTensor> tensors;
  uint32_t numbers = 0;  // how many of the step's formulas it takes
};

struct PlanStep {
  enum class Kind : uint8_t { Number, Seed, Allocate, View, Launch, Call, Copy, Free, Repeat };
  Kind kind;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // for Number and Allocate; for View, if it has another type
  // For Number the argument, for Launch the kernel, for Call the number of returned tensors, for
  // Repeat the number of following launches to repeat.
  uint32_t index = 0;
  uint32_t rank = 0;  // for Allocate and View
  std::optional<PlanTensor> target;  // for Copy; the buffer of View and Free
  std::optional<PlanTensor> source;  // for Copy
  std::string op;  // for Call: name and overload
  std::vector<PlanArgument> arguments;  // for Launch and Call
  // For Allocate and View the sizes and strides, then a View's offset; for Launch and Call the
  // numbers, in order; for Repeat the number of turns.
  std::vector<Expression> formulas;
};

struct PlanReturn {
  bool is_list = false;
  bool is_number = false;
  std::vector<PlanTensor> buffers;  // empty for an undefined tensor
  std::vector<Expression> formulas;  // for a number
};

class OUTBOARD_API Plan {
 public:
  // Read a plan. `kernels` has the arguments of each kernel that calls pass. Raise ValueError, with
  // the line and the reason, if the text is not a plan.
  Plan(std::string_view text, c10::ArrayRef<ArgumentKinds> kernels);

  const std::vector<PlanValue>& values() const noexcept { return values_; }
  const std::vector<PlanStep>& steps() const noexcept { return steps_; }
  const std::vector<PlanReturn>& returns() const noexcept { return returns_; }

  // Return true if the plan serves a call with these values. Return false if a guard cannot be
  // evaluated.
  bool holds(c10::ArrayRef<int64_t> values) const;

  // Return the values of all formulas, first the steps' in order, then the results'. Raise
  // ValueError for a formula that cannot be evaluated.
  std::vector<int64_t> numbers(c10::ArrayRef<int64_t> values) const;

 private:
  friend class PlanReader;

  std::vector<PlanValue> values_;
  std::vector<Expression> guards_;
  std::vector<PlanStep> steps_;
  std::vector<PlanReturn> returns_;
};

}  // namespace outboard::kernels

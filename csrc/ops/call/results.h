// SPDX-License-Identifier: BSD-3-Clause
// Builds an operator's results from the results of its CPU kernel.
//
// The schema declares each result: a written argument, a view of an argument, or new memory.
// Nothing is inferred from the results. A mismatch raises an error that names the operator.
#pragma once

#include <ATen/core/stack.h>

#include "ops/call/call.h"

namespace outboard {

// Resize an `out=` argument as torch does, with its warning if the tensor was not empty. A tensor
// of that size keeps its strides.
void resize_output(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides);

// Do the same, on the caller's thread, for the written arguments that `shape` resizes. A larger
// tensor may overlap others, so it is checked again.
void resize_written(const Call& call, const CallShape& shape);

// Replace the arguments on the stack by the call's results: written
// arguments, and `outputs` in their order.
void return_results(const Call& call, const CallShape& shape, c10::ArrayRef<at::Tensor> outputs,
                    torch::jit::Stack* stack);

// Compare the CPU kernel's results, on top of the stack, with the call's shape, and note in the
// operator's shape classes whether they agree.
void note_results(const Call& call, const CallShape& shape, const torch::jit::Stack& stack);

// A call's tensors and their stand-ins, recorded before the CPU kernel runs. The kernel may replace
// a shell's memory, and a sparse tensor's parts.
class ArgumentPairs {
 public:
  struct Pair {
    size_t index;  // index of the argument
    at::Tensor tensor;  // the caller's tensor
    at::Tensor shell;  // the tensor that the CPU kernel sees: a shell, a copy, or the same
    bool is_part;  // the indices or the values of a sparse tensor
  };

  // `shells` are the arguments of the CPU kernel.
  ArgumentPairs(const Call& call, const torch::jit::Stack& shells);

  const Pair* begin() const { return pairs_.begin(); }
  const Pair* end() const { return pairs_.end(); }

  // Return true if the CPU kernel changed the sizes or strides of a written argument's shell.
  bool was_reshaped(const Pair& pair) const;

 private:
  // The shape of a written shell before the call.
  struct Shape {
    size_t pair;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
  };

  void add(Pair pair, bool is_written);

  c10::SmallVector<Pair, 8> pairs_;
  std::vector<Shape> shapes_;
};

// Like return_results, for a call that was waited for; `returned` are the CPU kernel's results.
// Written arguments whose shells were resized or moved are resized and copied. Views of shells
// become views of the arguments. Fresh results are copied to the device.
void adopt_results(const Call& call, const ArgumentPairs& arguments, const torch::jit::Stack& returned,
                   torch::jit::Stack* stack);

}  // namespace outboard

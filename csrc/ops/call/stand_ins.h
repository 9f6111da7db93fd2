// SPDX-License-Identifier: BSD-3-Clause
// Runs an operator's CPU kernel on this thread, with CPU tensors in place of device tensors, so
// that a refusal has torch's own message.
#pragma once

#include <ATen/core/stack.h>

namespace outboard {

class Call;
struct Operator;
struct CallShape;

// The kind of CPU tensor that stands in for a device tensor.
enum class StandIn {
  Whole,   // the same shape and dtype, of zeros, or of ones if the kernel refuses zeros
  Element  // a single element, if the kernel refuses because of constants
};

// Run the CPU kernel on stand-ins and return its results; its exceptions pass through. The run
// leaves no trace in the program's warnings, profile or random numbers. If a shape is given,
// outputs have its sizes; otherwise some kernels would write out of bounds.
torch::jit::Stack run_on_stand_ins(const Call& call, StandIn stand_in, const CallShape* shape = nullptr);

// Do the same only to raise the exception. Call it if the arguments' metadata or constants show
// that the kernel will raise. If the arguments are too large for stand-ins, the caller waits for
// the call instead.
void check_on_stand_ins(const Call& call, StandIn stand_in);

// Return true if one element of each tensor makes a valid call of the operator, whatever the sizes.
bool is_elementwise(const Operator& op);

// Return the bytes of all tensor arguments.
size_t bytes_of_arguments(const Call& call);

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Run an operator's CPU kernel on this thread, with CPU tensors in place of the device's. A refusal then has torch's
// own words.
#pragma once

#include <ATen/core/stack.h>

namespace outboard {

class Call;
struct Operator;
struct CallShape;

// What stands in for a tensor of the device.
enum class StandIn {
  Whole,   // one of its shape and dtype, of zeros, or of ones where the kernel refuses zeros
  Element  // one of its elements, where constants are what the kernel refuses
};

// Runs the CPU kernel on stand-ins, lets what it raises through, and returns its results. No warning, profile or random
// number of the program's shows that it ran. With a shape, outputs have the sizes that it gives them: some kernels write
// beyond others.
torch::jit::Stack run_on_stand_ins(const Call& call, StandIn stand_in, const CallShape* shape = nullptr);

// The same for its exception alone: to be called where the arguments' metadata or constants show that the kernel will
// raise. If the arguments are too large to stand in for, the call is waited for instead.
void rehearse(const Call& call, StandIn stand_in);

// Whether one element of each tensor makes a call of the operator, whatever the sizes.
bool is_elementwise(const Operator& op);

// The bytes of all tensors among the arguments.
size_t bytes_of_arguments(const Call& call);

}  // namespace outboard

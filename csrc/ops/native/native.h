// SPDX-License-Identifier: BSD-3-Clause
// A driver's own kernels, in Python or C, and the calls that they serve.
//
// A kernel registered for one form of an operator (ops/operator/forms.h) serves all three forms.
// The kernel of the call's own form takes precedence, then the kernel of the out= form, of the
// functional form, and of the in-place form:
//  - out= for a functional call: the outputs are allocated as the operator declares them.
//  - out= for an in-place call: `out` is self, if the result has its shape and dtype, no two of its
//    elements share memory, and no other argument partly overlaps it. Otherwise the result is
//    written to new memory and copied to self.
//  - A functional kernel for the other forms: the result is copied to self, or to `out`, which is
//    resized as torch would resize it.
//  - An in-place kernel for the other forms: the kernel gets a copy of self, if the result has
//    self's shape and dtype.
//
// Calls that torch refuses (a result that self cannot hold) go to the next provider, which raises.
// Calls with sparse, quantized or nested tensors also go to the next provider, because kernels take
// only strided tensors.
#pragma once

#include "ops/call/call.h"
#include "ops/operator/api.h"
#include "ops/operator/forms.h"

namespace outboard {

// The kernel that serves an operator's calls, looked up once per registration.
struct NativeRoute {
  const NativeKernel* kernel;
  Operator* op;  // the form that the kernel was registered for
  Operator* functional;  // the group's functional form; null if the kernel is the called form's own
  Form called_form;
  Form kernel_form;
};

// Run the kernel. Return true if it took the call, which is counted for the called operator.
bool run_native(const NativeRoute& route, const Call& call, torch::jit::Stack* stack);

// Make `kernel` serve an operator and its other forms. Return the operator. Raise
// ValueError if no operator has the name.
Operator& route_native_kernel(const std::string& name, NativeKernel kernel);

// Return why an operator's name is wrong, with the existing overloads; "" if it is right.
std::string describe_unknown_operator(const std::string& name);

// Allocate a call's new tensors; undefined tensors where its shape has them.
std::vector<at::Tensor> make_outputs(const Call& call, const CallShape& shape);

}  // namespace outboard

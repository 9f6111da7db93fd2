// SPDX-License-Identifier: BSD-3-Clause
// A driver's own kernels, in Python or in C, and the calls that they serve.
//
// A kernel registered for one form of an operator (ops/operator/forms.h) serves all three forms. The kernel of the
// call's own form serves it if there is one, else the kernel of the out= form, else of the functional form, else of the
// in-place form:
//  - out= for a functional call: the outputs are allocated as the operator declares them.
//  - out= for an in-place call: `out` is self, if the result has its shape and dtype, no two of its elements share
//    memory and no other argument overlaps it in another way; else the result goes to new memory and is copied to self.
//  - Functional for the others: the result is copied to self, or to `out`, which is resized as torch resizes it.
//  - In-place for the others: the kernel gets a copy of self, if the result has self's shape and dtype.
//
// Calls that torch refuses (a result that self cannot hold) go on to the next provider, which raises. So do calls with
// sparse, quantized or nested tensors: kernels take strided ones.
#pragma once

#include "ops/call/call.h"
#include "ops/operator/api.h"
#include "ops/operator/forms.h"

namespace outboard {

// Which kernel serves the calls of an operator, found once a registration.
struct NativeRoute {
  const NativeKernel* kernel;
  Operator* op;  // of the form that the kernel was registered for
  Operator* functional;  // of the group; null if the kernel is the called form's own
  Form called;
  Form given;
};

// Whether the kernel took the call. Counted for the operator that was called.
bool run_native(const NativeRoute& route, const Call& call, torch::jit::Stack* stack);

// Makes `kernel` serve an operator and its other forms. Return the operator; ValueError if there is none of the name.
Operator& route_native_kernel(const std::string& name, NativeKernel kernel);

// What is wrong with the name of an operator, with the overloads that there are; "" if nothing is.
std::string describe_unknown_operator(const std::string& name);

// Allocates what a call makes; undefined tensors where its shape says so.
std::vector<at::Tensor> make_outputs(const Call& call, const CallShape& shape);

}  // namespace outboard

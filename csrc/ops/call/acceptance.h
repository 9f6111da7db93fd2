// SPDX-License-Identifier: BSD-3-Clause
// Checks whether the CPU kernel accepts a call, before any provider runs it.
//
// A meta kernel does not know the dtypes that the CPU kernel supports. Most meta kernels that are
// not structured check fewer shapes than the CPU kernel. A queued call would fail late, and a
// generated kernel would compute garbage or read out of bounds. The CPU kernel therefore runs on
// zeros with the arguments' shapes:
//
// - for the first call of a class (ops/operator/shape_classes.h), to check the dtypes. If these are
//   unusual, the call may be larger;
// - for each signature of an operator, unless it is element-wise with a structured meta
//   kernel: other meta kernels leave sizes, modes and dimensions to the kernel, except where
//   the operator's row in the book says `checks_all_in_meta`;
// - for a call that its meta kernel refuses, so that the exception has
//   the CPU kernel's type and words.
//
// The CPU kernel runs only for small calls, because it computes. For a large first call of a class,
// an element-wise kernel runs on one element per tensor.
#pragma once

#include <exception>
#include <string>

#include "core/export.h"
#include "ops/call/call.h"

namespace outboard {

enum class Acceptance : uint8_t { NotTried, Accepted };

// Raise the CPU kernel's exception if that kernel refuses the call. Its results are compared with
// `shape`, if known. A difference is recorded in the operator's shape classes.
Acceptance try_cpu_kernel(const Call& call, const CallShape& shape);

// Do the same for a call that no provider runs. `is_refused`: the meta kernel refuses it.
Acceptance try_refused_call(const Call& call, bool is_refused);

// Limits of size, in bytes, below which the CPU kernel checks calls.
struct CheckedBytes {
  size_t known;  // limit for calls of a known class
  size_t fresh;  // limit for first calls of a class
};

// Set the limits, and return the previous limits. With limits of 0, tests can make small calls
// behave like large ones.
OUTBOARD_API CheckedBytes limit_checked_calls(CheckedBytes limits);

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Asking the CPU kernel whether it takes a call, before any provider runs that call.
//
// A meta kernel does not know which dtypes the CPU kernel has code for, and most of those that aren't structured check
// fewer shapes than the CPU kernel does. A call that is queued would fail late, and a generated kernel would compute a
// number, or read memory beside its arguments. So the CPU kernel runs on zeros of the arguments' shapes:
//
// - for the first call of a class (ops/operator/shape_classes.h), by which dtypes are checked;
// - for each signature of an operator that is not element-wise by a structured meta kernel: the others leave sizes,
//   modes and dimensions to the kernel, but for those listed in ops/operator/quirks.cpp;
// - for a call that its meta kernel refuses, so that type and words of the exception are the CPU kernel's.
//
// It is asked about small calls only, since it computes. Of the first large call of a class an element-wise kernel is
// asked with one element a tensor.
#pragma once

#include <exception>
#include <string>

#include "ops/call/call.h"

namespace outboard {

enum class Acceptance : uint8_t { NotAsked, Accepted };

// Raises the CPU kernel's exception if that kernel refuses the call. What it returned is compared with `shape`, if that is
// known: a class that differs is noted in the operator's shape classes.
Acceptance ask_cpu_kernel(const Call& call, const CallShape& shape);

// The same for a call that the meta kernel refuses.
Acceptance ask_about_refusal(const Call& call);

}  // namespace outboard

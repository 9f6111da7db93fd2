// SPDX-License-Identifier: BSD-3-Clause
// A driver's own operator kernels in C.
#pragma once

#include <string>
#include <vector>

#include "core/driver.h"
#include "core/export.h"
#include "ops/call/call.h"
#include "ops/operator/api.h"

namespace outboard {
// Return a driver's kernel in the form that the chain calls. `query_fn` may be null.
NativeKernel driver_kernel(ob_operator_fn fn, ob_operator_fn query_fn, void* user);

// A driver's answer, in advance, about a call.
enum class NativeAnswer : uint8_t {
  Unknown,  // its kernel cannot be queried
  Accepts,
  Declines
};

// Return true if the driver's own kernel for an operator answers queries.
bool can_query_native(const Operator& op);

// Query the driver's own kernel for an operator about a call of this form. The tensors of
// `arguments` may have no memory. If `out_kept` is given, the driver may report how many bytes the
// call keeps for its gradients.
NativeAnswer query_native(const Call& call, c10::ArrayRef<c10::IValue> arguments, uint64_t* out_kept = nullptr);

// Return the operators for which a kernel was registered, in C or Python, sorted.
OUTBOARD_API std::vector<std::string> native_operators();
}  // namespace outboard

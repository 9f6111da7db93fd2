// SPDX-License-Identifier: BSD-3-Clause
// The arguments of an operator's call as Python objects.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/utils/pybind.h>

namespace outboard::bindings {

// Convert an argument for Python kernels and the builder of plans. Dtypes, layouts and memory
// formats are integers on the stack.
py::object to_kernel_argument(const c10::IValue& value, const c10::Argument& argument);

}  // namespace outboard::bindings

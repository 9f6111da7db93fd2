// SPDX-License-Identifier: BSD-3-Clause
// Conversion between torch's Python objects and their C++ objects. This is a separate file because
// the headers that it hides take ten seconds to compile.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "bindings/python.h"

namespace outboard::bindings {

// Return the tensor that the object holds, valid as long as the object,
// or null without a Python error.
const at::Tensor* as_tensor(PyObject* object) noexcept;
PyObject* from_tensor(at::Tensor tensor);

// Each returns false, without a Python error, if the object has another type.
bool to_dtype(PyObject* object, at::ScalarType* out) noexcept;
bool to_storage(PyObject* object, c10::Storage* out);
PyObject* from_storage(c10::Storage storage);

}  // namespace outboard::bindings

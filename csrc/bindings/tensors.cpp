// SPDX-License-Identifier: BSD-3-Clause
#include "bindings/tensors.h"

#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

namespace outboard::bindings {

const at::Tensor* as_tensor(PyObject* object) noexcept {
  return THPVariable_Check(object) ? &THPVariable_Unpack(object) : nullptr;
}

PyObject* from_tensor(at::Tensor tensor) {
  return THPVariable_Wrap(std::move(tensor));
}

bool to_dtype(PyObject* object, at::ScalarType* out) noexcept {
  if (!THPDtype_Check(object)) {
    return false;
  }
  *out = reinterpret_cast<THPDtype*>(object)->scalar_type;
  return true;
}

bool to_storage(PyObject* object, c10::Storage* out) {
  if (!torch::isStorage(object)) {
    return false;
  }
  *out = torch::createStorage(object);
  return true;
}

PyObject* from_storage(c10::Storage storage) {
  return torch::createPyObject(std::move(storage));
}

}  // namespace outboard::bindings

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/tensors/host_view.h"

#include "bindings/method.h"
#include "bindings/tensors.h"

namespace outboard::bindings {

namespace {

PyObject* view_of(PyObject* object) {
  const at::Tensor* tensor = as_tensor(object);
  if (!tensor) {
    PyErr_SetString(PyExc_TypeError, "host_view takes a tensor");
    return nullptr;
  }
  return from_tensor(unlocked_call([&] { return host_view(*tensor); }));
}

}  // namespace

PyMethodDef host_view_methods[] = {
    method<"host_view", view_of>("Return a CPU tensor over a device tensor's memory."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/tensors/host_view.h"

#include "bindings/tensors.h"

namespace outboard::bindings {

namespace {

PyObject* py_host_view(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    const at::Tensor* tensor = as_tensor(argument);
    if (!tensor) {
      PyErr_SetString(PyExc_TypeError, "host_view takes a tensor");
      return nullptr;
    }
    at::Tensor view;
    {
      const WithoutGil without_gil;
      view = host_view(*tensor);
    }
    return from_tensor(std::move(view));
  });
}

}  // namespace

PyMethodDef host_view_methods[] = {
    {"host_view", py_host_view, METH_O, PyDoc_STR("Return a CPU tensor over a device tensor's memory.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

// SPDX-License-Identifier: BSD-3-Clause
#define OUTBOARD_TORCH_PYTHON
#include "ops/host_view.h"

#include <torch/csrc/autograd/python_variable.h>

#include "bindings/python.h"

namespace outboard::bindings {

namespace {

PyObject* py_host_view(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    if (!THPVariable_Check(argument)) {
      PyErr_SetString(PyExc_TypeError, "host_view takes a tensor");
      return nullptr;
    }
    at::Tensor view;
    {
      const WithoutGil without_gil;
      view = host_view(THPVariable_Unpack(argument));
    }
    return THPVariable_Wrap(std::move(view));
  });
}

}  // namespace

PyMethodDef host_view_methods[] = {
    {"host_view", py_host_view, METH_O, PyDoc_STR("A CPU tensor over a device tensor's memory.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

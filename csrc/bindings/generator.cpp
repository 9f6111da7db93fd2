// SPDX-License-Identifier: BSD-3-Clause
#include "torch/generator.h"

#include <torch/csrc/Generator.h>

#include "bindings/python.h"
#include "core/device.h"

namespace outboard::bindings {

namespace {

PyObject* py_default_generator(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    if (!to_device(argument, &device)) {
      return nullptr;
    }
    check_device_index(device);
    return THPGenerator_Wrap(default_generator(device));
  });
}

}  // namespace

PyMethodDef generator_methods[] = {
    {"default_generator", py_default_generator, METH_O, PyDoc_STR("Return the device's default torch.Generator.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

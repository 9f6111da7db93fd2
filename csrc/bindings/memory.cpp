// SPDX-License-Identifier: BSD-3-Clause
#include "bindings/python.h"
#include "bindings/statistics.h"
#include "core/device.h"
#include "core/stream.h"
#include "memory/caching_allocator.h"
#include "memory/management.h"

namespace outboard::bindings {

namespace {

PyObject* py_mem_info(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    if (!to_device(argument, &device)) {
      return nullptr;
    }
    uint64_t free = 0;
    uint64_t total = 0;
    {
      const WithoutGil without_gil;
      memory_info(device, &free, &total);
    }
    return Py_BuildValue("(KK)", static_cast<unsigned long long>(free), static_cast<unsigned long long>(total));
  });
}

PyObject* py_set_memory_fraction(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    if (!has_arguments("set_memory_fraction", count, 2) || !to_device(arguments[0], &device)) {
      return nullptr;
    }
    const double fraction = PyFloat_AsDouble(arguments[1]);
    if (fraction == -1 && PyErr_Occurred()) {
      return nullptr;
    }
    {
      const WithoutGil without_gil;
      set_memory_fraction(device, fraction);
    }
    return none();
  });
}

PyObject* py_memory_fraction(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    if (!to_device(argument, &device)) {
      return nullptr;
    }
    return PyFloat_FromDouble(memory_fraction(device));
  });
}

PyObject* py_raw_allocate(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    int64_t stream = 0;
    uint64_t bytes = 0;
    if (!has_arguments("raw_allocate", count, 3) || !to_device(arguments[0], &device) ||
        !to_int64(arguments[1], &stream) || !to_uint64(arguments[2], &bytes)) {
      return nullptr;
    }
    uint64_t address = 0;
    {
      const WithoutGil without_gil;
      address = raw_allocate(get_stream(device, stream), bytes);
    }
    return PyLong_FromUnsignedLongLong(address);
  });
}

PyObject* py_raw_free(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    uint64_t address = 0;
    if (!to_uint64(argument, &address)) {
      return nullptr;
    }
    {
      const WithoutGil without_gil;
      raw_free(address);
    }
    return none();
  });
}

PyObject* py_enable_caching(PyObject*, PyObject* argument) {
  const int is_enabled = PyObject_IsTrue(argument);
  if (is_enabled < 0) {
    return nullptr;
  }
  enable_caching(is_enabled != 0);
  return none();
}

PyObject* py_is_caching_enabled(PyObject*, PyObject*) {
  return PyBool_FromLong(is_caching_enabled());
}

PyObject* py_host_memory_stats(PyObject*, PyObject*) {
  return guarded([] { return host_statistics(); });
}

PyObject* py_reset_host_memory_stats(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    const int is_peak = PyObject_IsTrue(argument);
    if (is_peak < 0) {
      return nullptr;
    }
    reset_host_statistics(is_peak != 0);
    return none();
  });
}

PyObject* py_detach_out_of_memory_observer(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    uint64_t id = 0;
    if (!to_uint64(argument, &id)) {
      return nullptr;
    }
    return PyBool_FromLong(detach_out_of_memory_observer(id));
  });
}

PyObject* py_attach_out_of_memory_observer(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    if (!PyCallable_Check(argument)) {
      PyErr_SetString(PyExc_TypeError,
                      "an out-of-memory observer is a function (device, requested, device_total, device_free)");
      return nullptr;
    }
    return PyLong_FromUnsignedLongLong(attach_out_of_memory_observer(make_observer(argument)));
  });
}

}  // namespace

PyMethodDef memory_methods[] = {
    {"mem_info", py_mem_info, METH_O,
     PyDoc_STR("Return the device's free and total memory in bytes, as the driver reports them.")},
    OUTBOARD_FASTCALL("set_memory_fraction", py_set_memory_fraction,
                      "Limit this process's share of a device's memory: (device, fraction)."),
    {"memory_fraction", py_memory_fraction, METH_O, PyDoc_STR("Return the device's memory fraction.")},
    OUTBOARD_FASTCALL("raw_allocate", py_raw_allocate,
                      "Allocate memory and return its address: (device, stream id, bytes)."),
    {"raw_free", py_raw_free, METH_O, PyDoc_STR("Free memory from raw_allocate.")},
    {"enable_caching", py_enable_caching, METH_O,
     PyDoc_STR("Turn caching on, or off so that each allocation asks the driver.")},
    {"is_caching_enabled", py_is_caching_enabled, METH_NOARGS,
     PyDoc_STR("Return whether freed memory is cached for reuse.")},
    {"host_memory_stats", py_host_memory_stats, METH_NOARGS,
     PyDoc_STR("Return the nested statistics of pinned memory.")},
    {"reset_host_memory_stats", py_reset_host_memory_stats, METH_O,
     PyDoc_STR("Reset the peaks (True) or the totals (False) of pinned memory.")},
    {"attach_out_of_memory_observer", py_attach_out_of_memory_observer, METH_O,
     PyDoc_STR("Call a function before torch.OutOfMemoryError is raised. Return a number for detaching it.")},
    {"detach_out_of_memory_observer", py_detach_out_of_memory_observer, METH_O,
     PyDoc_STR("Detach an observer by its number. Return whether it was attached.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

// SPDX-License-Identifier: BSD-3-Clause
#include "core/device.h"
#include "distributed/api.h"
#include "kernels/builds.h"

#include "bindings/python.h"

#include <built/contract.inc>

#include <cstring>

#include "core/blocking.h"
#include "core/error.h"
#include "core/late_warnings.h"
#include "core/process.h"
#include "core/sync_debug.h"
#include "torch/autograd_threads.h"

namespace outboard::bindings {

bool to_device(PyObject* object, c10::DeviceIndex* out) {
  int64_t index = 0;
  if (!to_int64(object, &index)) {
    return false;
  }
  if (index < INT8_MIN || index > INT8_MAX) {
    try {
      raise_bad_device(index);
    } catch (...) {
      set_python_error();
      return false;
    }
  }
  *out = static_cast<c10::DeviceIndex>(index);
  return true;
}

bool to_text(PyObject* object, const char* what, std::string* out) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
  if (!text) {
    if (!PyErr_Occurred()) {
      PyErr_Format(PyExc_TypeError, "%s must be a str", what);
    }
    return false;
  }
  if (std::memchr(text, '\0', static_cast<size_t>(size)) != nullptr) {  // C would see only the text before it
    PyErr_Format(PyExc_ValueError, "%s must not contain a null character: %R", what, object);
    return false;
  }
  out->assign(text, static_cast<size_t>(size));
  return true;
}

namespace {

PyObject* py_device_count(PyObject*, PyObject*) {
  return guarded([] {
    int count = 0;
    {
      const WithoutGil without_gil;
      count = device_count();
    }
    return PyLong_FromLong(count);
  });
}

PyObject* py_probe_error(PyObject*, PyObject*) {
  return guarded([] {
    std::string reason;
    {
      const WithoutGil without_gil;
      reason = probe_error();
    }
    return from_text(reason);
  });
}

PyObject* py_current_device(PyObject*, PyObject*) {
  return PyLong_FromLong(current_device());
}

PyObject* py_set_device(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    if (!to_device(argument, &device)) {
      return nullptr;
    }
    set_device(device);
    return none();
  });
}

PyObject* py_exchange_device(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    if (!to_device(argument, &device)) {
      return nullptr;
    }
    return PyLong_FromLong(exchange_device(device));
  });
}

// A negative index means "leave it", as in torch's own.
PyObject* py_maybe_exchange_device(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    if (!to_device(argument, &device)) {
      return nullptr;
    }
    return PyLong_FromLong(device < 0 ? -1 : exchange_device(device));
  });
}

PyObject* property(const char* text) {
  return from_text(text);
}
template <size_t kSize>
PyObject* property(const uint8_t (&bytes)[kSize]) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(bytes), kSize);
}
PyObject* property(int32_t number) {
  return PyLong_FromLong(number);
}
PyObject* property(uint64_t number) {
  return PyLong_FromUnsignedLongLong(number);
}

bool set_item(PyObject* dict, const char* key, PyObject* owned) {
  const Object value(owned);
  return value && PyDict_SetItemString(dict, key, value.get()) == 0;
}

PyObject* properties_dict(const ob_device_properties& p) {
  Object dict(PyDict_New());
#define X(name) &&set_item(dict.get(), #name, property(p.name))
  return dict OB_PROPERTIES(X) ? dict.release() : nullptr;
#undef X
}

PyObject* py_device_properties(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    if (!to_device(argument, &device)) {
      return nullptr;
    }
    const ob_device_properties* properties = nullptr;
    {
      const WithoutGil without_gil;
      properties = &device_properties(device);
    }
    return properties_dict(*properties);
  });
}

PyObject* py_can_access_peer(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    c10::DeviceIndex peer = 0;
    if (!has_arguments("can_access_peer", count, 2) || !to_device(arguments[0], &device) ||
        !to_device(arguments[1], &peer)) {
      return nullptr;
    }
    bool can_access = false;
    {
      const WithoutGil without_gil;
      can_access = can_access_peer(device, peer);
    }
    return PyBool_FromLong(can_access);
  });
}

PyObject* py_open_device(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    if (!to_device(argument, &device)) {
      return nullptr;
    }
    check_device_index(device);
    ensure_open(device);
    return none();
  });
}

PyObject* py_is_open(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    if (!to_device(argument, &device)) {
      return nullptr;
    }
    check_device_index(device);
    return PyBool_FromLong(is_open(device));
  });
}

PyObject* py_forbid_opening(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    std::string reason;
    if (!to_text(argument, "the reason", &reason)) {
      return nullptr;
    }
    forbid_opening(std::move(reason));
    return none();
  });
}

PyObject* py_any_device_opened(PyObject*, PyObject*) {
  return PyBool_FromLong(any_device_opened());
}

PyObject* py_in_bad_fork(PyObject*, PyObject*) {
  return PyBool_FromLong(in_bad_fork());
}

PyObject* py_drain_all_devices(PyObject*, PyObject*) {
  return guarded([] {
    drain_all_devices();
    return none();
  });
}

PyObject* py_set_waits_for_calls(PyObject*, PyObject* argument) {
  const int waits = PyObject_IsTrue(argument);
  if (waits < 0) {
    return nullptr;
  }
  set_waits_for_calls(waits != 0);
  return none();
}

PyObject* py_set_sync_debug_mode(PyObject*, PyObject* argument) {
  int64_t mode = 0;
  if (!to_int64(argument, &mode)) {
    return nullptr;
  }
  if (mode < 0 || mode > static_cast<int64_t>(SyncDebugMode::Error)) {
    PyErr_SetString(PyExc_ValueError, "set_sync_debug_mode takes 0, 1 or 2");
    return nullptr;
  }
  set_sync_debug_mode(static_cast<SyncDebugMode>(mode));
  return none();
}

PyObject* py_get_sync_debug_mode(PyObject*, PyObject*) {
  return PyLong_FromLong(static_cast<long>(sync_debug_mode()));
}

PyObject* py_set_long_wait(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    const double seconds = PyFloat_AsDouble(argument);
    if (PyErr_Occurred()) {
      return nullptr;
    }
    set_long_wait(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
    return none();
  });
}

PyObject* py_synchronize_device(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    if (!to_device(argument, &device)) {
      return nullptr;
    }
    {
      const WithoutGil without_gil;
      synchronize_device(device, Leave::OnSignal);
    }
    return none();
  });
}

// Issue the warnings of work that was not waited for. With an "error" filter there
// is no caller left to raise to.
void issue_last_warnings() {
  const auto issue = [] {
    return Object(guarded([]() -> PyObject* {
      issue_all_late_warnings();
      return none();
    }));
  };
  while (!issue()) {
    PyErr_WriteUnraisable(nullptr);
  }
}

PyObject* py_has_autograd_begun(PyObject*, PyObject*) {
  return guarded([] { return PyBool_FromLong(has_autograd_begun()); });
}

PyObject* py_begin_autograd_threads(PyObject*, PyObject* arguments) {
  const long devices = PyLong_AsLong(arguments);
  if (devices == -1 && PyErr_Occurred()) {
    return nullptr;
  }
  return guarded([devices] {
    begin_autograd_threads(static_cast<c10::DeviceIndex>(devices));
    return none();
  });
}

PyObject* py_shut_down(PyObject*, PyObject*) {
  {
    // A driver's threads may need the lock to finish queued work.
    const WithoutGil without_gil;
    drain_autograd_threads();
    abort_all_groups();
    kernels::end_builds();
    shut_down();
  }
  issue_last_warnings();
  mark_python_gone();
  return none();
}

}  // namespace

PyMethodDef device_methods[] = {
    {"has_autograd_begun", py_has_autograd_begun, METH_NOARGS,
     PyDoc_STR("Return whether torch has counted devices for backward passes.")},
    {"begin_autograd_threads", py_begin_autograd_threads, METH_O,
     PyDoc_STR("Start autograd's threads for this many devices if it began without them.")},
    {"device_count", py_device_count, METH_NOARGS,
     PyDoc_STR("Return the number of devices; the driver is asked once.")},
    {"probe_error", py_probe_error, METH_NOARGS, PyDoc_STR("Return why the device count is 0, or ''.")},
    {"current_device", py_current_device, METH_NOARGS, PyDoc_STR("Return the thread's current device.")},
    {"set_device", py_set_device, METH_O, PyDoc_STR("Set the thread's current device without opening it.")},
    {"exchange_device", py_exchange_device, METH_O, PyDoc_STR("Set the current device and return the previous one.")},
    {"maybe_exchange_device", py_maybe_exchange_device, METH_O,
     PyDoc_STR("Set the current device and return the previous one; do nothing for indices below 0.")},
    {"device_properties", py_device_properties, METH_O, PyDoc_STR("Return the fields of ob_device_properties.")},
    OUTBOARD_FASTCALL("can_access_peer", py_can_access_peer, "Return whether two devices can copy without the host."),
    {"open_device", py_open_device, METH_O, PyDoc_STR("Open the device if it is closed.")},
    {"is_open", py_is_open, METH_O, PyDoc_STR("Return whether the device was opened in this process.")},
    {"forbid_opening", py_forbid_opening, METH_O, PyDoc_STR("Make devices refuse to open, with this reason.")},
    {"any_device_opened", py_any_device_opened, METH_NOARGS, PyDoc_STR("Return whether any device was opened.")},
    {"in_bad_fork", py_in_bad_fork, METH_NOARGS, PyDoc_STR("Return whether a device was opened before this fork.")},
    {"drain_all_devices", py_drain_all_devices, METH_NOARGS,
     PyDoc_STR("Wait for all open devices; leave failures to the user's next wait.")},
    {"set_sync_debug_mode", py_set_sync_debug_mode, METH_O,
     PyDoc_STR("Set what a synchronizing operation does: 0 nothing, 1 warn, 2 raise.")},
    {"get_sync_debug_mode", py_get_sync_debug_mode, METH_NOARGS,
     PyDoc_STR("Return what a synchronizing operation does.")},
    {"set_waits_for_calls", py_set_waits_for_calls, METH_O,
     PyDoc_STR("Set whether each call waits for the work that it queues.")},
    {"set_long_wait", py_set_long_wait, METH_O,
     PyDoc_STR("Set the seconds before a long wait is reported (default: 30).")},
    {"synchronize_device", py_synchronize_device, METH_O, PyDoc_STR("Wait for all work of the device.")},
    {"shut_down", py_shut_down, METH_NOARGS, PyDoc_STR("Drain the devices at exit; no driver call follows.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

// SPDX-License-Identifier: BSD-3-Clause
// Streams as ids and handles. Users see torch's own torch.Stream.
#include "core/stream.h"

#include "bindings/python.h"
#include "core/capture.h"
#include "core/device.h"

namespace outboard::bindings {

namespace {

PyObject* py_current_stream(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    if (!to_device(argument, &device)) {
      return nullptr;
    }
    check_device_index(device);
    return PyLong_FromLongLong(current_stream(device).id);
  });
}

PyObject* py_set_stream(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    int64_t id = 0;
    if (!has_arguments("set_stream", count, 2) || !to_device(arguments[0], &device) || !to_int64(arguments[1], &id)) {
      return nullptr;
    }
    set_current_stream(get_stream(device, id));
    return none();
  });
}

// Return the driver's handle of the current stream. Generated code passes it on and launches
// through the core, so a capture may continue.
PyObject* py_current_raw_stream(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    if (!to_device(argument, &device)) {
      return nullptr;
    }
    check_device_index(device);
    return PyLong_FromUnsignedLongLong(stream_handle(current_stream(device)));
  });
}

PyObject* py_stream_handle(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    int64_t id = 0;
    if (!has_arguments("stream_handle", count, 2) || !to_device(arguments[0], &device) ||
        !to_int64(arguments[1], &id)) {
      return nullptr;
    }
    return PyLong_FromUnsignedLongLong(handle_for_caller(get_stream(device, id)));
  });
}

PyObject* py_stream_priority(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    int64_t id = 0;
    if (!has_arguments("stream_priority", count, 2) || !to_device(arguments[0], &device) ||
        !to_int64(arguments[1], &id)) {
      return nullptr;
    }
    return PyLong_FromLong(get_stream(device, id).priority);
  });
}

PyObject* py_external_stream(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    uint64_t handle = 0;
    if (!has_arguments("external_stream", count, 2) || !to_device(arguments[0], &device) ||
        !to_uint64(arguments[1], &handle)) {
      return nullptr;
    }
    refuse_handle_in_capture(device, handle, "a second stream with the handle of one that captures");
    return PyLong_FromLongLong(external_stream(device, handle).id);
  });
}

}  // namespace

PyMethodDef stream_methods[] = {
    {"current_stream", py_current_stream, METH_O, PyDoc_STR("Id of the thread's current stream of a device.")},
    OUTBOARD_FASTCALL("set_stream", py_set_stream, "Makes a stream, by device and id, the thread's current one."),
    {"current_raw_stream", py_current_raw_stream, METH_O, PyDoc_STR("The driver's handle of the current stream.")},
    OUTBOARD_FASTCALL("stream_handle", py_stream_handle, "The driver's handle of a stream, by device and id."),
    OUTBOARD_FASTCALL("stream_priority", py_stream_priority, "The priority of a stream, by device and id."),
    OUTBOARD_FASTCALL("external_stream", py_external_stream, "The id for a handle that somebody else owns."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

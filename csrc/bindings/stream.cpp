// SPDX-License-Identifier: BSD-3-Clause
// Streams as ids and handles. Users see torch's own torch.Stream.
#include "core/stream.h"

#include <chrono>
#include <memory>
#include <thread>

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

// Keeps the current stream busy, for tests of what is asynchronous.
PyObject* py_queue_sleep(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    int64_t nanoseconds = 0;
    if (!has_arguments("queue_sleep", count, 2) || !to_device(arguments[0], &device) ||
        !to_int64(arguments[1], &nanoseconds)) {
      return nullptr;
    }
    check_device_index(device);
    ensure_open(device);
    Stream& stream = current_stream(device);
    auto length = std::make_unique<std::chrono::nanoseconds>(nanoseconds);
    const auto sleep = [](void* context) {
      const std::unique_ptr<std::chrono::nanoseconds> owned(static_cast<std::chrono::nanoseconds*>(context));
      std::this_thread::sleep_for(*owned);
    };
    const bool is_queued = queue_host_work(stream, sleep, length.get(), "sleep");
    static_cast<void>(length.release());
    finish_call(stream, is_queued);
    return none();
  });
}

}  // namespace

PyMethodDef stream_methods[] = {
    {"current_stream", py_current_stream, METH_O,
     PyDoc_STR("Return the id of the thread's current stream on a device.")},
    OUTBOARD_FASTCALL("set_stream", py_set_stream, "Set the thread's current stream: (device, id)."),
    {"current_raw_stream", py_current_raw_stream, METH_O,
     PyDoc_STR("Return the driver's handle of the current stream.")},
    OUTBOARD_FASTCALL("stream_handle", py_stream_handle, "Return the driver's handle of a stream: (device, id)."),
    OUTBOARD_FASTCALL("stream_priority", py_stream_priority, "Return the priority of a stream: (device, id)."),
    OUTBOARD_FASTCALL("external_stream", py_external_stream,
                      "Return a stream id for a handle that another library owns."),
    OUTBOARD_FASTCALL("queue_sleep", py_queue_sleep, "Queue a pause on a device's current stream, in nanoseconds."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

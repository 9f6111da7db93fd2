// SPDX-License-Identifier: BSD-3-Clause
// Graphs as capsules. torch_outboard.device.graphs has the classes that users see.
#include "graph/graph.h"

#include <memory>

#include "bindings/python.h"
#include "core/capture.h"
#include "core/device.h"

namespace outboard::bindings {

namespace {

constexpr char kCapsule[] = "torch_outboard.graph";

// End a capture that was not ended, here where a driver failure can still be reported.
void destroy(PyObject* capsule) {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);  // an error of the code that drops the graph
  auto* graph = static_cast<Graph*>(PyCapsule_GetPointer(capsule, kCapsule));
  const Object ended(guarded([&]() -> PyObject* {
    {
      const WithoutGil without_gil;
      graph->abandon();
    }
    return none();
  }));
  if (!ended) {
    PyErr_WriteUnraisable(nullptr);
  }
  {
    const WithoutGil without_gil;
    delete graph;
  }
  PyErr_Restore(type, value, traceback);
}

PyObject* py_graph_new(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    const int keep_graph = PyObject_IsTrue(argument);
    if (keep_graph < 0) {
      return nullptr;
    }
    auto graph = std::make_unique<Graph>(keep_graph != 0);
    PyObject* capsule = PyCapsule_New(graph.get(), kCapsule, destroy);
    if (capsule) {
      static_cast<void>(graph.release());
    }
    return capsule;
  });
}

Graph* to_graph(PyObject* object) {
  return static_cast<Graph*>(PyCapsule_GetPointer(object, kCapsule));
}

// Call a member of the graph without the interpreter lock.
template <class Member>
PyObject* with_graph(PyObject* object, Member member) {
  return guarded([&]() -> PyObject* {
    Graph* graph = to_graph(object);
    if (!graph) {
      return nullptr;
    }
    {
      const WithoutGil without_gil;
      (graph->*member)();
    }
    return none();
  });
}

PyObject* py_capture_begin(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    c10::MempoolId_t pool;
    int64_t mode = 0;
    if (!has_arguments("graph_capture_begin", count, 3)) {
      return nullptr;
    }
    Graph* graph = to_graph(arguments[0]);
    if (!graph || !to_mempool(arguments[1], &pool) || !to_int64(arguments[2], &mode)) {
      return nullptr;
    }
    {
      const WithoutGil without_gil;
      graph->capture_begin(pool, static_cast<CaptureMode>(mode));
    }
    return none();
  });
}

PyObject* py_capture_end(PyObject*, PyObject* graph) {
  return with_graph(graph, &Graph::capture_end);
}
PyObject* py_instantiate(PyObject*, PyObject* graph) {
  return with_graph(graph, &Graph::instantiate);
}
PyObject* py_replay(PyObject*, PyObject* graph) {
  return with_graph(graph, &Graph::replay);
}
PyObject* py_reset(PyObject*, PyObject* graph) {
  return with_graph(graph, &Graph::reset);
}

PyObject* py_pool(PyObject*, PyObject* object) {
  return guarded([&]() -> PyObject* {
    const Graph* graph = to_graph(object);
    return graph ? from_mempool(graph->pool()) : nullptr;
  });
}

PyObject* py_describe(PyObject*, PyObject* object) {
  return guarded([&]() -> PyObject* {
    const Graph* graph = to_graph(object);
    return graph ? from_text(graph->describe()) : nullptr;
  });
}

PyObject* py_is_stream_capturing(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    c10::DeviceIndex device = 0;
    if (!to_device(argument, &device)) {
      return nullptr;
    }
    check_device_index(device);
    return Py_NewRef(capture_of(current_stream(device)) ? Py_True : Py_False);
  });
}

}  // namespace

PyMethodDef graph_methods[] = {
    {"graph_new", py_graph_new, METH_O, PyDoc_STR("Return a new graph: (keep_graph).")},
    OUTBOARD_FASTCALL("graph_capture_begin", py_capture_begin, "Begin a capture: (graph, pool, mode)."),
    {"graph_capture_end", py_capture_end, METH_O, PyDoc_STR("End the capture.")},
    {"graph_instantiate", py_instantiate, METH_O, PyDoc_STR("Instantiate the captured graph.")},
    {"graph_replay", py_replay, METH_O, PyDoc_STR("Queue the graph's work on the current stream.")},
    {"graph_reset", py_reset, METH_O, PyDoc_STR("Wait for the last replay and release the graph.")},
    {"graph_pool", py_pool, METH_O, PyDoc_STR("Return the id of the graph's memory pool.")},
    {"graph_describe", py_describe, METH_O, PyDoc_STR("Return the graph's steps in Graphviz's DOT language.")},
    {"is_stream_capturing", py_is_stream_capturing, METH_O,
     PyDoc_STR("Return whether a device's current stream is capturing.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

// SPDX-License-Identifier: BSD-3-Clause
// Graphs as capsules. torch_outboard.device.graphs has the classes that users see.
#include "graph/graph.h"

#include <memory>

#include "bindings/method.h"
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
    unlocked_call([&] { graph->abandon(); });
    return none();
  }));
  if (!ended) {
    PyErr_WriteUnraisable(nullptr);
  }
  unlocked_call([&] { delete graph; });
  PyErr_Restore(type, value, traceback);
}

PyObject* new_graph(bool keep_graph) {
  auto graph = std::make_unique<Graph>(keep_graph);
  PyObject* capsule = PyCapsule_New(graph.get(), kCapsule, destroy);
  if (capsule) {
    static_cast<void>(graph.release());
  }
  return capsule;
}

Graph* to_graph(PyObject* object) {
  return static_cast<Graph*>(PyCapsule_GetPointer(object, kCapsule));
}

// Call a member of the graph without the interpreter lock.
template <auto member, class... Values>
PyObject* with_graph(PyObject* object, Values... values) {
  Graph* graph = to_graph(object);
  if (!graph) {
    return nullptr;
  }
  unlocked_call([&] { (graph->*member)(values...); });
  return none();
}

// Return the result of a member of the graph.
template <auto member>
PyObject* call_graph_getter(PyObject* object) {
  const Graph* graph = to_graph(object);
  return graph ? to_python((graph->*member)()) : nullptr;
}

PyObject* begin_capture(PyObject* graph, c10::MempoolId_t pool, int64_t mode) {
  return with_graph<&Graph::capture_begin>(graph, pool, static_cast<CaptureMode>(mode));
}

}  // namespace

PyMethodDef graph_methods[] = {
    method<"graph_new", new_graph>("Return a new graph: (keep_graph)."),
    method<"graph_capture_begin", begin_capture>("Begin a capture: (graph, pool, mode)."),
    method<"graph_capture_end", with_graph<&Graph::capture_end>>("End the capture."),
    method<"graph_instantiate", with_graph<&Graph::instantiate>>("Instantiate the captured graph."),
    method<"graph_replay", with_graph<&Graph::replay>>("Queue the graph's work on the current stream."),
    method<"graph_reset", with_graph<&Graph::reset>>("Wait for the last replay and release the graph."),
    method<"graph_pool", call_graph_getter<&Graph::pool>>("Return the id of the graph's memory pool."),
    method<"graph_describe", call_graph_getter<&Graph::describe>>(
        "Return the graph's steps in Graphviz's DOT language."),
    method<"is_stream_capturing",
           +[](c10::DeviceIndex device) {
             check_device_index(device);
             return capture_of(current_stream(device)) != nullptr;
           }>("Return whether a device's current stream is capturing."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

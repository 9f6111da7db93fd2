// SPDX-License-Identifier: BSD-3-Clause
// The c10d backend for torch.distributed: a class derived from torch's own, which needs pybind11.
#include "bindings/python.h"

#ifdef OUTBOARD_DISTRIBUTED
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "distributed/backend.h"

namespace outboard::bindings {

namespace {

namespace py = pybind11;
using Options = DistributedBackend::Options;
using OptionsPtr = c10::intrusive_ptr<Options>;

// ProcessGroupGloo's own constructor needs headers that torch does not ship.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout) {
  const py::gil_scoped_acquire gil;
  const py::object gloo = py::module_::import("torch.distributed").attr("ProcessGroupGloo");
  return gloo(store, rank, size, py::arg("timeout") = timeout).cast<c10::intrusive_ptr<c10d::Backend>>();
}

c10::intrusive_ptr<DistributedBackend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    const OptionsPtr& options) {
  return c10::make_intrusive<DistributedBackend>(store, rank, size, options, make_gloo);
}

// Add the classes to the module, once. Torch's own must exist, so this does not
// happen when the module is imported.
PyObject* py_add_distributed(PyObject* self, PyObject*) {
  return guarded([self]() -> PyObject* {
    auto module = py::reinterpret_borrow<py::module_>(self);
    if (py::hasattr(module, "DistributedBackend")) {
      return none();
    }
    py::module_::import("torch._C._distributed_c10d");
    py::class_<Options, OptionsPtr, c10d::Backend::Options>(module, "DistributedOptions")
        .def(py::init([](std::chrono::milliseconds timeout) { return c10::make_intrusive<Options>(timeout); }),
             py::arg("timeout"))
        .def("__copy__", [](const Options& own) { return c10::make_intrusive<Options>(own); })
        .def("__deepcopy__", [](const Options& own, const py::dict&) { return c10::make_intrusive<Options>(own); });
    py::class_<DistributedBackend, c10::intrusive_ptr<DistributedBackend>, c10d::Backend>(module, "DistributedBackend")
        .def(py::init(&make_backend), py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"),
             py::call_guard<py::gil_scoped_release>())
        .def_property_readonly("options",
                               [](DistributedBackend& own) {
                                 return c10::static_intrusive_pointer_cast<Options>(own.getBackendOptions());
                               })
        // Methods that torch.distributed calls on a group with a bound device, and that base
        // classes lack in some versions.
        .def("perform_nocolor_split", [](DistributedBackend&, const py::object&) {})
        .def("_set_default_timeout", [](DistributedBackend& own, std::chrono::milliseconds t) { own.setTimeout(t); });
    return none();
  });
}

}  // namespace

PyMethodDef distributed_methods[] = {
    {"add_distributed", py_add_distributed, METH_NOARGS, PyDoc_STR("Add DistributedBackend and DistributedOptions.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings
#else
namespace outboard::bindings {

PyMethodDef distributed_methods[] = {{nullptr, nullptr, 0, nullptr}};

}  // namespace outboard::bindings
#endif

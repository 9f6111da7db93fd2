// SPDX-License-Identifier: BSD-3-Clause
// A Python function as the observer of streams.
#include "core/trace.h"

#include "bindings/python.h"

namespace outboard::bindings {

namespace {

// Set the thread's Python error aside for a scope.
class KeptError {
 public:
  KeptError() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~KeptError() { PyErr_Restore(type_, value_, traceback_); }
  KeptError(const KeptError&) = delete;
  KeptError& operator=(const KeptError&) = delete;

 private:
  PyObject* type_;
  PyObject* value_;
  PyObject* traceback_;
};

class PythonTrace final : public Trace {
 public:
  explicit PythonTrace(Object callback) : callback_(std::move(callback)) {}

  void access(const char* op, const Stream& stream, const TraceAccess* accesses, size_t count) override {
    with_python([&] {
      Object list(PyTuple_New(static_cast<Py_ssize_t>(count)));
      for (size_t i = 0; list && i < count; ++i) {
        PyObject* pair = Py_BuildValue("(KO)", static_cast<unsigned long long>(accesses[i].storage),
                                       accesses[i].is_write ? Py_True : Py_False);
        if (!pair) {
          return Object();
        }
        PyTuple_SetItem(list.get(), static_cast<Py_ssize_t>(i), pair);
      }
      return list ? Object(Py_BuildValue("(siLO)", op, static_cast<int>(stream.device),
                                         static_cast<long long>(stream.id), list.get()))
                  : Object();
    });
  }

  void order(TraceOrder kind, c10::DeviceIndex device, c10::StreamId stream, c10::DeviceIndex event_device,
             uint64_t event) override {
    with_python([&] {
      return Object(Py_BuildValue("(iiLiK)", static_cast<int>(kind), static_cast<int>(device),
                                  static_cast<long long>(stream), static_cast<int>(event_device),
                                  static_cast<unsigned long long>(event)));
    });
  }

  void allocate(c10::DeviceIndex device, uint64_t address) override {
    with_python([&] {
      return Object(Py_BuildValue("(iK)", static_cast<int>(device), static_cast<unsigned long long>(address)));
    });
  }

 private:
  // Call the function with the result of `make`. The function distinguishes the three
  // kinds of call by their arguments.
  template <class Make>
  void with_python(Make make) {
    if (python_is_gone()) {
      return;
    }
    const WithGil gil;
    // A traced call may run while an exception propagates, for example when a `with` block is left.
    const KeptError kept;
    const Object arguments = make();
    const Object result(arguments ? PyObject_CallObject(callback_.get(), arguments.get()) : nullptr);
    if (!result) {
      throw_python_error();
    }
  }

  Object callback_;
};

PyObject* py_set_trace(PyObject*, PyObject* callback) {
  return guarded([&] {
    // Never freed: another thread may be about to call it.
    set_trace(callback == Py_None ? nullptr : new PythonTrace(Object(Py_NewRef(callback))));
    return none();
  });
}

}  // namespace

PyMethodDef trace_methods[] = {
    {"set_trace", py_set_trace, METH_O, PyDoc_STR("Calls a function for accesses and what orders them; None ends it.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

// SPDX-License-Identifier: BSD-3-Clause
// A Python function as the observer of streams.
#include "core/observer.h"

#include "bindings/python.h"
#include "torch/host_operators.h"

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

class PythonObserver final : public Observer {
 public:
  explicit PythonObserver(Object callback) : callback_(std::move(callback)) {}

  void access(const char* op, const Stream& stream, const ObservedAccess* accesses, size_t count) override {
    tell_accesses("access", op, stream, accesses, count);
  }

  void capture(const char* op, const Stream& stream, const ObservedAccess* accesses, size_t count) override {
    tell_accesses("capture", op, stream, accesses, count);
  }

  void graph(bool is_replay, const Stream& stream, uint64_t graph) override {
    with_python([&] {
      return Object(Py_BuildValue("(siLK)", is_replay ? "replay" : "graph", static_cast<int>(stream.device),
                                  static_cast<long long>(stream.id), static_cast<unsigned long long>(graph)));
    });
  }

  void record(c10::DeviceIndex device, uint64_t address, c10::StreamId stream) override {
    with_python([&] {
      return Object(Py_BuildValue("(siKL)", "record", static_cast<int>(device),
                                  static_cast<unsigned long long>(address), static_cast<long long>(stream)));
    });
  }

  void poison(c10::DeviceIndex device, uint64_t address, size_t bytes, uint64_t number) override {
    with_python([&] {
      return Object(Py_BuildValue("(siKKK)", "poison", static_cast<int>(device),
                                  static_cast<unsigned long long>(address), static_cast<unsigned long long>(bytes),
                                  static_cast<unsigned long long>(number)));
    });
  }

  void host_copy(const char* op, const Stream& stream, uint64_t address, size_t bytes, bool is_write) override {
    with_python([&] {
      return Object(Py_BuildValue("(ssiLKKO)", "host_copy", op, static_cast<int>(stream.device),
                                  static_cast<long long>(stream.id), static_cast<unsigned long long>(address),
                                  static_cast<unsigned long long>(bytes), is_write ? Py_True : Py_False));
    });
  }

  void host_access(const char* op, uint64_t address, size_t bytes, bool is_write) override {
    with_python([&] {
      return Object(Py_BuildValue("(ssKKO)", "host_access", op, static_cast<unsigned long long>(address),
                                  static_cast<unsigned long long>(bytes), is_write ? Py_True : Py_False));
    });
  }

  void host_allocate(uint64_t address, size_t bytes) override {
    with_python([&] {
      return Object(Py_BuildValue("(sKK)", "host_allocate", static_cast<unsigned long long>(address),
                                  static_cast<unsigned long long>(bytes)));
    });
  }

  void order(ObservedOrder kind, c10::DeviceIndex device, c10::StreamId stream, c10::DeviceIndex event_device,
             uint64_t event) override {
    with_python([&] {
      return Object(Py_BuildValue("(siiLiK)", "order", static_cast<int>(kind), static_cast<int>(device),
                                  static_cast<long long>(stream), static_cast<int>(event_device),
                                  static_cast<unsigned long long>(event)));
    });
  }

  void allocate(c10::DeviceIndex device, uint64_t address, size_t bytes, c10::StreamId stream) override {
    with_python([&] {
      return Object(Py_BuildValue("(siKKL)", "allocate", static_cast<int>(device),
                                  static_cast<unsigned long long>(address), static_cast<unsigned long long>(bytes),
                                  static_cast<long long>(stream)));
    });
  }

 private:
  void tell_accesses(const char* kind, const char* op, const Stream& stream, const ObservedAccess* accesses,
                     size_t count) {
    with_python([&] {
      Object list(PyTuple_New(static_cast<Py_ssize_t>(count)));
      for (size_t i = 0; list && i < count; ++i) {
        const ObservedAccess& access = accesses[i];
        PyObject* item = Py_BuildValue(
            "(KKKKKO)", static_cast<unsigned long long>(access.storage), static_cast<unsigned long long>(access.begin),
            static_cast<unsigned long long>(access.bytes), static_cast<unsigned long long>(access.width),
            static_cast<unsigned long long>(access.pitch), access.is_write ? Py_True : Py_False);
        if (!item) {
          return Object();
        }
        PyTuple_SetItem(list.get(), static_cast<Py_ssize_t>(i), item);
      }
      return list ? Object(Py_BuildValue("(ssiLO)", kind, op, static_cast<int>(stream.device),
                                         static_cast<long long>(stream.id), list.get()))
                  : Object();
    });
  }

  // Call the function with the result of `make`, whose first item is the name of the call.
  template <class Make>
  void with_python(Make make) {
    if (python_is_gone()) {
      return;
    }
    const WithGil gil;
    // An observed call may run while an exception propagates: when a `with` block is left, for
    // example.
    const KeptError kept;
    const Object arguments = make();
    const Object result(arguments ? PyObject_CallObject(callback_.get(), arguments.get()) : nullptr);
    if (!result) {
      throw_python_error();
    }
  }

  Object callback_;
};

PyObject* py_set_observer(PyObject*, PyObject* callback) {
  return guarded([&] {
    // Never freed: another thread may be about to call it.
    set_observer(callback == Py_None ? nullptr : new PythonObserver(Object(Py_NewRef(callback))));
    watch_host_operators(callback != Py_None);
    return none();
  });
}

}  // namespace

PyMethodDef observer_methods[] = {
    {"set_observer", py_set_observer, METH_O,
     PyDoc_STR("Set a function to call for memory accesses and for events that order them, or None.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

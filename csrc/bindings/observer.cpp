// SPDX-License-Identifier: BSD-3-Clause
// A Python function as the observer of streams.
#include "core/observer.h"

#include <c10/util/ArrayRef.h>

#include "bindings/method.h"
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
    report_accesses("access", op, stream, accesses, count);
  }

  void capture(const char* op, const Stream& stream, const ObservedAccess* accesses, size_t count) override {
    report_accesses("capture", op, stream, accesses, count);
  }

  void graph(bool is_replay, const Stream& stream, uint64_t graph) override {
    report(is_replay ? "replay" : "graph", stream.device, stream.id, graph);
  }

  void record(c10::DeviceIndex device, uint64_t address, c10::StreamId stream) override {
    report("record", device, address, stream);
  }

  void poison(c10::DeviceIndex device, uint64_t address, size_t bytes, uint64_t number) override {
    report("poison", device, address, bytes, number);
  }

  void host_copy(const char* op, const Stream& stream, uint64_t address, size_t bytes, bool is_write) override {
    report("host_copy", op, stream.device, stream.id, address, bytes, is_write);
  }

  void host_access(const char* op, uint64_t address, size_t bytes, bool is_write) override {
    report("host_access", op, address, bytes, is_write);
  }

  void host_allocate(uint64_t address, size_t bytes) override { report("host_allocate", address, bytes); }

  void order(ObservedOrder kind, c10::DeviceIndex device, c10::StreamId stream, c10::DeviceIndex event_device,
             uint64_t event) override {
    report("order", static_cast<int>(kind), device, stream, event_device, event);
  }

  void allocate(c10::DeviceIndex device, uint64_t address, size_t bytes, c10::StreamId stream) override {
    report("allocate", device, address, bytes, stream);
  }

 private:
  void report_accesses(const char* kind, const char* op, const Stream& stream, const ObservedAccess* accesses,
                       size_t count) {
    std::vector<std::tuple<uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, bool>> rows;
    for (const ObservedAccess& access : c10::ArrayRef(accesses, count)) {
      rows.emplace_back(access.storage, access.begin, access.bytes, access.width, access.pitch, access.is_write);
    }
    report(kind, op, stream.device, stream.id, rows);
  }

  // Call the function with these arguments; the first is the name of the call.
  template <class... Values>
  void report(const Values&... values) {
    if (python_is_gone()) {
      return;
    }
    const WithGil gil;
    // An observed call may run while an exception propagates: when a `with` block is left, for
    // example.
    const KeptError kept;
    const Object arguments(to_python(std::tuple<const Values&...>(values...)));
    const Object result(arguments ? PyObject_CallObject(callback_.get(), arguments.get()) : nullptr);
    if (!result) {
      throw_python_error();
    }
  }

  Object callback_;
};

void observe_by(PyObject* callback) {
  // Never freed: another thread may be about to call it.
  set_observer(callback == Py_None ? nullptr : new PythonObserver(Object(Py_NewRef(callback))));
  watch_host_operators(callback != Py_None);
}

}  // namespace

PyMethodDef observer_methods[] = {
    method<"set_observer", observe_by>(
        "Set a function to call for memory accesses and for events that order them, or None."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

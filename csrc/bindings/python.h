// SPDX-License-Identifier: BSD-3-Clause
// Python's C API for the bindings. The full API, not the limited one: see docs/maintaining.md.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <utility>

namespace outboard::bindings {

// An owned reference. Destroy it with the interpreter lock held.
class Object {
 public:
  Object() = default;
  explicit Object(PyObject* owned) noexcept : pointer_(owned) {}
  Object(Object&& other) noexcept : pointer_(std::exchange(other.pointer_, nullptr)) {}
  Object& operator=(Object&& other) noexcept {
    std::swap(pointer_, other.pointer_);
    return *this;
  }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  ~Object() { Py_XDECREF(pointer_); }

  PyObject* get() const noexcept { return pointer_; }
  PyObject* release() noexcept { return std::exchange(pointer_, nullptr); }
  explicit operator bool() const noexcept { return pointer_ != nullptr; }

 private:
  PyObject* pointer_ = nullptr;
};

// Release the interpreter lock for a scope. The thread must hold it.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Call a function without the interpreter lock.
template <class Body>
decltype(auto) unlocked_call(Body&& body) {
  const WithoutGil without_gil;
  return body();
}

// Take the interpreter lock for a scope, in any thread, whether or not it holds the lock.
class WithGil {
 public:
  WithGil() : state_(PyGILState_Ensure()) {}
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};

// Set the Python error for the C++ exception being handled.
void set_python_error() noexcept;
// Throw the Python error as torch's own exception, which its bindings and autograd threads
// pass on with type and traceback.
[[noreturn]] void throw_python_error();

// Run the body of a binding function. A C++ exception becomes a Python one.
template <class Body>
PyObject* guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    set_python_error();
    return nullptr;
  }
}

// Return true if the call has `expected` arguments, else set a TypeError.
inline bool has_arguments(const char* function, Py_ssize_t count, Py_ssize_t expected) {
  if (count == expected) {
    return true;
  }
  PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, but %zd were given", function, expected, count);
  return false;
}

// Each returns false with a Python error set if the object is not an integer of that range.
inline bool to_int64(PyObject* object, int64_t* out) {
  *out = PyLong_AsLongLong(object);
  return *out != -1 || !PyErr_Occurred();
}
inline bool to_uint64(PyObject* object, uint64_t* out) {
  *out = PyLong_AsUnsignedLongLong(object);
  return *out != UINT64_MAX || !PyErr_Occurred();
}
// Convert any device index. The core checks whether the device exists.
bool to_device(PyObject* object, c10::DeviceIndex* out);
bool to_mempool(PyObject* object, c10::MempoolId_t* out);
bool to_text(PyObject* object, const char* what, std::string* out);

inline PyObject* none() {
  return Py_NewRef(Py_None);
}
inline PyObject* from_text(const std::string& text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

// Set an item of a dict. Return false with a Python error set, also if `owned` is null.
inline bool set_item(PyObject* dict, const char* key, PyObject* owned) {
  const Object value(owned);
  return value && PyDict_SetItemString(dict, key, value.get()) == 0;
}

// Return true once Python code can no longer be called, because the interpreter is about to end.
bool python_is_gone() noexcept;
void mark_python_gone() noexcept;

// The contents of the module. Each array ends with a null entry.
extern PyMethodDef driver_methods[];
extern PyMethodDef device_methods[];
extern PyMethodDef stream_methods[];
extern PyMethodDef memory_methods[];
extern PyMethodDef memory_pool_methods[];
extern PyMethodDef memory_history_methods[];
extern PyMethodDef storage_methods[];
extern PyMethodDef ops_methods[];
extern PyMethodDef amp_methods[];
extern PyMethodDef generator_methods[];
extern PyMethodDef graph_methods[];
extern PyMethodDef host_view_methods[];
extern PyMethodDef observer_methods[];
extern PyMethodDef compile_methods[];
extern PyMethodDef kernels_methods[];
extern PyMethodDef launch_methods[];
extern PyMethodDef private_file_methods[];
extern PyMethodDef distributed_methods[];

void install_raiser();  // errors.cpp
void install_plan_builder();  // kernels.cpp
bool install_blocking_hooks();  // gil.cpp; false with a Python error

// Take the Python exception that caused the entry failure for which the core is raising an error,
// or an empty object if there is none. Taking the exception clears it.
Object take_trampoline_exception();

}  // namespace outboard::bindings

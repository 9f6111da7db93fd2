// SPDX-License-Identifier: BSD-3-Clause
// Exceptions in both directions. An error of the core becomes a Python exception. It travels as
// torch's `python_error`, so it passes through torch's own bindings unchanged.
#include "bindings/python.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include <variant>

#include "core/error.h"
#include "core/late_warnings.h"
#include "ops/operator/api.h"

namespace outboard::bindings {

void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
}

namespace {

// Make the exception of torch_outboard._errors and leave it as the thread's Python error.
void set_outboard_error(ErrorKind kind, ob_status code, const std::string& message) {
  Object cause = take_trampoline_exception();
  if (cause && !PyErr_GivenExceptionMatches(cause.get(), PyExc_Exception)) {
    // KeyboardInterrupt and similar exceptions are for the program, not for error handlers.
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(cause.get())), cause.get());
    return;
  }
  const Object errors(PyImport_ImportModule("torch_outboard._errors"));
  if (!errors) {
    return;
  }
  const Failed failed = failed_entry();
  const Object device(failed.device < 0 ? none() : PyLong_FromLong(failed.device));
  const Object exception(device ? PyObject_CallMethod(errors.get(), "from_core", "iiNzO", static_cast<int>(kind),
                                                      static_cast<int>(code), from_text(message), failed.entry,
                                                      device.get())
                                : nullptr);
  if (!exception) {
    return;
  }
  if (cause) {
    PyException_SetCause(exception.get(), Py_NewRef(cause.get()));
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.get())), exception.get());
}

// Raise the Python exception. Return for the kinds with a C++ class in torch, and once
// Python cannot be called any more.
void raise_python(ErrorKind kind, ob_status code, const std::string& message) {
  const bool is_own_error = kind == ErrorKind::Driver || kind == ErrorKind::NotSupported ||
                            kind == ErrorKind::Registration || kind == ErrorKind::Capture;
  if (!is_own_error || python_is_gone()) {
    return;
  }
  const WithGil gil;
  set_outboard_error(kind, code, message);
  throw_python_error();
}

// Issue a warning of queued work in Python. Raise if a filter turns it into an error.
void warn_in_python(const c10::Warning& warning) {
  if (python_is_gone()) {
    c10::WarningHandler().process(warning);
    return;
  }
  const WithGil gil;
  PyObject* const category =
      std::holds_alternative<c10::DeprecationWarning>(warning.type()) ? PyExc_DeprecationWarning : PyExc_UserWarning;
  if (PyErr_WarnEx(category, warning.msg().c_str(), 1) < 0) {
    throw_python_error();
  }
}

// Classify the exception. KeyboardInterrupt and SystemExit are not subclasses of Exception.
MetaFailure classify_meta_failure(const std::exception& error) {
  if (python_is_gone()) {
    return MetaFailure::Refusal;
  }
  // Torch's own exception, or the one of its callbacks into Python.
  const auto* own = dynamic_cast<const python_error*>(&error);
  const auto* called = dynamic_cast<const py::error_already_set*>(&error);
  if (!(own && own->type) && !called) {
    return MetaFailure::Refusal;
  }
  const WithGil gil;
  PyObject* const type = own ? own->type : called->type().ptr();
  if (!PyErr_GivenExceptionMatches(type, PyExc_Exception)) {
    return MetaFailure::Interrupt;
  }
  return PyErr_GivenExceptionMatches(type, PyExc_NotImplementedError) ? MetaFailure::NoKernel : MetaFailure::Refusal;
}

// Return a new exception with the same type, arguments, attributes and cause, or null with no error
// set if the class refuses to be copied.
Object copy_exception(PyObject* exception) {
  if (exception == nullptr || !PyExceptionInstance_Check(exception)) {
    return Object();
  }
  const Object module(PyImport_ImportModule("copy"));
  Object copied(module ? PyObject_CallMethod(module.get(), "copy", "O", exception) : nullptr);
  if (!copied || !PyExceptionInstance_Check(copied.get())) {
    PyErr_Clear();
    return Object();
  }
  PyException_SetCause(copied.get(), PyException_GetCause(exception));
  return copied;
}

// See ErrorCopier: restoring a python_error transfers its references. Nor may two copies share the
// exception: it gets a traceback when it is raised, whose frames may own what keeps the error.
std::exception_ptr copy_python_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const python_error& error) {
    const WithGil gil;
    python_error copied(error);
    if (Object exception = copy_exception(error.value)) {
      Py_XSETREF(copied.value, exception.release());
      Py_CLEAR(copied.traceback);
    }
    return std::make_exception_ptr(std::move(copied));
  } catch (...) {
    return error;
  }
}

}  // namespace

void install_raiser() {
  set_raiser(raise_python);
  set_error_copier(copy_python_error);
  set_warning_issuer(warn_in_python);
  set_meta_failure_classifier(classify_meta_failure);
}

void set_python_error() noexcept {
  try {
    torch::translate_exception_to_python(std::current_exception());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "torch-outboard's core raised an exception of an unknown type");
  }
}

}  // namespace outboard::bindings

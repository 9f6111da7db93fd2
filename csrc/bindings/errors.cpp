// SPDX-License-Identifier: BSD-3-Clause
// Exceptions in both directions: what the core raises becomes a Python exception, and passes through torch's own
// bindings unchanged, since it travels as torch's `python_error`.
#define OUTBOARD_TORCH_PYTHON
#include "bindings/python.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include "core/error.h"

namespace outboard::bindings {

namespace {

// Makes the exception of torch_outboard._errors and leaves it as the thread's Python error.
void set_outboard_error(ErrorKind kind, ob_status code, const std::string& message) {
  const Object cause = take_trampoline_exception();
  const Object errors(PyImport_ImportModule("torch_outboard._errors"));
  if (!errors) {
    return;
  }
  const Object exception(PyObject_CallMethod(errors.get(), "from_core", "iiN", static_cast<int>(kind),
                                             static_cast<int>(code), from_text(message)));
  if (!exception) {
    return;
  }
  if (cause) {
    PyException_SetCause(exception.get(), Py_NewRef(cause.get()));
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.get())), exception.get());
}

// Returns for the kinds that torch has a C++ class for, and when Python can't be asked any more.
void raise_python(ErrorKind kind, ob_status code, const std::string& message) {
  const bool is_ours = kind == ErrorKind::Driver || kind == ErrorKind::NotSupported ||
                       kind == ErrorKind::Registration || kind == ErrorKind::Capture;
  if (!is_ours || python_is_gone()) {
    return;
  }
  const WithGil gil;
  set_outboard_error(kind, code, message);
  throw_python_error();
}

}  // namespace

void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
}

void install_raiser() {
  set_raiser(raise_python);
}

void set_python_error() noexcept {
  try {
    torch::translate_exception_to_python(std::current_exception());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "an exception of an unknown type came out of torch-outboard's core");
  }
}

}  // namespace outboard::bindings

// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstring>

#include "bindings/trampoline.h"
#include "core/error.h"

namespace outboard::bindings::trampoline {

namespace {

thread_local int calls_under_way = 0;

// The failure of this thread's last trampoline. take_… or the next trampoline releases the
// exception: a handled one must not become the cause of a later error.
thread_local const char* failed_in = nullptr;
thread_local std::string failure;
thread_local PyObject* failed_exception = nullptr;

// Return true if the core asks about that failure: entries that are C
// functions fail without a trampoline.
bool is_entry_queried() {
  const char* entry = failed_entry().entry;
  return failed_in != nullptr && (entry == nullptr || std::strcmp(entry, failed_in) == 0);
}

std::string text_of(PyObject* object) {
  const Object text(PyObject_Str(object));
  Py_ssize_t size = 0;
  const char* data = text ? PyUnicode_AsUTF8AndSize(text.get(), &size) : nullptr;
  if (!data) {
    PyErr_Clear();
    return "(its text could not be read)";
  }
  return {data, static_cast<size_t>(size)};
}

// Return the code of an exception that carries one (DriverError), else the code of its class.
ob_status status_of(PyObject* exception, bool* out_has_code) {
  *out_has_code = false;
  if (PyErr_GivenExceptionMatches(exception, PyExc_MemoryError)) {
    return OB_OUT_OF_MEMORY;
  }
  if (PyErr_GivenExceptionMatches(exception, PyExc_NotImplementedError)) {
    return OB_UNIMPLEMENTED;
  }
  if (PyErr_GivenExceptionMatches(exception, PyExc_KeyboardInterrupt)) {
    return OB_CANCELLED;
  }
  const Object errors(PyImport_ImportModule("torch_outboard._errors"));
  const Object driver_error(errors ? PyObject_GetAttrString(errors.get(), "DriverError") : nullptr);
  if (driver_error && PyErr_GivenExceptionMatches(exception, driver_error.get())) {
    const Object code(PyObject_GetAttrString(exception, "code"));
    const long value = code ? PyLong_AsLong(code.get()) : -1;
    PyErr_Clear();
    if (value > 0 && value <= INT32_MAX) {
      *out_has_code = true;
      return static_cast<ob_status>(value);
    }
  }
  PyErr_Clear();
  return OB_INTERNAL;
}

}  // namespace

Methods methods{};
const Methods* replaced = nullptr;

const char* name_of(Entry entry) noexcept {
  static const char* const names[] = {
#define X(name) #name,
      OB_ENTRIES(X)
#undef X
  };
  return names[static_cast<int>(entry)];
}

bool is_in_method() noexcept {
  return calls_under_way > 0;
}

Object take_exception() {
  return failed_entry().entry != nullptr && is_entry_queried() ? Object(std::exchange(failed_exception, nullptr))
                                                               : Object();
}

Object to_bytes(const void* data, size_t size) {
  return Object(PyBytes_FromStringAndSize(static_cast<const char*>(data), static_cast<Py_ssize_t>(size)));
}

void set_failure(Entry entry, std::string text) {
  failed_in = name_of(entry);
  failure = std::move(text);
}

ob_status take_error(Entry entry, bool has_result) {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) {
    PyException_SetTraceback(value, traceback);
  }
  Object exception(value);
  const Object type_owner(type);
  const Object traceback_owner(traceback);
  bool has_code = false;
  const ob_status status = status_of(value, &has_code);
  std::string text = text_of(value);
  if (!has_code) {
    const Object name(PyType_GetName(Py_TYPE(value)));
    text = (name ? text_of(name.get()) : std::string("an exception")) + (text.empty() ? "" : ": ") + text;
  }
  if (has_result) {
    text = std::string("the result of ") + name_of(entry) + " is not usable: " + text;
  }
  set_failure(entry, std::move(text));
  Py_XDECREF(std::exchange(failed_exception, exception.release()));
  return status;
}

PyObject* method_of(Entry entry) {
  const Methods& bound = entry == Entry::destroy && replaced != nullptr ? *replaced : methods;
  return bound.of[static_cast<int>(entry)];
}

PyGILState_STATE begin_call() {
  const PyGILState_STATE gil = PyGILState_Ensure();
  failed_in = nullptr;
  Py_CLEAR(failed_exception);
  ++calls_under_way;
  return gil;
}

void end_call(PyGILState_STATE gil) {
  --calls_under_way;
  PyGILState_Release(gil);
}

void on_last_error(void* self, char* buffer, size_t size) {
  if (!is_entry_queried()) {
    if (methods.library_last_error) {
      methods.library_last_error(self, buffer, size);
    } else if (size > 0) {
      buffer[0] = '\0';
    }
    return;
  }
  if (size > 0) {
    const size_t count = std::min(failure.size(), size - 1);
    std::memcpy(buffer, failure.data(), count);
    buffer[count] = '\0';
  }
}

}  // namespace outboard::bindings::trampoline

// SPDX-License-Identifier: BSD-3-Clause
// The interpreter lock during long waits of the core.
#include "bindings/python.h"

#include <atomic>
#include <cstdio>
#include <cstring>

#include "bindings/entries.h"
#include "core/blocking.h"
#include "core/wait.h"

namespace outboard::bindings {

namespace {

std::atomic<bool> is_gone{false};

void* enter() {
  // Most waiting threads have already released the lock: torch's bindings do before they dispatch.
  return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
}

void leave(void* state) {
  PyEval_RestoreThread(static_cast<PyThreadState*>(state));
}

// Report a wait through logging, because a waiting thread cannot get a warning. Without a handler
// it goes to the standard error.
void report_wait(const std::string& text) {
  if (python_is_gone()) {
    std::fprintf(stderr, "torch_outboard: %s\n", text.c_str());
    return;
  }
  const WithGil gil;
  const Object logging(PyImport_ImportModule("logging"));
  const Object logger(logging ? PyObject_CallMethod(logging.get(), "getLogger", "s", "torch_outboard") : nullptr);
  const Object result(logger ? PyObject_CallMethod(logger.get(), "warning", "ss", "%s", text.c_str()) : nullptr);
  if (!result) {
    PyErr_WriteUnraisable(nullptr);
  }
}

unsigned long main_thread = 0;

// Python handles signals only in its main thread; a driver's method that waits handles them itself.
bool can_interrupt(const char* entry) {
  return PyThread_get_thread_ident() == main_thread && !is_python_method(entry) && !python_is_gone();
}

void handle_signals() {
  const WithGil gil;
  if (PyErr_CheckSignals() < 0) {
    throw_python_error();
  }
}

// Find the number of Python's main thread. Return false with a Python error.
bool find_main_thread() {
  const Object threading(PyImport_ImportModule("threading"));
  const Object thread(threading ? PyObject_CallMethod(threading.get(), "main_thread", nullptr) : nullptr);
  const Object number(thread ? PyObject_GetAttrString(thread.get(), "ident") : nullptr);
  main_thread = number ? PyLong_AsUnsignedLong(number.get()) : 0;
  return !PyErr_Occurred();
}

}  // namespace

bool install_blocking_hooks() {
  if (!find_main_thread()) {
    return false;
  }
  set_blocking_hooks({enter, leave});
  set_wait_reporter(report_wait);
  set_interrupt_hooks({can_interrupt, handle_signals});
  return true;
}

bool python_is_gone() noexcept {
  return is_gone.load(std::memory_order_acquire) || !Py_IsInitialized();
}

void mark_python_gone() noexcept {
  is_gone.store(true);
}

}  // namespace outboard::bindings

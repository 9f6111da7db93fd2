// SPDX-License-Identifier: BSD-3-Clause
// The interpreter lock around long waits of the core. PyGILState_Check is not in the limited API.
#define OUTBOARD_TORCH_PYTHON
#include "bindings/python.h"

#include <atomic>

#include "core/blocking.h"

namespace outboard::bindings {

namespace {

std::atomic<bool> is_gone{false};

void* enter() {
  // Most threads that wait have already given the lock up: torch's bindings do before they dispatch.
  return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
}

void leave(void* state) {
  PyEval_RestoreThread(static_cast<PyThreadState*>(state));
}

}  // namespace

void install_blocking_hooks() {
  set_blocking_hooks({enter, leave});
}

bool python_is_gone() noexcept {
  return is_gone.load(std::memory_order_acquire) || !Py_IsInitialized();
}

void mark_python_gone() noexcept {
  is_gone.store(true);
}

}  // namespace outboard::bindings

// SPDX-License-Identifier: BSD-3-Clause
// Pinned memory statistics and out-of-memory observers, for memory.cpp.
#pragma once

#include "bindings/python.h"
#include "memory/management.h"

namespace outboard::bindings {

// Return a nested dict of the pinned allocator's statistics; null with a Python error set.
PyObject* host_statistics();
void reset_host_statistics(bool is_peak);  // may wait

// Return an observer that calls the Python function with the interpreter lock
// held. Its exceptions pass through.
OutOfMemoryObserver make_observer(PyObject* function);

}  // namespace outboard::bindings

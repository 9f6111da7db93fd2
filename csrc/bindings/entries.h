// SPDX-License-Identifier: BSD-3-Clause
// The entries of ob_driver by name, for binding them one by one.
#pragma once

#include <torch_outboard/driver.h>

#include <cstddef>

#include "bindings/python.h"

namespace outboard::bindings {

struct EntryInfo {
  const char* name;
  size_t offset;     // in ob_driver
  void* trampoline;  // null: can't be a Python method
};

extern const EntryInfo entries[];
extern const size_t entry_count;

// Whether the table has the entry.
bool has_entry(const ob_driver& table, const EntryInfo& entry);

// Binds what a dict names to the table: an int is the address of a C function, a callable goes through a trampoline,
// which keeps it for the life of the process. False with a RegistrationError or another Python error set.
bool bind_entries(const char* driver, PyObject* dict, ob_driver* table);

}  // namespace outboard::bindings

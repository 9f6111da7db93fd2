// SPDX-License-Identifier: BSD-3-Clause
// The entries of ob_driver by name, for binding them one by one.
#pragma once

#include <torch_outboard/driver.h>

#include <cstddef>
#include <memory>

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

// An attach under way. Methods that are bound meanwhile count at once, since the driver is asked for its devices before
// it is installed; without keep() those of the driver before are back at the end. The caller holds the interpreter lock.
class Rebinding {
 public:
  Rebinding();
  ~Rebinding();
  Rebinding(const Rebinding&) = delete;
  Rebinding& operator=(const Rebinding&) = delete;

  void keep() { is_kept_ = true; }

 private:
  struct Before;
  std::unique_ptr<Before> before_;
  bool is_kept_ = false;
};

// Whether this thread is within a Python method that the core called as an entry.
bool is_in_entry() noexcept;

// Whether the attached driver's entry is a Python method. Entries that wait only.
bool is_python_method(const char* entry) noexcept;

// Binds what a dict names to the table: an int is the address of a C function, a callable goes through a trampoline,
// which keeps it for the life of the process. False with a RegistrationError or another Python error set.
bool bind_entries(const char* driver, PyObject* dict, ob_driver* table);

}  // namespace outboard::bindings

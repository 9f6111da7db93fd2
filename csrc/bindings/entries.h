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
  size_t offset;     // offset in ob_driver
  void* trampoline;  // null: cannot be a Python method
};

extern const EntryInfo entries[];
extern const size_t entry_count;

// Return true if the table has the entry.
bool has_entry(const ob_driver& table, const EntryInfo& entry);

// An attach in progress. Methods that it binds take effect at once, because the core queries the
// driver's devices before it installs the driver. Unless keep() was called, the destructor restores
// the earlier driver's methods. The caller holds the interpreter lock.
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

// Return true if this thread is within a Python method that the core called as an entry.
bool is_in_entry() noexcept;

// Return true if the attached driver's entry is a Python method. Only for entries that wait.
bool is_python_method(const char* entry) noexcept;

// Bind the members of a dict to the table. An int is the address of a C function. A callable goes
// through a trampoline, which keeps the callable for the life of the process. Return false with a
// RegistrationError or another Python error set.
bool bind_entries(const char* driver, PyObject* dict, ob_driver* table);

}  // namespace outboard::bindings

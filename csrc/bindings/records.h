// SPDX-License-Identifier: BSD-3-Clause
// Records that Python passes: NamedTuples such as KernelRecord (torch_outboard/codegen/program.py).
// Their fields are read by name. The thread holds the interpreter lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bindings/python.h"
#include "kernels/device_kernel.h"

namespace outboard::bindings {

class Record {
 public:
  // Read from an object that outlives this one. `kind` is the record's name in errors.
  Record(PyObject* object, const char* kind) : object_(object), kind_(kind) {}

  // Each raises TypeError, with the names of the record and the field, for a
  // missing field and for another type.
  Object field(const char* name) const;
  std::string text(const char* name) const;
  std::string bytes(const char* name) const;
  // A function without arguments that returns bytes, or None, which is null here. It may be called
  // and destroyed on any thread. After the interpreter's end it returns "".
  std::function<std::string()> reader(const char* name) const;
  bool flag(const char* name) const;
  std::vector<Object> items(const char* name) const;  // the items of a tuple or a list
  std::vector<std::string> texts(const char* name) const;

 private:
  [[noreturn]] void refuse(const char* name, const char* wanted, PyObject* value) const;
  std::string text_of(const char* name, const char* wanted, PyObject* value) const;

  PyObject* object_;
  const char* kind_;
};

// Read the fields `language`, `code` and `options`.
kernels::ProgramText program_text_of(const Record& record);

// Read a KernelRecord. Raise ValueError for invalid letters, formulas or checks.
std::unique_ptr<const kernels::DeviceKernel> device_kernel_of(PyObject* object);

}  // namespace outboard::bindings

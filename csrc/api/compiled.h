// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>

#include "core/export.h"

namespace outboard {

// While one is there, it keeps the first exception that a function of torch_outboard/compiled.h throws on its thread:
// generated code hands on the text alone.
class OUTBOARD_API CompiledErrors {
 public:
  CompiledErrors();
  ~CompiledErrors();
  CompiledErrors(const CompiledErrors&) = delete;
  CompiledErrors& operator=(const CompiledErrors&) = delete;

  // Null if none was thrown.
  std::exception_ptr first() const { return first_; }
  void keep(std::exception_ptr error);

 private:
  std::exception_ptr first_;
  CompiledErrors* outer_;
};

}  // namespace outboard

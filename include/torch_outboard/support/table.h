// SPDX-License-Identifier: BSD-3-Clause
// The table that a driver returns to the core.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "torch_outboard/driver.h"
#include "torch_outboard/support/error.h"

namespace support {

// Copy a struct to the caller, who may have been compiled with a shorter one.
template <class Struct>
void return_struct(Struct value, Struct* out_value) {
  value.struct_size = std::min(out_value->struct_size, sizeof value);
  std::memcpy(out_value, &value, value.struct_size);
}

// Write a property's text, cut to its field.
template <size_t kSize>
void copy_name(const std::string& text, char (&out)[kSize]) {
  copy_text(text.c_str(), out, kSize);
}

// The body of ob_driver_table: parse the options, and let `fill(options,
// table)` set the entries and `self`.
template <class Options, class Fill>
ob_status return_table(ob_status (*parse)(const ob_options*, Options*, std::string*), const ob_options* given,
                       ob_driver* out_driver, char* error, size_t error_size, Fill&& fill) noexcept {
  try {
    Options options;
    std::string problem;
    if (const ob_status status = parse(given, &options, &problem); status != OB_OK) {
      copy_text(problem.c_str(), error, error_size);
      return status;
    }
    ob_driver table = {};
    table.abi_major = OB_ABI_MAJOR;
    table.abi_minor = OB_ABI_MINOR;
    fill(std::move(options), table);
    return_struct(table, out_driver);
    return OB_OK;
  } catch (const std::exception& exception) {
    copy_text(exception.what(), error, error_size);
    return OB_INTERNAL;
  }
}

}  // namespace support

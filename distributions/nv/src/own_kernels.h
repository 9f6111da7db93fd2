// SPDX-License-Identifier: BSD-3-Clause
// The driver's own kernels, those of own_source.h.
#pragma once

#include <string>
#include <vector>

#include "driver.h"

namespace nv {

constexpr uint32_t kThreads = 256;  // as in own_source.h

inline ob_kernel_arg pointer_arg(uint64_t address) {
  return {sizeof(ob_kernel_arg), OB_ARG_POINTER, 0, address, nullptr};
}

inline ob_kernel_arg value_arg(const void* value, size_t size) {
  return {sizeof(ob_kernel_arg), OB_ARG_VALUE, static_cast<uint32_t>(size), 0, value};
}

// Compile the kernels for a type, if they are not there: "1" to "16" for the elements of copies
// and fills, "float" and so on for biases. Return OB_UNIMPLEMENTED, with the reason, if there is no
// compiler for the device.
ob_status load_own(Driver& driver, Device& device, const std::string& type);

// Launch a kernel for a type with blocks of `columns` × `rows` threads. It does what load_own does
// first.
ob_status run_own(Driver& driver, Device& device, CUstream stream, const std::string& kernel, const std::string& type,
                  uint32_t blocks, uint32_t columns, uint32_t rows, const std::vector<ob_kernel_arg>& args);

}  // namespace nv

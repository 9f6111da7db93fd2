// SPDX-License-Identifier: BSD-3-Clause
// The driver's own kernels, those of kernels.cu.
#pragma once

#include <string>
#include <vector>

#include "driver.h"

namespace nv {

constexpr uint32_t kThreads = 256;  // as in kernels.cu
constexpr int kOldestMajor = 7;     // compute capability

inline ob_kernel_arg pointer_arg(uint64_t address) {
  return {sizeof(ob_kernel_arg), OB_ARG_POINTER, 0, address, nullptr};
}

inline ob_kernel_arg value_arg(const void* value, size_t size) {
  return {sizeof(ob_kernel_arg), OB_ARG_VALUE, static_cast<uint32_t>(size), 0, value};
}

// Launch one of the driver's own kernels with blocks of `columns` × `rows` threads. The module is
// loaded at a device's first use of one.
ob_status run_own(Driver& driver, Device& device, CUstream stream, const std::string& name, uint32_t blocks,
                  uint32_t columns, uint32_t rows, const std::vector<ob_kernel_arg>& args);

}  // namespace nv

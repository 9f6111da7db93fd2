// SPDX-License-Identifier: BSD-3-Clause
// What the operators by NVIDIA's libraries read of a call.
#pragma once

#include <cstddef>

#include "torch_outboard/driver.h"

namespace nv {

inline const ob_value& value_at(const ob_kernel_call& call, size_t place) {
  return *reinterpret_cast<const ob_value*>(reinterpret_cast<const char*>(call.args) + place * call.arg_stride);
}

inline const ob_tensor& output_at(const ob_kernel_call& call, size_t place) {
  return *reinterpret_cast<const ob_tensor*>(reinterpret_cast<const char*>(call.outputs) + place * call.output_stride);
}

// Return true if torch asks for all bits of `flags`, which are OB_CALL_ bits.
inline bool has_flags(const ob_kernel_call& call, uint64_t flags) {
  return (call.flags & flags) == flags;
}

// Register the operators of one library.
ob_status register_products(void* self, const ob_registrar* registrar);
ob_status register_convolutions(void* self, const ob_registrar* registrar);
ob_status register_attention(void* self, const ob_registrar* registrar);
ob_status register_recurrent(void* self, const ob_registrar* registrar);

}  // namespace nv

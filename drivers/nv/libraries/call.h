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

// Return false for a core older than version 1.3, which provides no memory for a call.
inline bool has_scratch(const ob_kernel_call& call) {
  return call.struct_size >= offsetof(ob_kernel_call, scratch) + sizeof call.scratch && call.scratch != nullptr;
}

// Return true if torch asks for all bits of `flags`. A core older than version 1.6 tells none.
inline bool has_flags(const ob_kernel_call& call, uint64_t flags) {
  return call.struct_size >= offsetof(ob_kernel_call, flags) + sizeof call.flags && (call.flags & flags) == flags;
}

inline bool has_draw(const ob_kernel_call& call) {
  return call.struct_size >= offsetof(ob_kernel_call, draw) + sizeof call.draw;
}

// Return true if the results must be the same in each run, as `switch_of_torch` says:
// always, if the core can't tell.
inline bool must_repeat(const ob_kernel_call& call, uint64_t switch_of_torch = OB_CALL_REPEATS) {
  return !has_draw(call) || has_flags(call, switch_of_torch);
}

// Register the operators of one library.
ob_status register_products(void* self, const ob_registrar* registrar);
ob_status register_convolutions(void* self, const ob_registrar* registrar);
ob_status register_attention(void* self, const ob_registrar* registrar);
ob_status register_recurrent(void* self, const ob_registrar* registrar);

}  // namespace nv

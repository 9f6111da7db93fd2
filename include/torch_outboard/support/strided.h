// SPDX-License-Identifier: BSD-3-Clause
// A strided copy in the form that a device kernel takes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "torch_outboard/driver.h"

namespace support {

constexpr uint32_t kMaxStridedDims = 8;

// Dimensions from the destination's fastest on, merged if both sides allow it.
struct StridedShape {
  uint32_t ndim = 0;
  uint64_t count = 1;
  int64_t sizes[kMaxStridedDims] = {};
  int64_t dst_strides[kMaxStridedDims] = {};
  int64_t src_strides[kMaxStridedDims] = {};
};

// Return false if more than kMaxStridedDims dimensions are left. A count of 0 means
// that there is nothing to copy.
inline bool make_strided_shape(const ob_copy_nd& copy, StridedShape* out_shape) {
  struct Dim {
    int64_t size, dst, src;
  };
  Dim dims[64];
  uint32_t count = 0;
  bool is_empty = false;
  *out_shape = {};
  for (uint32_t i = 0; i < copy.ndim && i < 64; ++i) {
    const auto size = static_cast<uint64_t>(copy.sizes[i]);
    is_empty |= size == 0;
    if (__builtin_mul_overflow(out_shape->count, size, &out_shape->count)) out_shape->count = UINT64_MAX;
    if (copy.sizes[i] != 1) dims[count++] = {copy.sizes[i], copy.dst_strides[i], copy.src_strides[i]};
  }
  if (is_empty) {
    out_shape->count = 0;
    return true;
  }
  std::stable_sort(dims, dims + count,
                   [](const Dim& a, const Dim& b) { return a.dst != b.dst ? a.dst < b.dst : a.src < b.src; });
  for (uint32_t i = 0; i < count; ++i) {
    const Dim& dim = dims[i];
    const uint32_t last = out_shape->ndim - 1;
    if (out_shape->ndim > 0 && dim.dst == out_shape->dst_strides[last] * out_shape->sizes[last] &&
        dim.src == out_shape->src_strides[last] * out_shape->sizes[last]) {
      out_shape->sizes[last] *= dim.size;
      continue;
    }
    if (out_shape->ndim == kMaxStridedDims) return false;
    out_shape->sizes[out_shape->ndim] = dim.size;
    out_shape->dst_strides[out_shape->ndim] = dim.dst;
    out_shape->src_strides[out_shape->ndim] = dim.src;
    ++out_shape->ndim;
  }
  return true;
}

// Merge neighbours that are adjacent on both sides into larger elements, up to 16 bytes, as far as
// sizes, strides and addresses allow. Return the element size.
inline uint32_t widen(StridedShape* shape, uint32_t element_size, uint64_t dst, uint64_t src) {
  const auto is_even = [&] {
    if (shape->ndim == 0 || shape->dst_strides[0] != 1 || shape->src_strides[0] != 1 || shape->sizes[0] % 2 != 0) {
      return false;
    }
    for (uint32_t i = 1; i < shape->ndim; ++i) {
      if (shape->dst_strides[i] % 2 != 0 || shape->src_strides[i] % 2 != 0) return false;
    }
    return (dst | src) % (2 * element_size) == 0;
  };
  while (element_size < 16 && is_even()) {
    element_size *= 2;
    shape->count /= 2;
    shape->sizes[0] /= 2;
    for (uint32_t i = 1; i < shape->ndim; ++i) {
      shape->dst_strides[i] /= 2;
      shape->src_strides[i] /= 2;
    }
  }
  return element_size;
}

// Return the bytes from the first element to the end of the last. If this exceeds 64 bits, return
// the largest 64-bit number, which no memory reaches.
inline uint64_t span_bytes(const ob_copy_nd& copy, const int64_t* strides) {
  uint64_t elements = 1;
  uint64_t bytes = 0;
  bool overflows = false;
  for (uint32_t i = 0; i < copy.ndim; ++i) {
    uint64_t reach = 0;
    overflows |=
        __builtin_mul_overflow(static_cast<uint64_t>(copy.sizes[i] - 1), static_cast<uint64_t>(strides[i]), &reach);
    overflows |= __builtin_add_overflow(elements, reach, &elements);
  }
  overflows |= __builtin_mul_overflow(elements, static_cast<uint64_t>(copy.element_size), &bytes);
  return overflows ? UINT64_MAX : bytes;
}

// Return true if the contract allows these sizes and strides.
inline bool is_well_formed(const ob_copy_nd& copy) {
  if (copy.ndim < 1 || copy.ndim > 64) return false;
  const uint32_t size = copy.element_size;
  if (size != 1 && size != 2 && size != 4 && size != 8 && size != 16) return false;
  for (uint32_t i = 0; i < copy.ndim; ++i) {
    if (copy.sizes[i] < 0 || copy.dst_strides[i] < 0 || copy.src_strides[i] < 0) return false;
  }
  return true;
}

}  // namespace support

// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "work.h"

namespace sim {
namespace {

struct Dim {
  int64_t size;
  int64_t dst;
  int64_t src;
};

struct Element16 {
  uint64_t words[2];
};

// Copy by memcpy of a constant size: addresses of elements need not be aligned.
template <class Element>
void copy_rows(char* dst, const char* src, int64_t rows, int64_t columns, int64_t dst_row, int64_t src_row,
               int64_t dst_column, int64_t src_column) {
  constexpr int64_t kSize = sizeof(Element);
  if (dst_column == kSize && src_column == kSize) {
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(dst + row * dst_row, src + row * src_row, static_cast<size_t>(columns * kSize));
    }
    return;
  }
  if (std::abs(src_column) <= std::abs(src_row) || rows == 1) {
    for (int64_t row = 0; row < rows; ++row) {
      char* to = dst + row * dst_row;
      const char* from = src + row * src_row;
      for (int64_t column = 0; column < columns; ++column) {
        std::memcpy(to + column * dst_column, from + column * src_column, kSize);
      }
    }
    return;
  }
  // Transpose through tiles, so that each cache line of either side is used completely at
  // once. With strides of a power of two the lines of one tile map to the same few sets of
  // the cache and would be evicted.
  constexpr int64_t kTile = 32;
  Element tile[kTile][kTile + 1];
  for (int64_t row0 = 0; row0 < rows; row0 += kTile) {
    const int64_t height = std::min(kTile, rows - row0);
    for (int64_t column0 = 0; column0 < columns; column0 += kTile) {
      const int64_t width = std::min(kTile, columns - column0);
      for (int64_t column = 0; column < width; ++column) {
        const char* from = src + row0 * src_row + (column0 + column) * src_column;
        for (int64_t row = 0; row < height; ++row) std::memcpy(&tile[column][row], from + row * src_row, kSize);
      }
      for (int64_t row = 0; row < height; ++row) {
        char* to = dst + (row0 + row) * dst_row + column0 * dst_column;
        for (int64_t column = 0; column < width; ++column)
          std::memcpy(to + column * dst_column, &tile[column][row], kSize);
      }
    }
  }
}

using CopyRows = void (*)(char*, const char*, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);

CopyRows copy_rows_of(uint32_t element_size) {
  switch (element_size) {
    case 1:
      return copy_rows<uint8_t>;
    case 2:
      return copy_rows<uint16_t>;
    case 4:
      return copy_rows<uint32_t>;
    case 8:
      return copy_rows<uint64_t>;
    default:
      return copy_rows<Element16>;
  }
}

}  // namespace

void plan_strided_copy(const ob_copy_nd& copy, StridedCopy* out_plan) {
  const int64_t element_size = copy.element_size;
  Dim dims[StridedCopy::kMaxDims];
  int count = 0;
  uint64_t bytes = copy.element_size;
  for (uint32_t i = 0; i < copy.ndim; ++i) {
    bytes *= static_cast<uint64_t>(copy.sizes[i]);
    if (copy.sizes[i] == 1) continue;
    dims[count++] = {copy.sizes[i], copy.dst_strides[i] * element_size, copy.src_strides[i] * element_size};
  }
  std::stable_sort(dims, dims + count, [](const Dim& a, const Dim& b) {
    return std::abs(a.dst) != std::abs(b.dst) ? std::abs(a.dst) > std::abs(b.dst) : std::abs(a.src) > std::abs(b.src);
  });
  int joined = 0;
  for (int i = 0; i < count; ++i) {
    if (joined > 0) {
      Dim& outer = dims[joined - 1];
      if (outer.dst == dims[i].dst * dims[i].size && outer.src == dims[i].src * dims[i].size) {
        outer = {outer.size * dims[i].size, dims[i].dst, dims[i].src};
        continue;
      }
    }
    dims[joined++] = dims[i];
  }
  // copy_rows transposes with tiles if the source's fastest dimension is next to the destination's.
  if (joined > 2) {
    auto fastest = std::min_element(dims, dims + joined - 1,
                                    [](const Dim& a, const Dim& b) { return std::abs(a.src) < std::abs(b.src); });
    if (std::abs(fastest->src) < std::abs(dims[joined - 1].src)) std::rotate(fastest, fastest + 1, dims + joined - 1);
  }
  out_plan->bytes = bytes;
  out_plan->element_size = copy.element_size;
  out_plan->ndim = joined;
  for (int i = 0; i < joined; ++i) {
    out_plan->sizes[i] = dims[i].size;
    out_plan->dst_strides[i] = dims[i].dst;
    out_plan->src_strides[i] = dims[i].src;
  }
}

void run_strided_copy(const StridedCopy& plan) {
  const CopyRows copy = copy_rows_of(plan.element_size);
  const int64_t element_size = plan.element_size;
  // copy_rows runs the two innermost loops; the others count up in `index`.
  const int inner = std::min(plan.ndim, 2);
  const int outer = plan.ndim - inner;
  int64_t rows = 1, columns = 1, dst_row = 0, src_row = 0, dst_column = element_size, src_column = element_size;
  if (inner > 0) {
    columns = plan.sizes[plan.ndim - 1];
    dst_column = plan.dst_strides[plan.ndim - 1];
    src_column = plan.src_strides[plan.ndim - 1];
  }
  if (inner > 1) {
    rows = plan.sizes[plan.ndim - 2];
    dst_row = plan.dst_strides[plan.ndim - 2];
    src_row = plan.src_strides[plan.ndim - 2];
  }
  int64_t index[StridedCopy::kMaxDims] = {};
  char* dst = plan.dst;
  const char* src = plan.src;
  for (;;) {
    copy(dst, src, rows, columns, dst_row, src_row, dst_column, src_column);
    int dim = outer - 1;
    for (; dim >= 0; --dim) {
      dst += plan.dst_strides[dim];
      src += plan.src_strides[dim];
      if (++index[dim] < plan.sizes[dim]) break;
      dst -= plan.dst_strides[dim] * plan.sizes[dim];
      src -= plan.src_strides[dim] * plan.sizes[dim];
      index[dim] = 0;
    }
    if (dim < 0) return;
  }
}

}  // namespace sim

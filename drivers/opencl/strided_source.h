// SPDX-License-Identifier: BSD-3-Clause
// The kernels of strided copies, in OpenCL C. ../support/strided_kernel.h has their launches.
#pragma once

namespace opencl {

// Strided and Transpose are StridedArgument and TransposeArgument of strided_kernel.h. Division
// by a size is a multiplication, an addition and a shift; indices are below 2^31, so the
// addition has no carry. A work-item copies four elements, each a work-group apart, so that its
// four loads are under way together.
constexpr const char* kStridedSource = R"(
typedef struct { uint count, ndim; uint sizes[8], magics[8], shifts[8]; ulong dst[8], src[8]; } Strided;
typedef struct { uint columns, rows, column_tiles, row_tiles; ulong dst_row, src_column; Strided batch; } Transpose;

#define LOCATE(s, index, to, from, uintN, ulongN, convert)                                         \
  uint d = 0;                                                                                      \
  for (; d + 1 < (s).ndim; ++d) {                                                                  \
    const uintN next = (mul_hi(index, (uintN)((s).magics[d])) + index) >> (uintN)((s).shifts[d]);  \
    const ulongN i = convert(index - next * (s).sizes[d]);                                         \
    to += i * (s).dst[d];                                                                          \
    from += i * (s).src[d];                                                                        \
    index = next;                                                                                  \
  }                                                                                                \
  to += convert(index) * (s).dst[d];                                                               \
  from += convert(index) * (s).src[d];

#define KERNELS(bytes, T)                                                                          \
  kernel void copy##bytes(global T* restrict dst, global const T* restrict src, const Strided s) { \
    const uint step = (uint)get_local_size(0);                                                     \
    const uint first = (uint)get_group_id(0) * step * 4 + (uint)get_local_id(0);                   \
    const uint4 at = first + (uint4)(0, 1, 2, 3) * step;                                           \
    uint4 index = at;                                                                              \
    ulong4 to = 0, from = 0;                                                                       \
    LOCATE(s, index, to, from, uint4, ulong4, convert_ulong4)                                      \
    T a = (T)(0), b = (T)(0), c = (T)(0), e = (T)(0);                                              \
    if (at.x < s.count) a = src[from.x];                                                           \
    if (at.y < s.count) b = src[from.y];                                                           \
    if (at.z < s.count) c = src[from.z];                                                           \
    if (at.w < s.count) e = src[from.w];                                                           \
    if (at.x < s.count) dst[to.x] = a;                                                             \
    if (at.y < s.count) dst[to.y] = b;                                                             \
    if (at.z < s.count) dst[to.z] = c;                                                             \
    if (at.w < s.count) dst[to.w] = e;                                                             \
  }                                                                                                \
  kernel __attribute__((reqd_work_group_size(32, 8, 1)))                                           \
  void transpose##bytes(global T* restrict dst, global const T* restrict src, const Transpose s) { \
    local T tile[32][33];                                                                          \
    uint block = (uint)get_group_id(0);                                                            \
    const uint column_tile = block % s.column_tiles;                                               \
    block /= s.column_tiles;                                                                       \
    const uint row_tile = block % s.row_tiles;                                                     \
    uint batch = block / s.row_tiles;                                                              \
    ulong to = 0, from = 0;                                                                        \
    if (s.batch.ndim > 0) {                                                                        \
      LOCATE(s.batch, batch, to, from, uint, ulong, convert_ulong)                                 \
    }                                                                                              \
    const uint x = (uint)get_local_id(0);                                                          \
    const uint row_in = row_tile * 32 + x, column_out = column_tile * 32 + x;                      \
    for (uint y = (uint)get_local_id(1); y < 32; y += 8) {                                         \
      const uint column = column_tile * 32 + y;                                                    \
      if (row_in < s.rows && column < s.columns) tile[y][x] = src[from + row_in + column * s.src_column]; \
    }                                                                                              \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                  \
    for (uint y = (uint)get_local_id(1); y < 32; y += 8) {                                         \
      const uint row = row_tile * 32 + y;                                                          \
      if (row < s.rows && column_out < s.columns) dst[to + column_out + row * s.dst_row] = tile[x][y]; \
    }                                                                                              \
  }
KERNELS(1, uchar)
KERNELS(2, ushort)
KERNELS(4, uint)
KERNELS(8, ulong)
KERNELS(16, ulong2)
)";

}  // namespace opencl

// SPDX-License-Identifier: BSD-3-Clause
// The kernels of strided copies, in Slang. ../support/strided_kernel.h has their launches.
#pragma once

namespace vulkan {

// Strided and Transpose are StridedArgument and TransposeArgument of strided_kernel.h. Division by
// a size is a multiplication, an addition and a shift; indices are below 2^31, so the addition has
// no carry. An item copies four elements, each a group apart, so that its four loads are under way
// together. Tiles are 32 wide, with 8 rows of items.
constexpr const char* kStridedSource = R"(
[vk::constant_id(0)] const int ob_block = 256;

struct Strided {
  uint count, ndim;
  uint sizes[8], magics[8], shifts[8];
  uint64_t dst[8], src[8];
};
struct Transpose {
  uint columns, rows, column_tiles, row_tiles;
  uint64_t dst_row, src_column;
  Strided batch;
};
struct CopyArguments {
  int64_t ob_first_group;
  uint64_t dst, src;
  Strided shape;
};
struct TransposeArguments {
  int64_t ob_first_group;
  uint64_t dst, src;
  Transpose shape;
};

struct PushedCopy { CopyArguments* given; };
struct PushedTranspose { TransposeArguments* given; };
[[vk::push_constant]] PushedCopy copying;
[[vk::push_constant]] PushedTranspose transposing;

void locate(Strided* s, uint index, inout uint64_t to, inout uint64_t from) {
  uint d = 0;
  for (; d + 1 < s.ndim; ++d) {
    const uint next = (uint(uint64_t(index) * s.magics[d] >> 32) + index) >> s.shifts[d];
    const uint64_t i = index - next * s.sizes[d];
    to += i * s.dst[d];
    from += i * s.src[d];
    index = next;
  }
  to += index * s.dst[d];
  from += index * s.src[d];
}

#define KERNELS(bytes, T)                                                                                        \
  [shader("compute")] [numthreads(ob_block, 1, 1)]                                                               \
  void copy##bytes(uint3 group : SV_GroupID, uint3 item : SV_GroupThreadID) {                                    \
    CopyArguments* given = copying.given;                                                                        \
    const uint step = uint(ob_block);                                                                            \
    const uint first = (uint(given.ob_first_group) + group.x) * step * 4 + item.x;                               \
    T* dst = (T*)given.dst;                                                                                      \
    T* src = (T*)given.src;                                                                                      \
    uint64_t to[4];                                                                                              \
    T value[4];                                                                                                  \
    for (uint i = 0; i < 4; ++i) {                                                                               \
      uint64_t from = 0;                                                                                         \
      to[i] = 0;                                                                                                 \
      if (first + i * step < given.shape.count) {                                                                \
        locate(&given.shape, first + i * step, to[i], from);                                                     \
        value[i] = src[from];                                                                                    \
      }                                                                                                          \
    }                                                                                                            \
    for (uint i = 0; i < 4; ++i) {                                                                               \
      if (first + i * step < given.shape.count) dst[to[i]] = value[i];                                           \
    }                                                                                                            \
  }                                                                                                              \
  groupshared T tile##bytes[32][33];                                                                             \
  [shader("compute")] [numthreads(ob_block, 1, 1)]                                                               \
  void transpose##bytes(uint3 group : SV_GroupID,                                                                \
                        uint3 item : SV_GroupThreadID) {                                                         \
    TransposeArguments* given = transposing.given;                                                               \
    T* dst = (T*)given.dst;                                                                                      \
    T* src = (T*)given.src;                                                                                      \
    Transpose* s = &given.shape;                                                                                 \
    uint block = uint(given.ob_first_group) + group.x;                                                           \
    const uint column_tile = block % s.column_tiles;                                                             \
    block /= s.column_tiles;                                                                                     \
    const uint row_tile = block % s.row_tiles;                                                                   \
    uint64_t to = 0, from = 0;                                                                                   \
    if (s.batch.ndim > 0) locate(&s.batch, block / s.row_tiles, to, from);                                       \
    const uint x = item.x % 32;                                                                                  \
    const uint row_in = row_tile * 32 + x, column_out = column_tile * 32 + x;                                    \
    for (uint y = item.x / 32; y < 32; y += 8) {                                                                 \
      const uint column = column_tile * 32 + y;                                                                  \
      if (row_in < s.rows && column < s.columns) tile##bytes[y][x] = src[from + row_in + column * s.src_column]; \
    }                                                                                                            \
    GroupMemoryBarrierWithGroupSync();                                                                           \
    for (uint y = item.x / 32; y < 32; y += 8) {                                                                 \
      const uint row = row_tile * 32 + y;                                                                        \
      if (row < s.rows && column_out < s.columns) dst[to + column_out + row * s.dst_row] = tile##bytes[x][y];    \
    }                                                                                                            \
  }
KERNELS(1, uint8_t)
#ifndef OB_NO_INT16
KERNELS(2, uint16_t)
#endif
KERNELS(4, uint)
KERNELS(8, uint64_t)
KERNELS(16, uint4)
)";

}  // namespace vulkan

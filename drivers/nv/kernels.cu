// SPDX-License-Identifier: BSD-3-Clause
// The driver's own kernels. compile_kernels.py makes _generated/kernels.h of them: PTX that every GPU's driver
// translates, so that neither build nor run time needs a compiler.

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
struct alignas(16) u128 {
  u64 low, high;
};

// Must be StridedArgument of ../support/strided_kernel.h. Division by a size is a multiplication, an addition and a shift.
struct Strided {
  u32 count, ndim;
  u32 sizes[8], magics[8], shifts[8];
  u64 dst[8], src[8];
};

constexpr u32 kThreads = 256;
constexpr u32 kEach = 4;

// The places of kCount elements, from the fastest dimension on, as the shape has them.
template <u32 kCount>
static __device__ __forceinline__ void locate(const Strided& s, u32 (&index)[kCount], u64 (&to)[kCount],
                                              u64 (&from)[kCount]) {
  u32 d = 0;
#pragma unroll
  for (u32 j = 0; j < kCount; ++j) to[j] = from[j] = 0;
#pragma unroll 1
  for (; d + 1 < s.ndim; ++d) {
    const u32 size = s.sizes[d], magic = s.magics[d], shift = s.shifts[d];
    const u64 dst = s.dst[d], src = s.src[d];
#pragma unroll
    for (u32 j = 0; j < kCount; ++j) {
      const u32 next = static_cast<u32>((static_cast<u64>(__umulhi(index[j], magic)) + index[j]) >> shift);
      const u32 i = index[j] - next * size;
      to[j] += i * dst;
      from[j] += i * src;
      index[j] = next;
    }
  }
#pragma unroll
  for (u32 j = 0; j < kCount; ++j) {
    to[j] += index[j] * s.dst[d];
    from[j] += index[j] * s.src[d];
  }
}

template <class T>
static __device__ __forceinline__ void copy(T* dst, const T* src, const Strided& s) {
  const u32 first = blockIdx.x * (kThreads * kEach) + threadIdx.x;
  u32 index[kEach];
  u64 to[kEach], from[kEach];
  T value[kEach];
#pragma unroll
  for (u32 j = 0; j < kEach; ++j) index[j] = first + j * kThreads;
  locate(s, index, to, from);
#pragma unroll
  for (u32 j = 0; j < kEach; ++j) {
    if (first + j * kThreads < s.count) value[j] = src[from[j]];
  }
#pragma unroll
  for (u32 j = 0; j < kEach; ++j) {
    if (first + j * kThreads < s.count) dst[to[j]] = value[j];
  }
}

// Must be TransposeArgument of ../support/strided_kernel.h: `columns` runs fast in the destination, `rows` in the source; the other
// dimensions are counted in `batch`, by a Strided of their own.
struct Transpose {
  u32 columns, rows, column_tiles, row_tiles;
  u64 dst_row, src_column;
  Strided batch;
};

constexpr u32 kTile = 32;
constexpr u32 kTileRows = 8;

// Both sides are touched in runs of a tile's edge; the turn happens in shared memory.
template <class T>
static __device__ __forceinline__ void transpose(T* dst, const T* src, const Transpose& s) {
  __shared__ T tile[kTile][kTile + 1];
  u32 block = blockIdx.x;
  const u32 column_tile = block % s.column_tiles;
  block /= s.column_tiles;
  const u32 row_tile = block % s.row_tiles;
  u32 batch[1] = {block / s.row_tiles};
  u64 to[1] = {0}, from[1] = {0};
  if (s.batch.ndim > 0) locate(s.batch, batch, to, from);
  const u32 x = threadIdx.x;
  const u32 row_in = row_tile * kTile + x;
  const u32 column_out = column_tile * kTile + x;
#pragma unroll
  for (u32 y = threadIdx.y; y < kTile; y += kTileRows) {
    const u32 column = column_tile * kTile + y;
    if (row_in < s.rows && column < s.columns) tile[y][x] = src[from[0] + row_in + column * s.src_column];
  }
  __syncthreads();
#pragma unroll
  for (u32 y = threadIdx.y; y < kTile; y += kTileRows) {
    const u32 row = row_tile * kTile + y;
    if (row < s.rows && column_out < s.columns) dst[to[0] + column_out + row * s.dst_row] = tile[x][y];
  }
}

template <class T>
static __device__ __forceinline__ void fill(T* dst, T value, u64 count) {
  const u64 step = static_cast<u64>(gridDim.x) * kThreads;
  for (u64 i = static_cast<u64>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) dst[i] = value;
}

#define KERNELS(bytes, T)                                                                                \
  extern "C" __global__ __launch_bounds__(256) void copy##bytes(T* dst, const T* src, const __grid_constant__ Strided s) { \
    copy(dst, src, s);                                                                                   \
  }                                                                                                      \
  extern "C" __global__ __launch_bounds__(256) void transpose##bytes(T* dst, const T* src, const __grid_constant__ Transpose s) { \
    transpose(dst, src, s);                                                                              \
  }
KERNELS(1, u8)
KERNELS(2, u16)
KERNELS(4, u32)
KERNELS(8, u64)
KERNELS(16, u128)

extern "C" __global__ __launch_bounds__(256) void fill8(u64* dst, u64 value, u64 count) { fill(dst, value, count); }
extern "C" __global__ __launch_bounds__(256) void fill16(u128* dst, u128 value, u64 count) { fill(dst, value, count); }

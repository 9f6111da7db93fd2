// SPDX-License-Identifier: BSD-3-Clause
// The driver's own kernels, in CUDA C++. own_kernels.cpp compiles those for one type of elements at
// a time: it appends lines with COPIES, FILL or BIASES.
#pragma once

namespace nv {

constexpr const char* kOwnSource = R"cuda(
#if __CUDA_ARCH__ < 700 || __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1107
#define __grid_constant__
#endif

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
struct alignas(16) u128 {
  u64 low, high;
};

// Must be StridedArgument of support/strided_kernel.h. Division by a size is a
// multiplication, an addition and a shift.
struct Strided {
  u32 count, ndim;
  u32 sizes[8], magics[8], shifts[8];
  u64 dst[8], src[8];
};

constexpr u32 kThreads = 256;
constexpr u32 kElementsPerThread = 4;

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
  const u32 first = blockIdx.x * (kThreads * kElementsPerThread) + threadIdx.x;
  u32 index[kElementsPerThread];
  u64 to[kElementsPerThread], from[kElementsPerThread];
  T value[kElementsPerThread];
#pragma unroll
  for (u32 j = 0; j < kElementsPerThread; ++j) index[j] = first + j * kThreads;
  locate(s, index, to, from);
#pragma unroll
  for (u32 j = 0; j < kElementsPerThread; ++j) {
    if (first + j * kThreads < s.count) value[j] = src[from[j]];
  }
#pragma unroll
  for (u32 j = 0; j < kElementsPerThread; ++j) {
    if (first + j * kThreads < s.count) dst[to[j]] = value[j];
  }
}

// Must be TransposeArgument of support/strided_kernel.h: `columns` runs fast in the destination,
// `rows` in the source; the other dimensions are counted in `batch`, by a Strided of their own.
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

#define ENTRY extern "C" __global__ __launch_bounds__(256) void

#define COPIES(bytes, T)                                                                             \
  ENTRY copy##bytes(T* dst, const T* src, const __grid_constant__ Strided s) { copy(dst, src, s); }  \
  ENTRY transpose##bytes(T* dst, const T* src, const __grid_constant__ Transpose s) { transpose(dst, src, s); }

#define FILL(bytes, T) \
  ENTRY fill##bytes(T* dst, T value, u64 count) { fill(dst, value, count); }

// Biases of convolutions, whose sums are those of floats.

struct Half {
  u16 bits;
};
struct BFloat16 {
  u16 bits;
};

// Return what an element is summed as.
static __device__ __forceinline__ float widened(float value) { return value; }
static __device__ __forceinline__ double widened(double value) { return value; }
static __device__ __forceinline__ float widened(BFloat16 value) { return __uint_as_float(static_cast<u32>(value.bits) << 16); }
static __device__ __forceinline__ float widened(Half value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
static __device__ __forceinline__ void store(float* to, float value) { *to = value; }
static __device__ __forceinline__ void store(double* to, double value) { *to = value; }
static __device__ __forceinline__ void store(Half* to, float value) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(value));
}
static __device__ __forceinline__ void store(BFloat16* to, float value) {
  const u32 word = __float_as_uint(value);
  const u32 rounded = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
  to->bits = value == value ? static_cast<u16>(rounded) : static_cast<u16>(0x7fc0);
}

// Must be BiasArgument of libraries/biases.cpp. A channel repeats each `inner` elements and changes
// after each of them: `inner` is 1 in channels last, else the grid's elements.
struct Bias {
  u32 count, channels, inner, splits;
};

// Add a channel's number to each of its elements: 16 bytes for each thread.
template <class T>
static __device__ __forceinline__ void add_bias(T* out, const T* bias, const Bias& s) {
  constexpr u32 kWidth = 16 / sizeof(T);
  const u64 first = (static_cast<u64>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  if (first >= s.count) return;
  const u32 outer = static_cast<u32>(first) / s.inner;
  u32 inside = static_cast<u32>(first) - outer * s.inner, channel = outer % s.channels;
  const bool is_whole = first + kWidth <= s.count;
  union {
    u128 words;
    T values[kWidth];
  };
  if (is_whole) words = *reinterpret_cast<const u128*>(out + first);
#pragma unroll
  for (u32 i = 0; i < kWidth; ++i) {
    if (is_whole) {
      store(&values[i], widened(values[i]) + widened(bias[channel]));
    } else if (first + i < s.count) {
      store(&out[first + i], widened(out[first + i]) + widened(bias[channel]));
    }
    if (++inside == s.inner) {
      inside = 0;
      if (++channel == s.channels) channel = 0;
    }
  }
  if (is_whole) *reinterpret_cast<u128*>(out + first) = words;
}

// Sum rows of channels: a block sums one of `splits` runs of rows for 32
// channels, and writes them side by side.
template <class To, class From>
static __device__ __forceinline__ void sum_rows(To* out, const From* in, const Bias& s) {
  using Sum = decltype(widened(From{}));
  __shared__ Sum sums[kTileRows][kTile];
  const u32 tiles = (s.channels + kTile - 1) / kTile;
  const u32 split = blockIdx.x / tiles, channel = blockIdx.x % tiles * kTile + threadIdx.x;
  const u32 rows = s.count / s.channels, each = (rows + s.splits - 1) / s.splits;
  const u32 begin = split * each, end = begin + each < rows ? begin + each : rows;
  Sum sum = 0;
  if (channel < s.channels) {
#pragma unroll 4
    for (u32 row = begin + threadIdx.y; row < end; row += kTileRows) {
      sum += widened(in[static_cast<u64>(row) * s.channels + channel]);
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || channel >= s.channels) return;
  for (u32 y = 1; y < kTileRows; ++y) sum += sums[y][threadIdx.x];
  store(&out[split * s.channels + channel], sum);
}

// Sum grids: a block sums one of `splits` runs of a channel's elements, and
// writes the sum as sum_rows does.
template <class To, class From>
static __device__ __forceinline__ void sum_grids(To* out, const From* in, const Bias& s) {
  using Sum = decltype(widened(From{}));
  __shared__ Sum sums[kThreads];
  const u32 split = blockIdx.x / s.channels, channel = blockIdx.x % s.channels;
  const u32 all = s.count / s.channels, each = (all + s.splits - 1) / s.splits;
  const u32 begin = split * each, end = begin + each < all ? begin + each : all;
  Sum sum = 0;
#pragma unroll 4
  for (u32 i = begin + threadIdx.x; i < end; i += kThreads) {
    const u32 batch = i / s.inner;
    sum += widened(in[(static_cast<u64>(batch) * s.channels + channel) * s.inner + (i - batch * s.inner)]);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
#pragma unroll
  for (u32 half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[split * s.channels + channel] = sums[0];
}

#define BIASES(name, T, Sum)                                                                                   \
  ENTRY add_bias_##name(T* out, const T* bias, const __grid_constant__ Bias s) { add_bias(out, bias, s); }      \
  ENTRY sum_rows_##name(Sum* out, const T* in, const __grid_constant__ Bias s) { sum_rows(out, in, s); }        \
  ENTRY sum_grids_##name(Sum* out, const T* in, const __grid_constant__ Bias s) { sum_grids(out, in, s); }      \
  ENTRY sum_splits_##name(T* out, const Sum* in, const __grid_constant__ Bias s) { sum_rows(out, in, s); }
)cuda";

}  // namespace nv

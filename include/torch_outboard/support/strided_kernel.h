// SPDX-License-Identifier: BSD-3-Clause
// The launches of a strided copy, for drivers that copy with kernels. A work item copies several
// elements, so that several loads are in flight at once. If the two sides run along different
// dimensions, the copy goes through tiles.
#pragma once

#include <bit>
#include <cstdint>

#include "torch_outboard/support/error.h"
#include "torch_outboard/support/strided.h"

namespace support {

// As in drivers/opencl/strided_source.h.
constexpr uint32_t kElementsPerThread = 4;      // elements per thread of "copy"
constexpr uint32_t kTile = 32;     // edge of a tile of "transpose"
constexpr uint32_t kTileRows = 8;  // rows of threads in a tile
constexpr uint64_t kMaxElements = uint64_t{1} << 31;  // elements per launch: indices have 32 bits

// The kernels' Strided.
struct StridedArgument {
  uint32_t count, ndim;
  uint32_t sizes[8], magics[8], shifts[8];
  uint64_t dst[8], src[8];
};

// The kernels' Transpose: `columns` runs fast in the destination, `rows` in the source.
struct TransposeArgument {
  uint32_t columns, rows, column_tiles, row_tiles;
  uint64_t dst_row, src_column;
  StridedArgument batch;  // the other dimensions
};

// A launch of `kernel` with the arguments (dst, src, argument). The kernel's full name ends
// with the element size in bytes.
struct StridedLaunch {
  const char* kernel;
  uint32_t blocks, columns, rows;
  uint64_t dst, src;
  const void* argument;
  uint32_t argument_size;
};

// Compute the shape of a copy that kernels on this device can run. Otherwise return the reason.
inline ob_status check_strided(int32_t device, const ob_copy_nd& copy, StridedShape* out_shape) {
  if (!is_well_formed(copy)) return fail(OB_INVALID_ARGUMENT, "device %d: invalid ob_copy_nd", device);
  if (copy.dst_device != device || copy.src_device != device) {
    return fail(OB_UNIMPLEMENTED, "copy_nd_async copies within one device");
  }
  if (!make_strided_shape(copy, out_shape)) {
    return fail(OB_UNIMPLEMENTED, "copy_nd_async supports at most %u dimensions after merging", kMaxStridedDims);
  }
  return OB_OK;
}

// Return the launch in the contract's form. Its arguments are stored in `args`.
inline ob_launch launch_of(const StridedLaunch& given, uint64_t kernel, ob_kernel_arg (&args)[3]) {
  args[0] = {sizeof(ob_kernel_arg), OB_ARG_POINTER, 0, given.dst, nullptr};
  args[1] = {sizeof(ob_kernel_arg), OB_ARG_POINTER, 0, given.src, nullptr};
  args[2] = {sizeof(ob_kernel_arg), OB_ARG_VALUE, given.argument_size, 0, given.argument};
  ob_launch launch = {};
  launch.struct_size = sizeof launch;
  launch.kernel = kernel;
  launch.grid[0] = given.blocks;
  launch.block[0] = given.columns;
  launch.block[1] = given.rows;
  launch.grid[1] = launch.grid[2] = launch.block[2] = 1;
  launch.arg_count = 3;
  launch.arg_stride = sizeof args[0];
  launch.args = args;
  return launch;
}

// Append a dimension. n / size is (n * magic / 2^32 + n) >> shift.
inline void add_dim(StridedArgument* argument, int64_t size, int64_t dst, int64_t src) {
  const uint32_t d = argument->ndim++;
  const auto divisor = static_cast<uint32_t>(size);
  const auto shift = static_cast<uint32_t>(std::bit_width(divisor - 1));
  argument->sizes[d] = divisor;
  argument->shifts[d] = shift;
  argument->magics[d] = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor)) / divisor + 1);
  argument->dst[d] = static_cast<uint64_t>(dst);
  argument->src[d] = static_cast<uint64_t>(src);
  argument->count *= divisor;
}

// Set the argument if the destination runs along one dimension and the source
// along another; else return false.
inline bool make_transpose(const StridedShape& shape, TransposeArgument* out_argument) {
  if (shape.ndim < 2 || shape.dst_strides[0] != 1 || shape.src_strides[0] == 1 || shape.src_strides[0] == 0)
    return false;
  uint32_t other = 1;
  while (other < shape.ndim && shape.src_strides[other] != 1) ++other;
  if (other == shape.ndim || shape.sizes[0] < kTile / 2 || shape.sizes[other] < kTile / 2) return false;
  TransposeArgument& argument = *out_argument;
  argument = {};
  argument.columns = static_cast<uint32_t>(shape.sizes[0]);
  argument.rows = static_cast<uint32_t>(shape.sizes[other]);
  argument.column_tiles = (argument.columns + kTile - 1) / kTile;
  argument.row_tiles = (argument.rows + kTile - 1) / kTile;
  argument.dst_row = static_cast<uint64_t>(shape.dst_strides[other]);
  argument.src_column = static_cast<uint64_t>(shape.src_strides[0]);
  argument.batch.count = 1;
  for (uint32_t i = 1; i < shape.ndim; ++i) {
    if (i != other) add_dim(&argument.batch, shape.sizes[i], shape.dst_strides[i], shape.src_strides[i]);
  }
  return true;
}

// Call `launch(const StridedLaunch&)` for each launch that a copy needs, until one does not return
// OB_OK. `threads` is the size of a block of "copy"; tiles need kTile * kTileRows threads.
template <class Launch>
ob_status for_each_launch(const StridedShape& shape, uint32_t element_size, uint64_t dst, uint64_t src,
                          uint32_t threads, Launch& launch) {
  if (shape.count >= kMaxElements) {
    // Split in halves along the slowest dimension that has two elements.
    uint32_t d = shape.ndim - 1;
    while (shape.sizes[d] == 1) --d;
    StridedShape half = shape;
    half.sizes[d] = shape.sizes[d] / 2;
    half.count = shape.count / static_cast<uint64_t>(shape.sizes[d]) * static_cast<uint64_t>(half.sizes[d]);
    const ob_status status = for_each_launch(half, element_size, dst, src, threads, launch);
    if (status != OB_OK) return status;
    dst += static_cast<uint64_t>(half.sizes[d] * shape.dst_strides[d]) * element_size;
    src += static_cast<uint64_t>(half.sizes[d] * shape.src_strides[d]) * element_size;
    half.count = shape.count - half.count;
    half.sizes[d] = shape.sizes[d] - half.sizes[d];
    return for_each_launch(half, element_size, dst, src, threads, launch);
  }
  if (TransposeArgument argument; threads >= kTile * kTileRows && make_transpose(shape, &argument)) {
    const uint64_t blocks = uint64_t{argument.column_tiles} * argument.row_tiles * argument.batch.count;
    return launch(StridedLaunch{"transpose", static_cast<uint32_t>(blocks), kTile, kTileRows, dst, src, &argument,
                                sizeof argument});
  }
  StridedArgument argument = {};
  argument.count = 1;
  for (uint32_t i = 0; i < shape.ndim; ++i) {
    add_dim(&argument, shape.sizes[i], shape.dst_strides[i], shape.src_strides[i]);
  }
  if (shape.ndim == 0) add_dim(&argument, 1, 1, 1);
  const uint32_t blocks = (argument.count - 1) / (threads * kElementsPerThread) + 1;
  return launch(StridedLaunch{"copy", blocks, threads, 1, dst, src, &argument, sizeof argument});
}

}  // namespace support

// SPDX-License-Identifier: BSD-3-Clause
// The work of a task, which runs when its turn comes.
#pragma once

#include <cstdint>

#include "stream.h"

namespace sim {

struct Driver;

// A strided copy with its loops in order: dimensions of size 1 dropped, contiguous dimensions
// joined, the destination's smallest stride innermost.
struct StridedCopy {
  static constexpr int kMaxDims = 64;
  char* dst;
  const char* src;
  uint64_t bytes;  // that are written
  uint32_t element_size;
  int32_t dst_device;
  int32_t src_device;
  int ndim;
  int64_t sizes[kMaxDims];  // outermost first; strides in bytes
  int64_t dst_strides[kMaxDims];
  int64_t src_strides[kMaxDims];
};

// Set everything except the addresses and devices. No size may be 0.
void plan_strided_copy(const ob_copy_nd& copy, StridedCopy* out_plan);
void run_strided_copy(const StridedCopy& plan);

// Run any task except a wait, with its modelled duration, its injected
// failure and its profiler record.
void run_task(Driver& driver, Stream& stream, const Task& task);

}  // namespace sim

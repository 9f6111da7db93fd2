// SPDX-License-Identifier: BSD-3-Clause
// Queuing work at the driver, or in the graph that the stream captures. All work but host_callback's passes here.
#pragma once

#include <torch_outboard/driver.h>

#include <cstdint>

#include "core/export.h"
#include "core/kernel_failure.h"
#include "core/stream.h"

namespace outboard {

OUTBOARD_API void queue_copy(Stream& stream, const ob_copy& copy);

// False if the driver doesn't do it, in general or for this shape. While a capture in software is under way: false,
// since only trying would tell.
OUTBOARD_API bool queue_copy_nd(Stream& stream, const ob_copy_nd& copy);

// False if the driver has no fill.
OUTBOARD_API bool queue_fill(Stream& stream, uint64_t dst, const void* pattern, uint32_t pattern_size, uint64_t count);

// NotSupportedError if the driver has no kernels. `name` is what a profile, the description of a graph and errors call the
// kernel; it lives as long as the process, and may be null.
OUTBOARD_API void queue_launch(Stream& stream, const ob_launch& launch, const char* name = nullptr);

// The same for a kernel that checks what it is given. `args` are the launch's arguments, of which those of `record` are
// filled in: in a graph anew for each replay, so that the kernel writes to the record of the stream that it is replayed on.
// CaptureError while the driver captures, which would keep one record and one place for all replays.
OUTBOARD_API void queue_checked_launch(Stream& stream, const ob_launch& launch, ob_kernel_arg* args, const char* name,
                                       RecordArguments record);

}  // namespace outboard

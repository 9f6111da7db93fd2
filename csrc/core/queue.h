// SPDX-License-Identifier: BSD-3-Clause
// Queue work on the driver, or in the graph that the stream captures. All work except
// host_callback's goes through here.
#pragma once

#include <torch_outboard/driver.h>

#include <cstdint>
#include <memory>

#include "core/export.h"
#include "core/kernel_failure.h"
#include "core/pending.h"
#include "core/stream.h"

namespace outboard {

OUTBOARD_API void queue_copy(Stream& stream, const ob_copy& copy);

// Return false if the driver does not support the copy, in general or for this shape. Also return
// false while the core captures, because the driver cannot be queried without running the copy.
OUTBOARD_API bool queue_copy_nd(Stream& stream, const ob_copy_nd& copy);

// Return false if the driver has no fill.
OUTBOARD_API bool queue_fill(Stream& stream, uint64_t dst, const void* pattern, uint32_t pattern_size, uint64_t count);

// Queue a launch. Raise NotSupportedError if the driver has no kernels. `name` is the kernel's name
// in profiles, graph descriptions and errors; it lives as long as the process, and may be null.
OUTBOARD_API void queue_launch(Stream& stream, const ob_launch& launch, const char* name = nullptr);

// Do the same for a kernel that checks its input. `args` are the launch's arguments; this function
// fills in the arguments of `record`. A graph fills them in for each replay, so that the kernel
// writes to the record of the stream it is replayed on. Raise CaptureError while the driver
// captures if the host cannot read the graph's record (core/graph_record.h).
OUTBOARD_API void queue_checked_launch(Stream& stream, const ob_launch& launch, ob_kernel_arg* args, const char* name,
                                       RecordArguments record);

// Queue a launch on the stream's list, for a caller that may_add_pending(). `kernel` is awaited and
// replaces the launch's kernel; null if the launch's kernel is known. With `record`, the kernel
// checks its input.
OUTBOARD_API void queue_awaited_launch(Stream& stream, const ob_launch& launch, std::shared_ptr<const Awaited> kernel,
                                       const char* name, const RecordArguments* record);

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Queuing work at the driver, or in the graph that the stream captures. All work but host_callback's passes here.
#pragma once

#include <torch_outboard/driver.h>

#include <cstdint>

#include "core/export.h"
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

}  // namespace outboard

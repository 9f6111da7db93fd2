// SPDX-License-Identifier: BSD-3-Clause
// The caching device allocator. DESIGN.md beside this file states its invariants.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/export.h"
#include "core/stream.h"

namespace outboard {

// What torch knows as the device's c10::DeviceAllocator.
OUTBOARD_API c10::DeviceAllocator& device_allocator();

// Allocates on a stream of an open or closed device (opens it). The DataPtr's address is the device address, null for
// 0 bytes; its device is set. torch.OutOfMemoryError when the device has no more. The DataPtr's context is not the
// address, so torch's raw_allocate refuses this memory.
OUTBOARD_API c10::DataPtr allocate(Stream& stream, size_t bytes);

// The address through which the host may touch what `ptr` holds, when the stream is drained; false if there is none.
// A few nanoseconds for our own allocations; foreign memory (from_blob) is asked of the driver. True, with a null
// address, if there is nothing to touch (0 bytes).
OUTBOARD_API bool host_address(const c10::DataPtr& ptr, size_t bytes, void** out_address);

// Makes reuse of the memory wait for what is now queued on `stream`. Ignores foreign memory, as CUDA's does.
OUTBOARD_API void record_stream(const c10::DataPtr& ptr, Stream& stream);

// Calls the driver for blocks that were freed with streams recorded, device and pinned ones, and raises what failed
// there or in a deleter since the last call. Never waits. To be called by what synchronises a device or a stream, after
// the wait.
OUTBOARD_API void process_deferred(c10::DeviceIndex device);

// Free and total bytes. A driver that can't tell what is free: what this process has not reserved.
OUTBOARD_API void memory_info(c10::DeviceIndex device, uint64_t* out_free, uint64_t* out_total);

// Every segment and its blocks, without stacks. `stream` holds the outboard::Stream's address.
OUTBOARD_API std::vector<c10::CachingDeviceAllocator::SegmentInfo> memory_snapshot(c10::DeviceIndex device);

// Frees every segment before a device closes; nothing is queued any more. Live DataPtrs dangle from then on; their
// deleters do nothing.
OUTBOARD_API void release_device_memory(c10::DeviceIndex device) noexcept;

}  // namespace outboard

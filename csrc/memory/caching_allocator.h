// SPDX-License-Identifier: BSD-3-Clause
// The caching device allocator. DESIGN.md in this folder states its invariants.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/export.h"
#include "core/stream.h"

namespace outboard {

// Return the device's c10::DeviceAllocator, as registered with torch.
OUTBOARD_API c10::DeviceAllocator& device_allocator();

// Allocate on a stream. Opens the device. The DataPtr's address is the device address, null for 0
// bytes; its device is set. Raise torch.OutOfMemoryError if the device has no more memory. The
// DataPtr's context is not the address, so torch's raw_allocate refuses this memory.
OUTBOARD_API c10::DataPtr allocate(Stream& stream, size_t bytes);

// Return the address through which the host may access the memory of `ptr` once the stream is
// drained. Return false if there is none. Takes a few nanoseconds for the allocator's own memory;
// for foreign memory (from_blob), queries the driver. For 0 bytes, returns true with a null
// address.
OUTBOARD_API bool host_address(const c10::DataPtr& ptr, size_t bytes, void** out_address);

// Make reuse of the memory wait for the work now queued on `stream`. Ignores foreign memory, like
// CUDA's allocator.
OUTBOARD_API void record_stream(const c10::DataPtr& ptr, Stream& stream);

// Process device and pinned blocks that were freed with recorded streams, which calls the driver.
// Raise failures from this or from a deleter since the last call. Never waits. Call it after each
// wait for a device or a stream.
OUTBOARD_API void process_deferred(c10::DeviceIndex device);

// Return the free and total bytes. If the driver does not report free memory, all memory that this
// process has not reserved counts as free.
OUTBOARD_API void memory_info(c10::DeviceIndex device, uint64_t* out_free, uint64_t* out_total);

// Return every segment and its blocks, without stacks. `stream` holds
// the outboard::Stream's address.
OUTBOARD_API std::vector<c10::CachingDeviceAllocator::SegmentInfo> memory_snapshot(c10::DeviceIndex device);

// Free every segment before a device is closed, once nothing is queued. Live DataPtrs dangle from
// then on; their deleters do nothing.
OUTBOARD_API void release_device_memory(c10::DeviceIndex device) noexcept;

}  // namespace outboard

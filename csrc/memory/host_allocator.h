// SPDX-License-Identifier: BSD-3-Clause
// Pinned host memory, on torch's own CachingHostAllocatorImpl.
#pragma once

#include <c10/core/Storage.h>

#include "core/export.h"
#include "core/stream.h"

namespace at {
struct HostAllocator;
}

namespace outboard {

OUTBOARD_API at::HostAllocator& host_allocator();

// Return true if the address lies in memory from host_alloc or host_register, which copy_async
// accesses directly.
OUTBOARD_API bool is_pinned(const void* pointer);

// Return true if the address lies in the host allocator's memory: pinned, or ordinary memory if the
// driver pins none. torch's Tensor.is_pinned uses this function, so `pin_memory` means the same
// with every driver. Copies use is_pinned instead.
OUTBOARD_API bool is_host_block(const void* pointer);

// Pin existing host memory, equivalent to host_alloc's from then on. Copies may still be running
// when they return, so the memory must live until it is unregistered. Opens the current device.
// Raise NotSupportedError if the driver cannot register memory, and ValueError for 0 bytes or
// memory that overlaps pinned memory.
OUTBOARD_API void register_host_memory(void* pointer, size_t bytes);

// Unpin the memory, once all devices have done their queued work. Raise ValueError for
// an address that is not registered. If the driver fails, the memory stays registered.
// Does nothing in a forked child.
OUTBOARD_API void unregister_host_memory(void* pointer);

// Keep a pinned block until the work now queued on `stream` is done. Return false if `pointer` is
// not pinned. The caller keeps registered memory alive.
OUTBOARD_API bool record_host_block(const void* pointer, const c10::DataPtr& ptr, Stream& stream);

// Keep host memory alive that queued work of `stream` may use, after a wait for that work failed.
// Wait once more; if this fails too, warn, and keep the storage until a later wait or query shows
// that the work is done, possibly forever.
OUTBOARD_API void keep_while_queued(const c10::Storage& storage, Stream& stream);

// Record and poll the events of pinned blocks that were freed with recorded streams. Never waits.
// The next process_deferred of the stream's device raises a failure.
OUTBOARD_API void process_host_blocks();

// Free cached pinned memory before the driver is destroyed. Live blocks stay.
OUTBOARD_API void release_host_memory() noexcept;

}  // namespace outboard

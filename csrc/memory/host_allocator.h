// SPDX-License-Identifier: BSD-3-Clause
// Pinned host memory, on torch's own CachingHostAllocatorImpl.
#pragma once

#include <c10/core/Allocator.h>

#include "core/export.h"
#include "core/stream.h"

namespace at {
struct HostAllocator;
}

namespace outboard {

OUTBOARD_API at::HostAllocator& host_allocator();

// Whether the address lies in memory of host_alloc or host_register: what copy_async reaches without a detour.
OUTBOARD_API bool is_pinned(const void* pointer);

// Whether the address lies in memory of the host allocator: pinned, or ordinary memory where the driver pins none. What
// torch shows as Tensor.is_pinned, so that `pin_memory` means the same with every driver; a copy asks is_pinned.
OUTBOARD_API bool is_host_block(const void* pointer);

// Pins existing memory of the host, as good as host_alloc's from then on: copies may still be under way when they return,
// so the memory must live until it is unregistered. Opens the current device. NotSupportedError where the driver can't;
// ValueError for no bytes, and for what overlaps pinned memory.
OUTBOARD_API void register_host_memory(void* pointer, size_t bytes);

// Undoes it, when all devices have done what was queued. ValueError for an address that is not registered; if the driver
// fails the memory stays registered. Does nothing in a forked child.
OUTBOARD_API void unregister_host_memory(void* pointer);

// Keeps a pinned block until the work now queued on `stream` is done. False if `pointer` is not pinned. Registered
// memory is kept by whoever registered it.
OUTBOARD_API bool record_host_block(const void* pointer, const c10::DataPtr& ptr, Stream& stream);

// Records and polls the events of pinned blocks that were freed with streams recorded. Never waits; a failure is raised
// by the next process_deferred of the stream's device.
OUTBOARD_API void settle_host_blocks();

// Gives cached pinned memory back before the driver is destroyed. Live blocks stay.
OUTBOARD_API void release_host_memory() noexcept;

}  // namespace outboard

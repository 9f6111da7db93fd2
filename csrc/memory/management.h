// SPDX-License-Identifier: BSD-3-Clause
// The functions of torch.<name>.memory beyond torch's own DeviceAllocator: limits, observers, raw allocations.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "core/export.h"
#include "core/stream.h"
#include "memory/block.h"

namespace outboard {

// The share of the device's memory that this process may have from the driver; 1 is no limit. ValueError outside
// [0, 1], and for less than 1 on a device whose driver does not say how much memory there is.
OUTBOARD_API void set_memory_fraction(c10::DeviceIndex device, double fraction);
OUTBOARD_API double memory_fraction(c10::DeviceIndex device);

// Called on the allocating thread, with no lock held, when an allocation has found no memory even after the cache was
// emptied; what it frees is tried before torch.OutOfMemoryError is raised. It may raise, which ends the allocation.
// Allocations of the observer's own that fail call no observer.
using OutOfMemoryObserver =
    std::function<void(c10::DeviceIndex device, size_t requested, size_t device_total, size_t device_free)>;
OUTBOARD_API uint64_t attach_out_of_memory_observer(OutOfMemoryObserver observer);
// False if it was detached before. A call that is under way goes on.
OUTBOARD_API bool detach_out_of_memory_observer(uint64_t id);

// What frees memory that nobody can use any more and that only a wait can free, such as a dropped graph's. Called with
// no lock held when memory runs out and when the cache is emptied; it may wait, and raise.
using MemoryReclaimer = void (*)();
OUTBOARD_API void set_memory_reclaimer(MemoryReclaimer reclaimer);

// Allocations by address, for other libraries. 0 bytes give the address 0, which may be freed.
OUTBOARD_API uint64_t raw_allocate(Stream& stream, size_t bytes);
// ValueError for an address that raw_allocate did not give, or that was freed before.
OUTBOARD_API void raw_free(uint64_t address);

// With caching disabled each allocation has memory of its own from the driver. A free can't call the driver, so that
// memory goes back at the next allocation on its stream, the next wait for the device, or when the cache is emptied.
OUTBOARD_API void enable_caching(bool is_enabled) noexcept;
OUTBOARD_API bool is_caching_enabled() noexcept;

// The functions of a pluggable allocator. They are called with no lock held, free only once no work uses the memory.
// Kept for good.
OUTBOARD_API const memory::SegmentSource* make_segment_source(const memory::SegmentSource& functions);

// From now on every allocation calls the source, with nothing cached. ValueError once memory was allocated.
OUTBOARD_API void change_current_allocator(const memory::SegmentSource* source);

// An id that no other memory pool has; its first number is 0.
OUTBOARD_API c10::MempoolId_t new_mempool_id() noexcept;

struct MemoryPoolOptions {
  bool is_fallback = false;                       // serves others when there is no other memory left
  bool is_whole = false;                          // segments are never split
  const memory::SegmentSource* source = nullptr;  // null: the driver
};

// Private memory pools, by use count: the first use makes the pool, and once the last is released its free memory may go
// back to the driver (empty_cache). ValueError for a release without a use.
OUTBOARD_API void use_pool(c10::DeviceIndex device, c10::MempoolId_t mempool, const MemoryPoolOptions& options);
OUTBOARD_API void release_pool(c10::DeviceIndex device, c10::MempoolId_t mempool);
OUTBOARD_API int pool_use_count(c10::DeviceIndex device, c10::MempoolId_t mempool);

// Uses the pool, and sends there the allocations on streams that pass the filter, which is called under the allocator's
// lock. The latest of several wins. end_allocate_to_pool ends this very routing, release_pool the use.
using RouteId = uint64_t;
OUTBOARD_API RouteId begin_allocate_to_pool(c10::DeviceIndex device, c10::MempoolId_t mempool,
                                            std::function<bool(Stream&)> filter);
OUTBOARD_API void end_allocate_to_pool(c10::DeviceIndex device, RouteId route) noexcept;
// The same for what this thread allocates: its latest routing to the pool is what ends.
OUTBOARD_API void begin_allocate_thread_to_pool(c10::DeviceIndex device, c10::MempoolId_t mempool);
OUTBOARD_API void end_allocate_thread_to_pool(c10::DeviceIndex device, c10::MempoolId_t mempool);

namespace memory {
bool is_uncached() noexcept;                        // caching is disabled, or the allocator was changed
const SegmentSource* current_source() noexcept;  // null unless the allocator was changed
void reclaim_memory();
// Whether there was an observer to call. Does nothing inside an observer.
bool notify_out_of_memory(c10::DeviceIndex device, size_t requested);
}  // namespace memory

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// The functions of torch.<name>.memory beyond torch's own DeviceAllocator:
// limits, observers, raw allocations.
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

// Set the share of the device's memory that this process may allocate from the
// driver; 1 is no limit. Raise ValueError outside [0, 1], and below 1 if the driver
// does not report the device's memory.
OUTBOARD_API void set_memory_fraction(c10::DeviceIndex device, double fraction);
OUTBOARD_API double memory_fraction(c10::DeviceIndex device);

// An observer, called on the allocating thread with no lock held, if an allocation finds no memory
// even after the cache was emptied. If the observer frees memory, the allocation is retried before
// torch.OutOfMemoryError is raised. It may raise, which ends the allocation. If the observer's own
// allocations fail, no observer is called.
using OutOfMemoryObserver =
    std::function<void(c10::DeviceIndex device, size_t requested, size_t device_total, size_t device_free)>;
OUTBOARD_API uint64_t attach_out_of_memory_observer(OutOfMemoryObserver observer);
// Return false if it was detached before. A call under way continues.
OUTBOARD_API bool detach_out_of_memory_observer(uint64_t id);

// A function that frees unreachable memory which requires a wait, such as a dropped graph's. Called
// with no lock held when memory runs out and when the cache is emptied. It may wait, and raise.
using MemoryReclaimer = void (*)();
OUTBOARD_API void set_memory_reclaimer(MemoryReclaimer reclaimer);

// Allocate by address, for other libraries. 0 bytes return the address 0, which may be freed.
OUTBOARD_API uint64_t raw_allocate(Stream& stream, size_t bytes);
// Free the address. Raise ValueError if raw_allocate did not return it, or if it was freed before.
OUTBOARD_API void raw_free(uint64_t address);

// Enable or disable caching. Without caching, each allocation gets its own memory from the driver.
// A free must not call the driver, so memory is returned later: at the next allocation on its
// stream, at the next wait for the device, or when the cache is emptied.
OUTBOARD_API void enable_caching(bool is_enabled) noexcept;
OUTBOARD_API bool is_caching_enabled() noexcept;

// Store the functions of a pluggable allocator, permanently. They are called with no lock held.
// `free` is called only once no work uses the memory.
OUTBOARD_API const memory::SegmentSource* make_segment_source(const memory::SegmentSource& functions);

// Make every later allocation call the source, with no caching. Raise ValueError
// if memory was already allocated.
OUTBOARD_API void change_current_allocator(const memory::SegmentSource* source);

// Return an id that no other memory pool has. Its first number is 0.
OUTBOARD_API c10::MempoolId_t new_mempool_id() noexcept;

struct MemoryPoolOptions {
  bool is_fallback = false;                       // serves others when no other memory is left
  bool is_whole = false;                          // segments are never split
  const memory::SegmentSource* source = nullptr;  // null: the driver
};

// Use and release a private memory pool, which counts its uses. The first use makes the pool.
// After the last release its free memory may return to the driver (empty_cache). Raise
// ValueError for a release without a use.
OUTBOARD_API void use_pool(c10::DeviceIndex device, c10::MempoolId_t mempool, const MemoryPoolOptions& options);
OUTBOARD_API void release_pool(c10::DeviceIndex device, c10::MempoolId_t mempool);
OUTBOARD_API int pool_use_count(c10::DeviceIndex device, c10::MempoolId_t mempool);

// Use the pool, and route to it the allocations on streams that pass the filter, which runs under
// the allocator's lock. The latest of several routes wins. end_allocate_to_pool ends this route,
// and release_pool ends the use.
using RouteId = uint64_t;
OUTBOARD_API RouteId begin_allocate_to_pool(c10::DeviceIndex device, c10::MempoolId_t mempool,
                                            std::function<bool(Stream&)> filter);
OUTBOARD_API void end_allocate_to_pool(c10::DeviceIndex device, RouteId route) noexcept;
// Do the same for this thread's allocations. end_allocate_thread_to_pool ends the thread's latest
// route to the pool.
OUTBOARD_API void begin_allocate_thread_to_pool(c10::DeviceIndex device, c10::MempoolId_t mempool);
OUTBOARD_API void end_allocate_thread_to_pool(c10::DeviceIndex device, c10::MempoolId_t mempool);

namespace memory {
bool is_uncached() noexcept;                        // caching is disabled, or the allocator was changed
const SegmentSource* current_source() noexcept;  // null unless the allocator was changed
void reclaim_memory();
// Call the observers. Return true if there was one. Does nothing inside an observer.
bool notify_out_of_memory(c10::DeviceIndex device, size_t requested);
}  // namespace memory

}  // namespace outboard

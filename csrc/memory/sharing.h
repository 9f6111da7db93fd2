// SPDX-License-Identifier: BSD-3-Clause
// Memory outside the allocator's own use: the owner of an address, and
// segments shared with other processes.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/export.h"

namespace outboard {

// Return the device whose segments hold the address, -1 if there is none. Takes the heaps' locks in
// turn; calls no driver entry.
OUTBOARD_API c10::DeviceIndex device_of_address(uint64_t address) noexcept;

// The data with which another process can access an allocation.
struct SharedMemory {
  std::string handle;         // the driver's handle of the whole segment
  uint64_t segment_bytes = 0;
  uint64_t offset = 0;        // offset of the allocation within the segment
};

// Request from the driver a handle of the segment that holds `ptr`. The caller waits for queued
// work, and keeps the memory alive until the other process no longer uses it. Raise
// NotSupportedError if the driver exports no handles, or not for this memory: from a pluggable
// allocator, or in an expandable segment. Raise ValueError for memory that is not the allocator's.
OUTBOARD_API SharedMemory share_memory(const c10::DataPtr& ptr);

// Map memory that another process shared, and return its address here. close_shared_memory unmaps
// it, once no queued work uses it. Raise ValueError if the handle is invalid here, for example
// because the other process has ended.
OUTBOARD_API uint64_t open_shared_memory(c10::DeviceIndex device, const std::string& handle);
OUTBOARD_API void close_shared_memory(c10::DeviceIndex device, uint64_t address);

}  // namespace outboard

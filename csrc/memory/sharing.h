// SPDX-License-Identifier: BSD-3-Clause
// Memory outside the allocator's own use: the owner of an address, and segments shared with other processes.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/export.h"

namespace outboard {

// The device in whose segments the address lies, -1 if it lies in none. Takes one heap's lock after the other; calls no
// driver entry.
OUTBOARD_API c10::DeviceIndex device_of_address(uint64_t address) noexcept;

// What another process needs to reach an allocation.
struct SharedMemory {
  std::string handle;         // the driver's, of the whole segment
  uint64_t segment_bytes = 0;
  uint64_t offset = 0;        // of the allocation in it
};

// Asks the driver for a handle of the segment in which `ptr` lies. The memory must live until the other process has
// ended its use: that is the caller's affair, as is waiting for queued work. NotSupportedError where the driver exports
// no handles, or can't of this memory: from a pluggable allocator, in an expandable segment. ValueError for memory that
// is not the allocator's.
OUTBOARD_API SharedMemory share_memory(const c10::DataPtr& ptr);

// Maps what another process shared, and gives its address here; close_shared_memory ends that, once no queued work uses
// it. ValueError if the handle means nothing here, as when the other process has ended.
OUTBOARD_API uint64_t open_shared_memory(c10::DeviceIndex device, const std::string& handle);
OUTBOARD_API void close_shared_memory(c10::DeviceIndex device, uint64_t address);

}  // namespace outboard

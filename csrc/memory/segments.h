// SPDX-License-Identifier: BSD-3-Clause
// Functions shared by allocating and releasing segments.
#pragma once

#include <torch_outboard/driver.h>

#include <exception>

#include "memory/device_heap.h"

namespace outboard::memory {

[[noreturn]] void raise_closed(c10::DeviceIndex device);

// Return a driver call's failure on this thread, as an exception for later.
std::exception_ptr failure_of(ob_status status, const char* entry, c10::DeviceIndex device) noexcept;

// Return memory to its origin: the driver, or the source of its pool. Call it without a lock.
ob_status free_memory(c10::DeviceIndex device, const Segment& segment);

}  // namespace outboard::memory

// SPDX-License-Identifier: BSD-3-Clause
// Memory for the failure records that kernels write (core/kernel_failure.h).
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "core/kernel_failure.h"

namespace outboard {

// Memory for one record.
struct RecordSlot {
  uint64_t address = 0;          // device address
  KernelRecord* host = nullptr;  // the same memory, or the target of the record's copy
  bool is_copied = false;        // the host cannot access the device's memory
};

// Return an empty slot of the device. It may call the driver. Thread-safe.
RecordSlot take_record_slot(c10::DeviceIndex device);
// Return a slot to the device's free slots. No queued kernel may write to it. Calls no driver
// entry.
void give_record_slot(c10::DeviceIndex device, const RecordSlot& slot) noexcept;

}  // namespace outboard

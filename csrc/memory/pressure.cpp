// SPDX-License-Identifier: BSD-3-Clause
// The error of an allocation when no memory is left.
#include <c10/util/Exception.h>

#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "memory/caching_allocator.h"
#include "memory/device_heap.h"
#include "memory/size_policy.h"

namespace outboard::memory {

using c10::CachingAllocator::format_size;

void DeviceHeap::raise_out_of_memory(size_t requested, const std::string& refusal) {
  size_t allocated = 0;
  size_t reserved = 0;
  size_t limit = 0;
  double fraction = 1;
  {
    Lock lock(mutex_);
    ++stats_.num_ooms;
    allocated = static_cast<size_t>(stats_.allocated_bytes[0].current);
    reserved = static_cast<size_t>(stats_.reserved_bytes[0].current);
    limit = limit_;
    fraction = fraction_;
  }
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(requested), allocated, reserved,
                                   c10::Device(kDeviceType, device_));
  std::string message = driver_name() + " out of memory. Tried to allocate ";
  message += requested > kMaxRequest ? "more than 256 TiB" : format_size(requested);
  message += " on " + device_text(device_);
  uint64_t free = 0;
  try {
    uint64_t total = 0;
    memory_info(device_, &free, &total);
    message += ", which has a total capacity of " + format_size(total) + " of which " + format_size(free) + " is free.";
  } catch (const std::exception& error) {
    message += std::string(" (the driver did not report how much is free: ") + error.what() + ").";
  }
  if (!refusal.empty()) {
    message += " The driver reported: \"" + refusal + "\".";
  }
  if (fraction < 1) {
    message += " This process is limited to " + format_size(limit) + " (set_per_process_memory_fraction).";
  }
  {
    const Lock lock(mutex_);
    note(TraceEntry::OOM, free, requested, nullptr);
  }
  message += " This process has " + format_size(reserved) + " of it in use: " + format_size(allocated) +
             " is allocated by PyTorch, and " + format_size(reserved - allocated) +
             " is reserved by PyTorch but unallocated. If much is reserved but unallocated, the memory is fragmented:"
             " PYTORCH_ALLOC_CONF=" +
             (driver().mem_reserve ? "expandable_segments:True" : "max_split_size_mb:<MiB>") +
             " can help. Otherwise keep fewer or smaller tensors alive.";
  raise(ErrorKind::OutOfMemory, OB_OUT_OF_MEMORY, message);
}

}  // namespace outboard::memory

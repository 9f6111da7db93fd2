// SPDX-License-Identifier: BSD-3-Clause
// The host memory that a device may reach: blocks of the host allocator, and registered memory. A
// range is found by any address in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <shared_mutex>

namespace outboard::memory {

struct HostRange {
  uintptr_t start = 0;
  size_t size = 0;
  bool is_pinned = false;      // pinned by the driver
  bool is_registered = false;  // existing memory that was registered, not allocated here
  bool is_busy = false;        // registered, while the driver is called
};

// A set of address ranges. Its lock is a leaf: nothing is called under it.
class HostRanges {
 public:
  // Add a range. If it overlaps an existing range, do nothing and return false.
  bool add(const HostRange& range);
  // Remove the range that begins there. It must exist.
  void remove(uintptr_t start);
  // Return the range, or one of size 0 if the address is in none.
  HostRange find(const void* pointer) const;
  // Mark a registered range that begins there as busy, or as no longer busy. Return false if there
  // is no such range in the other state.
  bool set_busy(uintptr_t start, bool is_busy);
  void set_pinned(uintptr_t start);

 private:
  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, HostRange> ranges_;  // ranges by start address
};

// Return the process's ranges. Never destroyed, because deleters run until the end of the process.
HostRanges& host_ranges();

}  // namespace outboard::memory

// SPDX-License-Identifier: BSD-3-Clause
// The host memory that a device may reach: blocks of the host allocator, and registered memory. Found by any address
// within.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <shared_mutex>

namespace outboard::memory {

struct HostRange {
  uintptr_t start = 0;
  size_t size = 0;
  bool is_pinned = false;      // by the driver
  bool is_registered = false;  // not ours: it was there before
  bool is_busy = false;        // registered, while the driver is asked
};

// Its lock is a leaf: nothing is called under it.
class HostRanges {
 public:
  // False, with nothing done, if it overlaps one that is there.
  bool add(const HostRange& range);
  // The range that begins there, which is one.
  void remove(uintptr_t start);
  // Size 0 if the address is in none.
  HostRange find(const void* pointer) const;
  // Marks a registered range that begins there as busy, or as no longer busy; false if there is none to be so marked.
  bool set_busy(uintptr_t start, bool is_busy);
  void set_pinned(uintptr_t start);

 private:
  mutable std::shared_mutex mutex_;
  std::map<uintptr_t, HostRange> ranges_;  // by start
};

// Of the process; never destroyed, as deleters run until its very end.
HostRanges& host_ranges();

}  // namespace outboard::memory

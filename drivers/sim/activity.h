// SPDX-License-Identifier: BSD-3-Clause
// Records of work that ran, for a profiler.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>

#include "torch_outboard/driver.h"

namespace sim {

class Activity {
 public:
  void enable(uint32_t kinds) { kinds_.store(kinds, std::memory_order_relaxed); }
  uint32_t kinds() const { return kinds_.load(std::memory_order_relaxed); }

  void add(const ob_activity& record);

  // Move at most `capacity` records, oldest first, to records `stride` bytes apart.
  size_t read(size_t capacity, size_t stride, ob_activity* out_records);

  // Set it for the calling thread.
  static void set_correlation(uint64_t correlation);
  static uint64_t correlation();

 private:
  std::atomic<uint32_t> kinds_{0};
  std::mutex mutex_;
  std::deque<ob_activity> records_;
};

}  // namespace sim

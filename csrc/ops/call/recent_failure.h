// SPDX-License-Identifier: BSD-3-Clause
// A failure that may not recur, such as a full disk. The operation is not retried at every call.
#pragma once

#include <chrono>
#include <exception>
#include <mutex>

#include "core/export.h"

namespace outboard {

class RecentFailure {
 public:
  RecentFailure() = default;
  // At process exit, the failure is leaked: torch's dispatcher outlives Python, and the failure may
  // be a Python object.
  ~RecentFailure();
  RecentFailure(const RecentFailure&) = delete;
  RecentFailure& operator=(const RecentFailure&) = delete;

  // Raise the failure again if it is younger than the interval.
  void raise_if_recent() const;
  // Store the exception being handled. An interrupt, such as KeyboardInterrupt, is not a failure.
  void keep_current();

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::chrono::steady_clock::time_point when_;
};

// Set how long a failure is recent: one second by default; tests set other times.
OUTBOARD_API void set_retry_interval(std::chrono::nanoseconds interval);

}  // namespace outboard

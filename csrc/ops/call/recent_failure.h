// SPDX-License-Identifier: BSD-3-Clause
// A failure that may be gone at the next try, such as a full disk. It
// is not tried again at each call.
#pragma once

#include <chrono>
#include <exception>
#include <mutex>

#include "core/export.h"

namespace outboard {

class RecentFailure {
 public:
  RecentFailure() = default;
  // At the end of a process the failure stays: torch's dispatcher ends after Python,
  // and it may be a Python object.
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

// Set for how long a failure is recent: a second, unless a test sets another time.
OUTBOARD_API void set_retry_interval(std::chrono::nanoseconds interval);

}  // namespace outboard

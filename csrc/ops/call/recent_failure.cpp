// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/recent_failure.h"

#include <atomic>
#include <utility>

#include "core/error.h"
#include "core/process.h"
#include "ops/call/call.h"

namespace outboard {

namespace {

std::atomic<std::chrono::nanoseconds> retry_interval{std::chrono::seconds(1)};

}  // namespace

void set_retry_interval(std::chrono::nanoseconds interval) {
  retry_interval.store(interval, std::memory_order_relaxed);
}

RecentFailure::~RecentFailure() {
  if (error_ != nullptr && driver_is_gone()) {
    static_cast<void>(new std::exception_ptr(std::move(error_)));
  }
}

void RecentFailure::raise_if_recent() const {
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    if (error_ != nullptr && std::chrono::steady_clock::now() - when_ < retry_interval.load()) {
      error = error_;
    }
  }
  if (error != nullptr) {
    raise_copy(error);
  }
}

void RecentFailure::keep_current() {
  std::exception_ptr kept = std::current_exception();
  try {
    throw;
  } catch (const std::exception& error) {
    if (is_interrupt(error)) {
      return;
    }
  } catch (...) {
    // An exception that is not a std::exception is not a Python interrupt.
  }
  // The old exception is destroyed without the lock: it may be a Python object.
  const std::lock_guard lock(mutex_);
  std::swap(error_, kept);
  when_ = std::chrono::steady_clock::now();
}

}  // namespace outboard

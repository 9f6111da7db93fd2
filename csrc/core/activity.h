// SPDX-License-Identifier: BSD-3-Clause
// The records of a profiler: calls that queue work or wait, on their threads, and the work itself,
// on the device's streams. The work's times come from the driver's activity records. For a driver
// without records, host work is timed while it runs, and all other work by events around it.
//
// Each call has a correlation number, which the records of its work carry. While nothing is
// recorded, a call site costs one load.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/macros/Macros.h>
#include <torch_outboard/driver.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/export.h"
#include "core/stream.h"

namespace outboard {

enum class ActivityKind : uint8_t {
  Kernel,  // a launch, a kernel of the driver's own for an operator, a graph
  Host,  // a CPU kernel, in the stream's order
  Copy,
  Fill,
  Wait  // the caller waits; the call has no work of its own
};

struct ActivityInfo {
  ActivityKind kind;
  const char* entry;  // the entry of the driver's table
  const char* name = nullptr;  // the work's name, or null for the entry's; lives as long as the process (intern_name)
  uint64_t bytes = 0;  // bytes of a copy or a fill
  int32_t src_device = OB_HOST;
  int32_t dst_device = OB_HOST;
};

// A driver call, as seen by the thread that made it. Times are nanoseconds of CLOCK_MONOTONIC.
struct CallRecord {
  uint64_t correlation = 0;
  uint64_t op = 0;  // the last id from push_activity_op on this thread; 0 for none
  uint64_t annotation = 0;  // the same for push_activity_annotation
  int64_t start = 0;
  int64_t end = 0;
  int32_t thread = 0;  // the system's thread number
  c10::DeviceIndex device = 0;
  bool is_queued = false;  // the call has work of its own: false for waits and for calls that a driver captures
  c10::StreamId stream = 0;
  ActivityInfo info{};
};

// Work that ran. A call may queue several pieces of work.
struct WorkRecord {
  uint64_t correlation = 0;  // 0: the driver does not know which call queued it
  int64_t start = 0;
  int64_t end = 0;
  int64_t earliest = 0;  // the earliest possible start of the work; 0: its call's time
  ActivityInfo info{};
  c10::DeviceIndex device = 0;
  c10::StreamId stream = 0;
};

struct ClockPair {
  int64_t monotonic = 0;  // nanoseconds
  int64_t unix_time = 0;  // nanoseconds since 1970, read at the same moment
};

struct ActivityProfile {
  std::vector<CallRecord> calls;
  std::vector<WorkRecord> works;
  size_t unfinished = 0;  // calls whose work had not ended when the recording stopped
  std::vector<std::string> problems;
  ClockPair begin;
  ClockPair end;
};

// Start or stop the recording. The process has one recording at a time. Starting again discards the
// current recording; stopping without a start returns an empty profile. Neither function waits for
// work or raises its failures. A refusal by the driver is listed in the profile's problems.
OUTBOARD_API void start_activities();
OUTBOARD_API ActivityProfile stop_activities();

// Set the calling thread's current activity, which its calls' records contain.
OUTBOARD_API void push_activity_op(uint64_t id);
OUTBOARD_API void pop_activity_op() noexcept;
OUTBOARD_API void push_activity_annotation(uint64_t id);
OUTBOARD_API void pop_activity_annotation() noexcept;

// Return a copy of the text that lives as long as the process.
OUTBOARD_API const char* intern_name(const std::string& name);

namespace detail {
OUTBOARD_API extern std::atomic<bool> is_recording_activities;
}

inline bool is_recording_activities() noexcept {
  return detail::is_recording_activities.load(std::memory_order_relaxed);
}

// A driver call in progress. If the call raises, the scope is not finished and leaves no record. A
// failure of the recording itself never raises, because work may already be queued; the profile's
// problems list it.
class OUTBOARD_API ActivityScope {
 public:
  ActivityScope(Stream& stream, const ActivityInfo& info) {
    if (C10_UNLIKELY(is_recording_activities())) {
      begin(stream, info);
    }
  }
  // Note a wait for a whole device.
  ActivityScope(c10::DeviceIndex device, const char* entry) {
    if (C10_UNLIKELY(is_recording_activities())) {
      begin_wait(device, entry);
    }
  }
  ~ActivityScope() {
    if (C10_UNLIKELY(open_ != nullptr)) {
      drop();
    }
  }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

  void finish() {
    if (C10_UNLIKELY(open_ != nullptr)) {
      end();
    }
  }

  // Return a wrapper to queue instead of host work that the core must time, because the driver will
  // not report a record of it. The caller releases the wrapper once it is queued. Return null if
  // the driver times the work or nothing is recorded.
  struct TimedHostWork {
    ob_host_fn fn;
    void* user;
    uint64_t correlation;
    static void run(void* timed);
  };
  std::unique_ptr<TimedHostWork> time_host_work(ob_host_fn fn, void* user) const;
  // Do the same for work that the core runs itself. Null if nothing is recorded.
  std::unique_ptr<TimedHostWork> time_own_work(ob_host_fn fn, void* user) const;
  // Return the number of the call, for work that a thread of the core does
  // for it; 0 if nothing is recorded.
  uint64_t correlation() const noexcept;

 private:
  struct Open;
  void begin(Stream& stream, const ActivityInfo& info);
  void begin_wait(c10::DeviceIndex device, const char* entry);
  void enter(std::unique_ptr<Open> open);
  void end();
  static void log(Open& open);
  void drop() noexcept;

  Open* open_ = nullptr;
};

// Times the work that a thread of the core does for a call. That thread calls begin() and finish().
class OUTBOARD_API OwnWorkTimer {
 public:
  OwnWorkTimer() = default;
  explicit OwnWorkTimer(const ActivityScope& call) : correlation_(call.correlation()) {}
  void begin() noexcept;
  void finish();  // only the first call has an effect

 private:
  uint64_t correlation_ = 0;
  int64_t start_ = 0;
};

}  // namespace outboard

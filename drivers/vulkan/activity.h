// SPDX-License-Identifier: BSD-3-Clause
// Records for a profile.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "torch_outboard/driver.h"

namespace vulkan {

struct Batch;
struct Device;
struct Driver;
struct Stream;
struct Timeline;

// A value of a stream's timeline.
struct Point {
  std::shared_ptr<Timeline> timeline;
  uint64_t value = 0;
};

// A record, whose times are those of two queries once the point is reached. Without a timeline the
// record is complete.
struct Activity {
  ob_activity record = {};
  Point point;
  int64_t queries[2] = {-1, -1};
};

class Activities {
 public:
  uint32_t kinds() const { return kinds_.load(std::memory_order_relaxed); }
  void enable(uint32_t kinds);
  void add(Activity activity);
  // Drop the records of a device that is closed.
  void forget(const Device& device);
  // Move the records whose work is done, oldest first, as activity_read does.
  ob_status read(Driver& driver, size_t capacity, size_t stride, ob_activity* out_records, size_t* out_count);

 private:
  std::atomic<uint32_t> kinds_{0};
  std::mutex mutex_;
  std::deque<Activity> records_;
};

// What a call queues.
struct Work {
  uint32_t kind = 0;
  uint64_t bytes = 0;
  int32_t src_device = OB_HOST;
  int32_t dst_device = OB_HOST;
  const char* name = "";

  bool is_recorded(const Stream& stream) const;
  ob_activity record(const Stream& stream) const;
};

// Records the commands that are added to a stream's batch while this object lives, if a profile
// runs. Construct and destroy it with the stream's mutex held; the batch must stay open meanwhile.
class DeviceTiming {
 public:
  DeviceTiming(Stream& stream, const Work& work);
  ~DeviceTiming();
  DeviceTiming(const DeviceTiming&) = delete;
  DeviceTiming& operator=(const DeviceTiming&) = delete;

 private:
  Stream& stream_;
  Batch* batch_ = nullptr;
  uint32_t count_ = 0;
  Activity activity_;
};

// The same for what the host does while this object lives.
class HostTiming {
 public:
  HostTiming(const Stream& stream, const Work& work);
  ~HostTiming();
  HostTiming(const HostTiming&) = delete;
  HostTiming& operator=(const HostTiming&) = delete;

 private:
  const Stream& stream_;
  const Work work_;
  bool is_recorded_ = false;
  int64_t start_ = 0;
};

// A moment, as the device's clock and CLOCK_MONOTONIC tell it.
struct Clocks {
  uint64_t ticks = 0;
  int64_t monotonic = 0;
};

int64_t monotonic_now();

}  // namespace vulkan

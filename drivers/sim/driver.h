// SPDX-License-Identifier: BSD-3-Clause
// The driver as a whole: what one call of ob_driver_table created.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "activity.h"
#include "event.h"
#include "faults.h"
#include "memory.h"
#include "options.h"
#include "schedule.h"
#include "slots.h"
#include "stream.h"

namespace sim {

struct Device {
  std::atomic<bool> is_open{false};
  DeviceMemory memory;
  std::atomic<int64_t> stream_count{0};
  std::atomic<int64_t> event_count{0};
  Failure orphaned_failure;  // of a stream that was destroyed before a caller waited for it
};

struct Driver {
  explicit Driver(const Options& all_options);
  ~Driver();

  const Options options;
  const std::string repeats;  // what an error adds, so that the order of work can be repeated
  const bool is_modelled;  // work takes time: bandwidth or latency
  Faults faults;
  Activity activity;
  SlotTable<Stream> streams;
  SlotTable<Event> events;
  SlotTable<Stream> gates;  // of events that the host completes
  std::unique_ptr<Device[]> devices;
  std::unique_ptr<Scheduler> scheduler;

  // Host memory that was allocated or registered, by address.
  struct HostRange {
    uint64_t bytes;
    bool is_allocated;
  };
  using HostRanges = std::map<uint64_t, HostRange>;
  std::mutex host_mutex;
  HostRanges host_ranges;

  // The number of tasks queued on all streams. With it the lazy schedule
  // detects a host that only polls.
  std::atomic<uint64_t> queued_count{0};

  // Fail if there is no such device.
  ob_status check_index(int32_t index) const;

  // Fail if there is no such device or it is not open.
  ob_status find_device(int32_t index, Device** out_device);

  // Return null, with the last error set to OB_INVALID_ARGUMENT, if that
  // device has no such stream or event.
  Stream* stream(int32_t device, uint64_t handle);
  Event* event(int32_t device, uint64_t handle);

  ob_status open(int32_t index);
  ob_status close(int32_t index);

  ob_status create_stream(int32_t device, int32_t priority, uint64_t* out_stream);
  ob_status destroy_stream(int32_t device, uint64_t handle);

  // Queue a task, or run it at once (inline). `out_position`, which may be null, is
  // the stream's position after it. `handle` is the one by which `stream` was found:
  // it may have been destroyed since.
  ob_status queue(Stream* stream, uint64_t handle, const Task& task, uint64_t* out_position = nullptr);

  // Drop a destroyed stream that has no more work. Its last user calls this, with no lock held.
  void recycle(Stream* stream);

  // Return the streams of a device, or of all (OB_HOST), that are live or still have work,
  // in the order of their creation.
  std::vector<Stream*> streams_of(int32_t device);

  // Take the first failure of a device's streams, in the order of their creation, dead
  // ones last; one failure a call.
  ob_status take_failure(int32_t device);

  // Wait for everything that was queued on a device before the call.
  void drain(int32_t device);

 private:
  std::mutex open_mutex_;
  int open_count_ = 0;
  std::mutex streams_mutex_;
  std::vector<Stream*> all_streams_;
};

}  // namespace sim

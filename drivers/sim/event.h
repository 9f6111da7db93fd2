// SPDX-License-Identifier: BSD-3-Clause
// Events: the position of their latest record, and when it was reached.
#pragma once

#include <atomic>
#include <cstdint>

#include "stream.h"
#include "sync.h"

namespace sim {

// A point of a stream; null and 0 for an event that was not recorded.
struct Point {
  Stream* stream = nullptr;
  uint64_t position = 0;

  bool is_reached() const { return stream == nullptr || stream->is_done(position); }
};

// An event. Records are numbered for the life of the slot. A mark that is still queued when the
// event is recorded again, destroyed or made again is recognized as old.
struct Event {
  std::atomic<uint64_t> handle{0};
  std::atomic<uint32_t> flags{0};

  // Make the slot an event without a record, or, with a gate, one that the host completes.
  void reset(uint32_t event_flags, Stream* gate = nullptr, uint64_t gate_handle = 0);

  // Return the gate, which is the caller's to open, the first time; null
  // afterwards, and for other events.
  Stream* take_gate(uint64_t* out_gate_handle);
  bool is_host() const { return (flags.load(std::memory_order_relaxed) & OB_EVENT_HOST) != 0; }

  // Return a number for a record that is about to be queued.
  uint64_t begin_record() { return started_records_.fetch_add(1, std::memory_order_relaxed) + 1; }

  // Set where the record was queued. If two threads record at once, the later begin wins.
  void set_record(uint64_t record, const Point& point);

  // Note that the mark of `record` was reached.
  void reach(uint64_t record);

  Point latest() const;

  // Return the time of the latest record; false if it is not reached yet.
  bool time(int64_t* out_nanoseconds) const;

 private:
  mutable SpinLock lock_;
  std::atomic<uint64_t> started_records_{0};
  uint64_t record_ = 0;  // all under lock_
  uint64_t first_record_ = 1;
  Point point_;
  uint64_t reached_record_ = 0;
  int64_t reached_time_ = 0;
  Stream* gate_ = nullptr;
  uint64_t gate_handle_ = 0;
};

}  // namespace sim

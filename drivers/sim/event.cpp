// SPDX-License-Identifier: BSD-3-Clause
#include "event.h"

#include <mutex>
#include <utility>

namespace sim {

void Event::reset(uint32_t event_flags, Stream* gate, uint64_t gate_handle) {
  std::lock_guard lock(lock_);
  flags.store(event_flags, std::memory_order_relaxed);
  record_ = started_records_.load(std::memory_order_relaxed);
  first_record_ = record_ + 1;
  point_ = Point();
  gate_ = gate;
  gate_handle_ = gate_handle;
  if (gate != nullptr) point_ = {gate, gate->close()};
}

Stream* Event::take_gate(uint64_t* out_gate_handle) {
  std::lock_guard lock(lock_);
  *out_gate_handle = gate_handle_;
  return std::exchange(gate_, nullptr);
}

void Event::set_record(uint64_t record, const Point& point) {
  std::lock_guard lock(lock_);
  if (record <= record_) return;
  record_ = record;
  point_ = point;
}

void Event::reach(uint64_t record) {
  const int64_t time = now();
  std::lock_guard lock(lock_);
  if (record <= reached_record_) return;
  reached_record_ = record;
  reached_time_ = time;
}

Point Event::latest() const {
  std::lock_guard lock(lock_);
  return point_;
}

bool Event::time(int64_t* out_nanoseconds) const {
  std::lock_guard lock(lock_);
  if (record_ < first_record_ || reached_record_ != record_) return false;
  *out_nanoseconds = reached_time_;
  return true;
}

}  // namespace sim

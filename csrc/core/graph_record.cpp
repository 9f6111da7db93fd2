// SPDX-License-Identifier: BSD-3-Clause
#include "core/graph_record.h"

#include <algorithm>

#include "core/failure.h"
#include "core/stream.h"

namespace outboard {

namespace {

// A replay never shares its ticket with a launch outside graphs: those read other records.
constexpr uint64_t kTicket = 0;

struct LiveRecords {
  std::mutex mutex;
  std::vector<std::weak_ptr<GraphRecord>> list;
};

LiveRecords& live_records() {
  static auto* const instance = new LiveRecords();
  return *instance;
}

using Records = std::vector<std::shared_ptr<GraphRecord>>;

// Drop the records whose replays on the stream are known to be done.
void drop_graph_records(StreamState& stream) {
  StreamFailures& failures = stream.failures;
  Records dropped;  // destroyed without the lock
  const std::lock_guard lock(failures.mutex);
  std::erase_if(failures.graph_records, [&](std::shared_ptr<GraphRecord>& record) {
    const bool is_done = record->end_replays(stream);
    if (is_done) {
      dropped.push_back(std::move(record));
    }
    return is_done;
  });
  failures.has_graph_records.store(!failures.graph_records.empty(), std::memory_order_release);
}

}  // namespace

std::shared_ptr<GraphRecord> GraphRecord::make(c10::DeviceIndex device) {
  const RecordSlot slot = take_record_slot(device);
  if (slot.is_copied) {
    give_record_slot(device, slot);
    return nullptr;
  }
  const std::shared_ptr<GraphRecord> new_record(new GraphRecord(device, slot));
  {
    const std::lock_guard lock(live_records().mutex);
    std::erase_if(live_records().list, [](const std::weak_ptr<GraphRecord>& record) { return record.expired(); });
    live_records().list.push_back(new_record);
  }
  detail::any_record.store(true);
  return new_record;
}

GraphRecord::~GraphRecord() {
  detail::erase_record(slot_.host);
  give_record_slot(device_, slot_);
}

void GraphRecord::set(RecordArguments& record, ob_kernel_arg* args) const noexcept {
  record.ticket = kTicket;
  detail::set_record_arguments(slot_.address, record, args);
}

void GraphRecord::begin_replay(StreamState& stream) {
  StreamFailures& failures = stream.failures;
  const uint64_t mark = next_unique_position(stream).mark;
  const std::lock_guard of_stream(failures.mutex);
  const std::shared_ptr<GraphRecord> self = shared_from_this();
  if (std::ranges::find(failures.graph_records, self) == failures.graph_records.end()) {
    failures.graph_records.push_back(self);
    failures.has_graph_records.store(true, std::memory_order_release);
  }
  const std::lock_guard lock(mutex_);
  const auto known = std::ranges::find(replays_, &stream, &Replays::stream);
  if (known == replays_.end()) {
    replays_.push_back({&stream, mark, mark});
    return;
  }
  // The wait that found the earlier replays done has read the record.
  known->first = known->last < failures.done.load(std::memory_order_acquire) ? mark : known->first;
  known->last = mark;
}

bool GraphRecord::end_replays(const StreamState& stream) noexcept {
  const std::lock_guard lock(mutex_);
  const auto known = std::ranges::find(replays_, &stream, &Replays::stream);
  if (known != replays_.end() && known->last >= stream.failures.done.load(std::memory_order_acquire)) {
    return false;
  }
  if (known != replays_.end()) {
    replays_.erase(known);
  }
  return true;
}

void GraphRecord::read() {
  if (C10_LIKELY(!detail::is_record_taken(slot_.host))) {
    return;
  }
  const std::lock_guard reading(reading_);
  KernelRecord seen{};
  if (!detail::copy_record(slot_.host, &seen)) {
    return;
  }
  std::vector<Replays> replays;
  {
    const std::lock_guard lock(mutex_);
    replays = replays_;
  }
  const std::exception_ptr error = detail::error_of(seen);
  for (const Replays& replay : replays) {
    if (replay.last >= replay.stream->failures.done.load(std::memory_order_acquire)) {
      report_failure({replay.stream, replay.first}, error);
    }
  }
  detail::erase_record(slot_.host);
}

void detail::read_graph_records(StreamState& stream) {
  StreamFailures& failures = stream.failures;
  if (C10_LIKELY(!failures.has_graph_records.load(std::memory_order_acquire))) {
    return;
  }
  Records records;
  {
    const std::lock_guard lock(failures.mutex);
    records = failures.graph_records;
  }
  for (const std::shared_ptr<GraphRecord>& record : records) {
    record->read();
  }
  drop_graph_records(stream);
}

std::vector<WorkPosition> detail::graph_replays(c10::DeviceIndex device) {
  std::vector<WorkPosition> replays;
  if (!has_records()) {
    return replays;
  }
  for_each_created_stream(
      device,
      [](Stream& stream, void* user) {
        if (stream.failures.has_graph_records.load(std::memory_order_acquire)) {
          static_cast<std::vector<WorkPosition>*>(user)->push_back(next_unique_position(stream));
        }
      },
      &replays);
  return replays;
}

void detail::end_graph_replays(const std::vector<WorkPosition>& replays) {
  if (replays.empty()) {
    return;
  }
  read_graph_records();
  for (const WorkPosition& position : replays) {
    note_done(position);
    drop_graph_records(*position.stream);
  }
}

void detail::read_graph_records() {
  Records records;
  {
    const std::lock_guard lock(live_records().mutex);
    for (const std::weak_ptr<GraphRecord>& weak : live_records().list) {
      if (std::shared_ptr<GraphRecord> record = weak.lock()) {
        records.push_back(std::move(record));
      }
    }
  }
  for (const std::shared_ptr<GraphRecord>& record : records) {
    record->read();
  }
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// The failure record of the kernels in a driver's own graph. The driver stores a launch's arguments
// once, so all replays share one record and one ticket. A failure therefore belongs to each stream
// with a replay that may be under way, at the position of the first such replay: it is raised at
// the next wait for any of these streams.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <mutex>
#include <vector>

#include "core/export.h"
#include "core/failure.h"
#include "core/record_slots.h"

namespace outboard {

struct StreamState;

class OUTBOARD_API GraphRecord : public std::enable_shared_from_this<GraphRecord> {
 public:
  // Return null if the host cannot read the record without a copy, because the graph would have to
  // copy it in each replay. May call the driver.
  static std::shared_ptr<GraphRecord> make(c10::DeviceIndex device);
  ~GraphRecord();
  GraphRecord(const GraphRecord&) = delete;
  GraphRecord& operator=(const GraphRecord&) = delete;

  c10::DeviceIndex device() const noexcept { return device_; }
  // Fill in the arguments of a launch that is being captured.
  void set(RecordArguments& record, ob_kernel_arg* args) const noexcept;
  // Note that a replay is about to be queued on the stream; waits for the stream read the record
  // from then on.
  void begin_replay(StreamState& stream);
  // Report a failure that kernels have written to the record.
  void read();
  // Drop the stream's replays if all are known to be done. Return false if one may still be
  // running.
  bool end_replays(const StreamState& stream) noexcept;

 private:
  // Replays on one stream that may still be running.
  struct Replays {
    StreamState* stream;
    uint64_t first;
    uint64_t last;
  };

  GraphRecord(c10::DeviceIndex device, const RecordSlot& slot) : device_(device), slot_(slot) {}

  const c10::DeviceIndex device_;
  const RecordSlot slot_;
  std::mutex reading_;  // held while a failure is reported, so that no other reader finds the record empty too early
  std::mutex mutex_;    // guards `replays_`; taken after a stream's `failures.mutex`
  std::vector<Replays> replays_;
};

namespace detail {
// Read the records of the graphs that were replayed on the stream.
void read_graph_records(StreamState& stream);
// Read the records of all graphs.
void read_graph_records();

// Return the streams of a device with replays that may still be running, with the point after the
// work queued so far.
std::vector<WorkPosition> graph_replays(c10::DeviceIndex device);
// Read the records, and note that the work is done. Call it after a wait for the device.
void end_graph_replays(const std::vector<WorkPosition>& replays);
}  // namespace detail

}  // namespace outboard

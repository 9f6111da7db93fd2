// SPDX-License-Identifier: BSD-3-Clause
// A graph capture in progress, as seen by the layers below csrc/graph. Work that is queued on a
// capturing stream goes to its capture instead of the driver. The functions of core/queue.h,
// streams and events route it there.
#pragma once

#include <c10/core/Device.h>
#include <torch_outboard/driver.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/export.h"
#include "core/stream.h"

namespace outboard {

// Host work of a graph. It runs once per replay, on a driver thread, and lives as long as the
// graph.
class OUTBOARD_API HostCommand {
 public:
  virtual ~HostCommand() = default;
  // Run the work. `position` is the replay's position in its stream: failures are reported
  // there. Must call no driver entry.
  virtual void run(const WorkPosition& position) noexcept = 0;
  virtual std::string describe() const = 0;
};

struct RecordArguments;

// Driver work of a graph. The replaying thread queues it once per replay.
class OUTBOARD_API DriverCommand {
 public:
  virtual ~DriverCommand() = default;
  virtual void queue(Stream& stream) = 0;
  virtual std::string describe() const = 0;
};

// Where a random generator's numbers begin.
struct RandomPosition {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

// Where the numbers of a replay begin. A replay may be queued while earlier replays still run, so
// there are two positions: running work reads the position that is written in stream order, and
// DriverCommand::queue reads the position that the replaying thread writes before queueing.
struct RandomCell {
  RandomPosition running;
  RandomPosition queued;
};

// The source of a captured draw's random numbers, which are new for each replay.
class OUTBOARD_API RandomSource {
 public:
  virtual ~RandomSource() = default;
  virtual RandomPosition take(uint64_t increment) = 0;
};

// One draw of a capture: its numbers begin `offset` after the start of the replay's numbers.
class RandomDraw {
 public:
  RandomDraw() = default;
  RandomDraw(const RandomCell* cell, uint64_t offset) : cell_(cell), offset_(offset) {}

  // Call it from work that runs in the replay, such as HostCommand::run.
  RandomPosition when_run() const { return at(cell_->running); }
  // Call it from DriverCommand::queue.
  RandomPosition when_queued() const { return at(cell_->queued); }

 private:
  RandomPosition at(const RandomPosition& start) const { return {start.seed, start.offset + offset_}; }

  const RandomCell* cell_ = nullptr;
  uint64_t offset_ = 0;
};

// A point in a capture, which represents an event that was recorded on a capturing stream.
struct CaptureMark {
  class Capture* capture = nullptr;
  uint64_t id = 0;             // per capturing stream: its work before the point
  std::vector<uint64_t> seen;  // per capturing stream, how much of its work precedes the point
};

// A capture in progress. Objects of this class are never freed, so a thread that has just read
// `StreamState::capture` may use the object. Thread-safe. If a member fails, it invalidates the
// capture and raises CaptureError.
class OUTBOARD_API Capture {
 public:
  virtual ~Capture() = default;

  // Return true if the driver captures. Calls are then passed to the driver after the capture has
  // checked them.
  virtual bool is_native() const noexcept = 0;
  virtual void add(Stream& stream, std::unique_ptr<DriverCommand> command) = 0;  // not called on a native capture
  virtual void add(Stream& stream, std::unique_ptr<HostCommand> command) = 0;
  // Raise if the capture has failed or ended. Call it before passing a call to the driver.
  virtual void check(Stream& stream) = 0;
  // Keep an object as long as the graph, such as pinned memory that a copy reads.
  virtual void keep(std::shared_ptr<const void> object) = 0;
  // Fill in the arguments of a checking kernel's launch that a driver captures.
  virtual void set_record(Stream& stream, RecordArguments& record, ob_kernel_arg* args, const char* name) = 0;
  virtual RandomDraw draw(const std::shared_ptr<RandomSource>& source, uint64_t increment) = 0;

  virtual CaptureMark mark(Stream& stream) = 0;
  // Make `stream` wait for the mark. The stream takes part in the mark's capture from then on.
  virtual void join(Stream& stream, const CaptureMark& mark) = 0;
  virtual bool is_active(uint64_t id) const noexcept = 0;
  // Return how many commands were added since the process began. A change shows that a call was
  // recorded. Not called on a native capture.
  virtual uint64_t command_count() const noexcept = 0;

  virtual bool forbids_wait_for(c10::DeviceIndex device) const noexcept = 0;
  // Invalidate the capture and raise "<what> cannot be captured in a graph: …".
  [[noreturn]] virtual void refuse(const std::string& what) = 0;
};

// Return true on the thread that calls host_callback for a driver's capture. The work passed there
// runs once per launch.
OUTBOARD_API bool is_repeated_host_work() noexcept;
namespace detail {
OUTBOARD_API void set_repeated_host_work(bool is_repeated) noexcept;
}

inline Capture* capture_of(const Stream& stream) noexcept {
  return stream.capture.load(std::memory_order_acquire);
}

// Return true if the driver captures the stream. A query of the stream or a
// wait for it would end the capture.
inline bool is_captured_by_driver(const Stream& stream) noexcept {
  const Capture* capture = capture_of(stream);
  return C10_UNLIKELY(capture != nullptr) && capture->is_native();
}

// Raise CaptureError if the stream captures. `what` names the attempt: "aten::nonzero, whose
// result the caller waits for,".
inline void refuse_in_capture(const Stream& stream, const char* what) {
  if (Capture* capture = capture_of(stream); C10_UNLIKELY(capture != nullptr)) {
    capture->refuse(what);
  }
}

// Return the driver's handle of a stream, for a caller that queues work below the core. Raise
// CaptureError if the core is capturing the stream: the work would run at once and be missing from
// the graph. If the driver captures, it records such work itself.
OUTBOARD_API uint64_t handle_for_caller(Stream& stream);
// Raise the same error for a handle that was obtained before the capture. `what` names the caller's
// attempt.
OUTBOARD_API void refuse_handle_in_capture(c10::DeviceIndex device, uint64_t handle, const char* what);

// Raise the same error for work on an external stream that shares its
// handle with a capturing stream.
inline void refuse_second_stream(const Stream& stream) {
  if (C10_UNLIKELY(stream.is_external)) {
    refuse_handle_in_capture(stream.device, stream.handle,
                             "work on a second stream that shares the handle of a capturing stream");
  }
}

// Register or remove a capture in progress, for calls that concern a whole device.
OUTBOARD_API void enter_capture(Capture& capture);
OUTBOARD_API void leave_capture(Capture& capture) noexcept;
// Return true if a driver is capturing. The driver must then not be called to wait for a whole
// device.
OUTBOARD_API bool is_capturing_natively();
// Raise CaptureError if a capture forbids waiting for the device.
OUTBOARD_API void refuse_device_wait(c10::DeviceIndex device);

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// A graph capture that is under way, as the layers below csrc/graph see it. While a stream captures, what is queued on
// it goes to its capture instead of the driver; the functions of core/queue.h, and streams and events, see to that.
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

// Host work of a graph. It runs once a replay, on a thread of the driver's, and is kept as long as the graph.
class OUTBOARD_API HostCommand {
 public:
  virtual ~HostCommand() = default;
  // `place` is where the replay stands in the stream that it runs on: a failure is reported there. Calls no driver entry.
  virtual void run(const WorkPlace& place) noexcept = 0;
  virtual std::string describe() const = 0;
};

// Work of a graph that the driver does: queued once a replay, by the thread that replays.
class OUTBOARD_API DriverCommand {
 public:
  virtual ~DriverCommand() = default;
  virtual void queue(Stream& stream) = 0;
  virtual std::string describe() const = 0;
};

// A random generator's seed and offset for one replay, written and read in the order of the replaying stream.
struct RandomCell {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

// What a captured draw takes its numbers from, anew for each replay.
class OUTBOARD_API RandomSource {
 public:
  virtual ~RandomSource() = default;
  virtual RandomCell take(uint64_t increment) = 0;
};

// One draw of a capture: in a replay its numbers begin at cell->offset + offset.
struct RandomDraw {
  const RandomCell* cell = nullptr;
  uint64_t offset = 0;
};

// A point of a capture, what an event stands for that was recorded on a capturing stream.
struct CaptureMark {
  class Capture* capture = nullptr;
  uint64_t id = 0;             // of that capture: the object may serve another one later
  std::vector<uint64_t> seen;  // how much of each of the capture's streams lies before the point
};

// Objects of this class are never freed, so that a thread that has just read `StreamState::capture` may use it.
// Thread-safe. A member that cannot do what it is asked for makes the capture invalid and raises CaptureError.
class OUTBOARD_API Capture {
 public:
  virtual ~Capture() = default;

  // Whether the driver captures: calls then go on to it, after the capture has had its look at them.
  virtual bool is_native() const noexcept = 0;
  virtual void add(Stream& stream, std::unique_ptr<DriverCommand> command) = 0;  // not of a native capture
  virtual void add(Stream& stream, std::unique_ptr<HostCommand> command) = 0;
  // Raises if the capture has failed or ended; to be called before a call goes on to the driver.
  virtual void check(Stream& stream) = 0;
  // Keeps something, such as pinned memory that a copy reads, as long as the graph.
  virtual void keep(std::shared_ptr<const void> object) = 0;
  virtual RandomDraw draw(const std::shared_ptr<RandomSource>& source, uint64_t increment) = 0;

  virtual CaptureMark mark(Stream& stream) = 0;
  // Makes `stream` wait for the mark: it takes part in the mark's capture from then on.
  virtual void join(Stream& stream, const CaptureMark& mark) = 0;
  virtual bool is_active(uint64_t id) const noexcept = 0;
  // How many commands were added since the process began: tells whether a call was recorded. Not of a native capture.
  virtual uint64_t command_count() const noexcept = 0;

  virtual bool forbids_wait_for(c10::DeviceIndex device) const noexcept = 0;
  // Makes the capture invalid and raises: "<what> cannot be captured in a graph: …".
  [[noreturn]] virtual void refuse(const std::string& what) = 0;
};

// True on the thread that calls host_callback for a driver's capture: what it passes is then called once each launch.
OUTBOARD_API bool is_repeated_host_work() noexcept;
namespace detail {
OUTBOARD_API void set_repeated_host_work(bool is_repeated) noexcept;
}

inline Capture* capture_of(const Stream& stream) noexcept {
  return stream.capture.load(std::memory_order_acquire);
}

// Raises CaptureError if the stream captures, naming what was tried: "aten::nonzero, whose result the caller waits for,".
inline void refuse_in_capture(const Stream& stream, const char* what) {
  if (Capture* capture = capture_of(stream); C10_UNLIKELY(capture != nullptr)) {
    capture->refuse(what);
  }
}

// The driver's handle of a stream, for a caller that queues work with it below the core. CaptureError if the core records
// the stream: that work would run at once and be missing in the graph. A driver that captures records it itself.
OUTBOARD_API uint64_t handle_for_caller(Stream& stream);
// Raises the same for a handle from before the capture, with what the caller does.
OUTBOARD_API void refuse_handle_in_capture(c10::DeviceIndex device, uint64_t handle, const char* what);

// The same for work on an external stream whose handle is that of a stream which captures.
inline void refuse_second_stream(const Stream& stream) {
  if (C10_UNLIKELY(stream.is_external)) {
    refuse_handle_in_capture(stream.device, stream.handle,
                             "work on a second stream with the handle of one that captures");
  }
}

// The captures under way, for what concerns a whole device.
OUTBOARD_API void enter_capture(Capture& capture);
OUTBOARD_API void leave_capture(Capture& capture) noexcept;
// Whether a driver is capturing: it can't be asked to wait for a whole device then.
OUTBOARD_API bool is_capturing_natively();
// Raises CaptureError if a capture forbids waiting for the device.
OUTBOARD_API void refuse_device_wait(c10::DeviceIndex device);

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// The timer with which DistributedDataParallel logs the times of forward, backward and
// communication. Without a timer for the device it warns in its first iteration. The times come
// from events on the current stream.
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <optional>
#include <vector>

#include "core/device.h"
#include "core/driver.h"
#include "core/event.h"
#include "core/stream.h"

namespace outboard {

namespace {

class DeviceTimer final : public c10d::Timer {
 public:
  explicit DeviceTimer(c10::Device device) : device_(device.index()) {
    if (driver().event_elapsed != nullptr) {  // else only the host's times are known
      for (int event = 0; event < kEvents; ++event) {
        events_.emplace_back(OB_EVENT_TIMING);
      }
    }
  }

  void record(Event event) override {
    Timer::record(event);  // the host's time
    if (!events_.empty()) {
      of(event).record(current_stream(device_));
    }
  }

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    if (events_.empty() || !is_timed(start) || !is_timed(end)) {
      return std::nullopt;
    }
    of(end).synchronize();
    of(start).synchronize();
    const double milliseconds = of(start).elapsed_ms(of(end));
    // `end` may be of an earlier iteration, if nothing was communicated in this one.
    return milliseconds < 0 ? std::nullopt : std::optional(static_cast<int64_t>(milliseconds * 1e6));
  }

 private:
  static constexpr int kEvents = static_cast<int>(Event::kBackwardCommEnd) + 1;

  outboard::Event& of(Event event) { return events_[static_cast<size_t>(event)]; }
  bool is_timed(Event event) { return of(event).is_recorded() && !of(event).is_captured(); }

  const c10::DeviceIndex device_;
  std::vector<outboard::Event> events_;
};

}  // namespace

}  // namespace outboard

namespace c10d {

C10_REGISTER_TYPED_CLASS(TimerRegistry, outboard::kDeviceType, outboard::DeviceTimer)

}  // namespace c10d

// SPDX-License-Identifier: BSD-3-Clause
// The streams behind the handles that a driver's records of activity name.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <tuple>

namespace outboard {

// Remembers what it has found. Not thread-safe.
class StreamsOfHandles {
 public:
  // Return the stream with the handle. `of_call` is the stream of the call that queued the work, -1
  // if it is unknown: it is preferred to others with the handle, and returned if no stream has it,
  // as a driver's record may name streams by other numbers.
  c10::StreamId find(c10::DeviceIndex device, uint64_t handle, c10::StreamId of_call);

 private:
  std::map<std::tuple<c10::DeviceIndex, uint64_t, c10::StreamId>, c10::StreamId> known_;
};

}  // namespace outboard

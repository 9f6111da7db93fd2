// SPDX-License-Identifier: BSD-3-Clause
// Finds the streams for the handles in a driver's activity records.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <tuple>

namespace outboard {

// Remembers the streams found. Not thread-safe.
class StreamsOfHandles {
 public:
  // Return the stream with the handle. `of_call` is the stream of the call that queued the work, or
  // -1 if unknown. It is preferred to other streams with the handle, and returned if no stream has
  // the handle, because a driver's records may use other numbers for streams.
  c10::StreamId find(c10::DeviceIndex device, uint64_t handle, c10::StreamId of_call);

 private:
  std::map<std::tuple<c10::DeviceIndex, uint64_t, c10::StreamId>, c10::StreamId> known_;
};

}  // namespace outboard

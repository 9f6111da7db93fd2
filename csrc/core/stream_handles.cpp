// SPDX-License-Identifier: BSD-3-Clause
#include "core/stream_handles.h"

#include <algorithm>

#include "core/stream.h"

namespace outboard {

namespace {

struct Search {
  uint64_t handle;
  c10::StreamId preferred;
  c10::StreamId found = -1;
};

c10::StreamId search(c10::DeviceIndex device, uint64_t handle, c10::StreamId of_call) {
  Search wanted{handle, of_call};
  detail::for_each_created_stream(
      device,
      [](Stream& stream, void* user) {
        auto& search = *static_cast<Search*>(user);
        if (stream.handle == search.handle && (search.found < 0 || stream.id == search.preferred)) {
          search.found = stream.id;
        }
      },
      &wanted);
  return wanted.found >= 0 ? wanted.found : std::max<c10::StreamId>(of_call, 0);
}

}  // namespace

c10::StreamId StreamsOfHandles::find(c10::DeviceIndex device, uint64_t handle, c10::StreamId of_call) {
  const auto [at, is_new] = known_.try_emplace({device, handle, of_call}, 0);
  if (is_new) {
    at->second = search(device, handle, of_call);
  }
  return at->second;
}

}  // namespace outboard

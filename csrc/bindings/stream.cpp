// SPDX-License-Identifier: BSD-3-Clause
// Streams as ids and handles. Users see torch's own torch.Stream.
#include "core/stream.h"

#include <chrono>
#include <memory>
#include <thread>

#include "bindings/method.h"
#include "core/capture.h"
#include "core/device.h"

namespace outboard::bindings {

namespace {

Stream& current(c10::DeviceIndex device) {
  check_device_index(device);
  return current_stream(device);
}

// Keeps the current stream busy, for tests of asynchronous behaviour.
void queue_sleep(c10::DeviceIndex device, int64_t nanoseconds) {
  Stream& stream = current(device);
  ensure_open(device);
  auto length = std::make_unique<std::chrono::nanoseconds>(nanoseconds);
  const auto sleep = [](void* context) {
    const std::unique_ptr<std::chrono::nanoseconds> owned(static_cast<std::chrono::nanoseconds*>(context));
    std::this_thread::sleep_for(*owned);
  };
  const bool is_queued = queue_host_work(stream, sleep, length.get(), "sleep");
  static_cast<void>(length.release());
  finish_call(stream, is_queued);
}

}  // namespace

PyMethodDef stream_methods[] = {
    method<"current_stream", +[](c10::DeviceIndex device) { return current(device).id; }>(
        "Return the id of the thread's current stream on a device."),
    method<"set_stream", +[](c10::DeviceIndex device, int64_t id) { set_current_stream(get_stream(device, id)); }>(
        "Set the thread's current stream: (device, id)."),
    // Generated code passes the handle on and launches through the core, so a capture may continue.
    method<"current_raw_stream", +[](c10::DeviceIndex device) { return stream_handle(current(device)); }>(
        "Return the driver's handle of the current stream."),
    method<"stream_handle",
           +[](c10::DeviceIndex device, int64_t id) { return handle_for_caller(get_stream(device, id)); }>(
        "Return the driver's handle of a stream: (device, id)."),
    method<"external_stream",
           +[](c10::DeviceIndex device, uint64_t handle) {
             refuse_handle_in_capture(device, handle, "a second stream that shares the handle of a capturing stream");
             return external_stream(device, handle).id;
           }>("Return a stream id for a handle that another library owns."),
    method<"queue_sleep", queue_sleep>("Queue a pause on a device's current stream, in nanoseconds."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings

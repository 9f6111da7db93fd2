// SPDX-License-Identifier: BSD-3-Clause
// Streams are in-order command queues. An event's record is a marker in a queue.
#include <cinttypes>

#include "driver.h"

namespace opencl {
namespace {

using support::guarded;
using support::with_device;
using support::with_event;
using support::with_stream;

void store_max(std::atomic<uint64_t>& value, uint64_t floor) {
  uint64_t seen = value.load(std::memory_order_relaxed);
  while (seen < floor && !value.compare_exchange_weak(seen, floor, std::memory_order_acq_rel)) {
  }
}

ob_status stream_create(void* self, int32_t index, int32_t priority, uint64_t* out_stream) {
  return with_device<Driver>(self, index, "stream_create", [&](Driver& driver, Device* device) -> ob_status {
    if (priority != 0)
      return fail(OB_INVALID_ARGUMENT, "device %d: a stream's priority must be 0, not %d", index, priority);
    cl_int code = CL_SUCCESS;
    const cl_properties properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
    auto stream = std::make_unique<Stream>();
    stream->device = index;
    stream->queue =
        driver.api.CreateCommandQueueWithProperties(device->context, device->found.device, properties, &code);
    if (code != CL_SUCCESS) {
      return cl_fail(code, "clCreateCommandQueueWithProperties",
                     where(driver, index) + ": the runtime cannot create more streams; use fewer at a time",
                     FailedStep::kAllocation);
    }
    *out_stream = driver.streams.make(std::move(stream));
    return OB_OK;
  });
}

ob_status stream_destroy(void* self, int32_t index, uint64_t handle) {
  return with_stream<Driver>(self, index, handle, "stream_destroy", [&](Driver& driver, Stream*) -> ob_status {
    std::unique_ptr<Stream> stream;
    if (!driver.streams.take(handle, &stream))
      return fail(OB_INVALID_ARGUMENT, "two threads are destroying the same stream");
    if (stream->tail != nullptr) driver.api.ReleaseEvent(stream->tail);
    // Queued commands complete: releasing flushes, and the runtime keeps
    // the queue until they are done.
    const cl_int code = driver.api.ReleaseCommandQueue(stream->queue);
    return code == CL_SUCCESS ? OB_OK : cl_fail(code, "clReleaseCommandQueue", where(driver, index));
  });
}

ob_status stream_synchronize(void* self, int32_t index, uint64_t handle) {
  return with_stream<Driver>(self, index, handle, "stream_synchronize", [&](auto& driver, auto* stream) -> ob_status {
    const uint64_t queued = stream->queued.load(std::memory_order_acquire);
    if (stream->done.load(std::memory_order_acquire) >= queued) return OB_OK;
    const cl_int code = driver.api.Finish(stream->queue);
    store_max(stream->done, queued);
    return code == CL_SUCCESS ? OB_OK : cl_fail(code, "clFinish", where(driver, index), FailedStep::kWait);
  });
}

// Return OB_OK, OB_NOT_READY, or the command's failure.
ob_status query_marker(Driver& driver, int32_t index, cl_event marker) {
  cl_int state = CL_COMPLETE;
  const cl_int code = driver.api.GetEventInfo(marker, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, nullptr);
  if (code != CL_SUCCESS) return cl_fail(code, "clGetEventInfo", where(driver, index));
  if (state < 0) return cl_fail(state, "queued work", where(driver, index), FailedStep::kWait);
  return state == CL_COMPLETE ? OB_OK : OB_NOT_READY;
}

ob_status stream_query(void* self, int32_t index, uint64_t handle) {
  return with_stream<Driver>(self, index, handle, "stream_query", [&](Driver& driver, Stream* stream) -> ob_status {
    const uint64_t queued = stream->queued.load(std::memory_order_acquire);
    if (stream->done.load(std::memory_order_acquire) >= queued) return OB_OK;
    const std::lock_guard lock(stream->mutex);
    // With a new marker for each query, a polling caller would never see one done.
    if (stream->tail == nullptr || stream->tail_queued < queued) {
      cl_event marker = nullptr;
      cl_int code = driver.api.EnqueueMarkerWithWaitList(stream->queue, 0, nullptr, &marker);
      if (code != CL_SUCCESS) return cl_fail(code, "clEnqueueMarkerWithWaitList", where(driver, index));
      if (stream->tail != nullptr) driver.api.ReleaseEvent(stream->tail);
      stream->tail = marker;
      stream->tail_queued = queued;
      code = driver.api.Flush(stream->queue);
      if (code != CL_SUCCESS) return cl_fail(code, "clFlush", where(driver, index));
    }
    const ob_status status = query_marker(driver, index, stream->tail);
    if (status == OB_NOT_READY) return status;
    store_max(stream->done, stream->tail_queued);
    driver.api.ReleaseEvent(std::exchange(stream->tail, nullptr));
    return status;
  });
}

ob_status event_create(void* self, int32_t index, uint32_t flags, uint64_t* out_event) {
  return with_device<Driver>(self, index, "event_create", [&](Driver& driver, Device* device) -> ob_status {
    auto event = std::make_unique<Event>();
    event->device = index;
    if ((flags & OB_EVENT_HOST) != 0) {
      cl_int code = CL_SUCCESS;
      event->is_host = true;
      event->marker = driver.api.CreateUserEvent(device->context, &code);
      if (code != CL_SUCCESS) return cl_fail(code, "clCreateUserEvent", where(driver, index), FailedStep::kAllocation);
    }
    *out_event = driver.events.make(std::move(event));
    return OB_OK;
  });
}

// Complete a host event. The status is never negative, because that would end the waiting commands.
ob_status signal(Driver& driver, int32_t index, Event& event) {
  {
    const std::lock_guard lock(event.mutex);
    if (std::exchange(event.is_signalled, true)) {
      return fail(OB_FAILED_PRECONDITION, "device %d: the event was already signalled", index);
    }
  }
  const cl_int code = driver.api.SetUserEventStatus(event.marker, CL_COMPLETE);
  return code == CL_SUCCESS ? OB_OK : cl_fail(code, "clSetUserEventStatus", where(driver, index));
}

ob_status event_signal(void* self, int32_t index, uint64_t handle) {
  return with_event<Driver>(self, index, handle, "event_signal", [&](Driver& driver, Event* event) -> ob_status {
    if (event->is_host) return signal(driver, index, *event);
    return fail(OB_INVALID_ARGUMENT, "device %d: event_signal takes events that were created with OB_EVENT_HOST only",
                index);
  });
}

ob_status event_destroy(void* self, int32_t index, uint64_t handle) {
  return with_event<Driver>(self, index, handle, "event_destroy", [&](Driver& driver, Event*) -> ob_status {
    std::unique_ptr<Event> event;
    if (!driver.events.take(handle, &event))
      return fail(OB_INVALID_ARGUMENT, "two threads are destroying the same event");
    ob_status status = OB_OK;
    if (event->is_host && !event->is_signalled) status = signal(driver, index, *event);
    if (event->marker != nullptr) driver.api.ReleaseEvent(event->marker);
    return status;
  });
}

ob_status event_record(void* self, int32_t index, uint64_t stream_handle, uint64_t handle) {
  return with_stream<Driver>(
      self, index, stream_handle, "event_record", [&](Driver& driver, Stream* stream) -> ob_status {
        Event* event = nullptr;
        if (const ob_status status = driver.find_event(index, handle, &event); status != OB_OK) return status;
        if (event->is_host) {
          return fail(OB_INVALID_ARGUMENT, "device %d: an event for event_signal (OB_EVENT_HOST) cannot be recorded",
                      index);
        }
        cl_event marker = nullptr;
        cl_int code = driver.api.EnqueueMarkerWithWaitList(stream->queue, 0, nullptr, &marker);
        if (code != CL_SUCCESS) return cl_fail(code, "clEnqueueMarkerWithWaitList", where(driver, index));
        note_queued(*stream);
        // A waiting queue or a querying host does not make this queue start.
        code = driver.api.Flush(stream->queue);
        {
          const std::lock_guard lock(event->mutex);
          std::swap(event->marker, marker);
        }
        if (marker != nullptr) driver.api.ReleaseEvent(marker);
        return code == CL_SUCCESS ? OB_OK : cl_fail(code, "clFlush", where(driver, index));
      });
}

// Return the marker of the latest record, which the caller releases; null if there was none.
cl_event latest(Driver& driver, Event& event) {
  const std::lock_guard lock(event.mutex);
  if (event.marker != nullptr) driver.api.RetainEvent(event.marker);
  return event.marker;
}

ob_status event_query(void* self, int32_t index, uint64_t handle) {
  return with_event<Driver>(self, index, handle, "event_query", [&](Driver& driver, Event* event) -> ob_status {
    const std::lock_guard lock(event->mutex);
    return event->marker == nullptr ? OB_OK : query_marker(driver, index, event->marker);
  });
}

ob_status event_synchronize(void* self, int32_t index, uint64_t handle) {
  return with_event<Driver>(self, index, handle, "event_synchronize", [&](Driver& driver, Event* event) -> ob_status {
    const cl_event marker = latest(driver, *event);
    if (marker == nullptr) return OB_OK;
    const cl_int code = driver.api.WaitForEvents(1, &marker);
    driver.api.ReleaseEvent(marker);
    return code == CL_SUCCESS ? OB_OK : cl_fail(code, "clWaitForEvents", where(driver, index), FailedStep::kWait);
  });
}

struct Bridge {
  Driver* driver;
  cl_event target;
};

void cross_bridge(cl_event, cl_int status, void* user) {
  const std::unique_ptr<Bridge> bridge(static_cast<Bridge*>(user));
  bridge->driver->api.SetUserEventStatus(bridge->target, status < 0 ? status : CL_COMPLETE);
  bridge->driver->api.ReleaseEvent(bridge->target);
}

// Return an event of this device that ends when `marker` of another context
// does: waits do not cross contexts.
ob_status make_bridge(Driver& driver, Device& device, cl_event marker, cl_event* out_event) {
  cl_int code = CL_SUCCESS;
  cl_event target = driver.api.CreateUserEvent(device.context, &code);
  if (code != CL_SUCCESS) return cl_fail(code, "clCreateUserEvent", where(driver, device.index));
  driver.api.RetainEvent(target);  // one for the caller, one for the callback
  auto bridge = std::make_unique<Bridge>(Bridge{&driver, target});
  code = driver.api.SetEventCallback(marker, CL_COMPLETE, cross_bridge, bridge.get());
  if (code != CL_SUCCESS) {
    driver.api.ReleaseEvent(target);
    driver.api.ReleaseEvent(target);
    return cl_fail(code, "clSetEventCallback", where(driver, device.index));
  }
  static_cast<void>(bridge.release());
  *out_event = target;
  return OB_OK;
}

ob_status stream_wait_event(void* self, int32_t index, uint64_t stream_handle, int32_t event_device, uint64_t handle) {
  return with_stream<Driver>(
      self, index, stream_handle, "stream_wait_event", [&](Driver& driver, Stream* stream) -> ob_status {
        Event* event = nullptr;
        if (const ob_status status = driver.find_event(event_device, handle, &event); status != OB_OK) return status;
        cl_event marker = latest(driver, *event);
        if (marker == nullptr) return OB_OK;
        if (event_device != index) {
          Device* device = nullptr;
          cl_event bridge = nullptr;
          ob_status status = driver.find_open(index, &device);
          if (status == OB_OK) status = make_bridge(driver, *device, marker, &bridge);
          driver.api.ReleaseEvent(marker);
          if (status != OB_OK) return status;
          marker = bridge;
        }
        const cl_int code = driver.api.EnqueueBarrierWithWaitList(stream->queue, 1, &marker, nullptr);
        driver.api.ReleaseEvent(marker);
        if (code != CL_SUCCESS) return cl_fail(code, "clEnqueueBarrierWithWaitList", where(driver, index));
        note_queued(*stream);
        return OB_OK;
      });
}

// Return when the latest record was reached, on the device's clock.
ob_status reached(Driver& driver, int32_t index, uint64_t handle, cl_ulong* out_time) {
  Event* event = nullptr;
  if (const ob_status status = driver.find_event(index, handle, &event); status != OB_OK) return status;
  const cl_event marker = latest(driver, *event);
  if (marker == nullptr) return fail(OB_FAILED_PRECONDITION, "device %d: the event was never recorded", index);
  const cl_int code =
      driver.api.GetEventProfilingInfo(marker, CL_PROFILING_COMMAND_END, sizeof *out_time, out_time, nullptr);
  driver.api.ReleaseEvent(marker);
  return code == CL_SUCCESS ? OB_OK : cl_fail(code, "clGetEventProfilingInfo", where(driver, index));
}

ob_status event_elapsed(void* self, int32_t index, uint64_t start, uint64_t end, double* out_milliseconds) {
  return guarded("event_elapsed", [&]() -> ob_status {
    cl_ulong from = 0;
    cl_ulong to = 0;
    Driver& driver = *static_cast<Driver*>(self);
    if (const ob_status status = reached(driver, index, start, &from); status != OB_OK) return status;
    if (const ob_status status = reached(driver, index, end, &to); status != OB_OK) return status;
    *out_milliseconds = static_cast<double>(static_cast<int64_t>(to - from)) * 1e-6;
    return OB_OK;
  });
}

ob_status event_timestamp(void* self, int32_t index, uint64_t handle, int64_t* out_nanoseconds) {
  return with_device<Driver>(self, index, "event_timestamp", [&](Driver& driver, Device* device) -> ob_status {
    cl_ulong time = 0;
    if (const ob_status status = reached(driver, index, handle, &time); status != OB_OK) return status;
    if (const ob_status status = update_clock_offset(driver, *device); status != OB_OK) return status;
    *out_nanoseconds = static_cast<int64_t>(time) + device->clock_offset.load();
    return OB_OK;
  });
}

struct HostCall {
  ob_host_fn fn;
  void* user;
};

ob_status host_callback(void* self, int32_t index, uint64_t handle, ob_host_fn fn, void* user) {
  return with_stream<Driver>(self, index, handle, "host_callback", [&](Driver& driver, Stream* stream) -> ob_status {
    Device* device = nullptr;
    if (const ob_status status = driver.find_open(index, &device); status != OB_OK) return status;
    if (!device->has_native_kernels) {
      return fail(OB_UNIMPLEMENTED, "%s has no native kernels, which host_callback needs",
                  where(driver, index).c_str());
    }
    HostCall call = {fn, user};  // the runtime copies it
    const cl_int code = driver.api.EnqueueNativeKernel(
        stream->queue,
        [](void* context) {
          const HostCall& queued = *static_cast<HostCall*>(context);
          queued.fn(queued.user);
        },
        &call, sizeof call, 0, nullptr, nullptr, 0, nullptr, nullptr);
    if (code != CL_SUCCESS) return cl_fail(code, "clEnqueueNativeKernel", where(driver, index));
    note_queued(*stream);
    return OB_OK;
  });
}

}  // namespace

void fill_stream_entries(ob_driver* table) {
  table->stream_create = stream_create;
  table->stream_destroy = stream_destroy;
  table->stream_synchronize = stream_synchronize;
  table->stream_query = stream_query;
  table->event_create = event_create;
  table->event_destroy = event_destroy;
  table->event_record = event_record;
  table->event_query = event_query;
  table->event_synchronize = event_synchronize;
  table->event_elapsed = event_elapsed;
  table->event_timestamp = event_timestamp;
  table->event_signal = event_signal;
  table->stream_wait_event = stream_wait_event;
  table->host_callback = host_callback;
}

}  // namespace opencl

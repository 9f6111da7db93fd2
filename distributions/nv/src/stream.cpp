// SPDX-License-Identifier: BSD-3-Clause
// Streams, events, host work, graphs.
#include <time.h>

#include <algorithm>

#include "driver.h"

namespace nv {
namespace {

// The age at which a new anchor is taken, because CUDA returns the time between two events as a
// float of milliseconds.
constexpr int64_t kAnchorAge = 2'000'000'000;

ob_status stream_create(void* self, int32_t index, int32_t priority, uint64_t* out_stream) {
  return on_device(self, index, "stream_create", [&](Driver& driver, Device& device) -> ob_status {
    CUstream stream = nullptr;
    // Non-blocking: CUDA's legacy default stream, which others use, must not wait
    // for it, nor it for that stream.
    const CUresult code =
        driver.api.StreamCreateWithPriority(&stream, kStreamNonBlocking, std::max(priority, device.greatest_priority));
    if (code != CUDA_SUCCESS) return cuda_fail(driver.api, code, "cuStreamCreateWithPriority", device.where);
    *out_stream = reinterpret_cast<uint64_t>(stream);
    driver.streams.add(*out_stream, index);
    return OB_OK;
  });
}

ob_status stream_destroy(void* self, int32_t index, uint64_t stream) {
  return on_device(self, index, "stream_destroy", [&](Driver& driver, Device& device) -> ob_status {
    if (!driver.streams.remove(stream, index)) {
      return fail(OB_INVALID_ARGUMENT, "device %d has no stream 0x%" PRIx64 " that this driver created", index, stream);
    }
    return check(driver, device, driver.api.StreamDestroy(to_stream(stream)), "cuStreamDestroy");
  });
}

ob_status stream_synchronize(void* self, int32_t index, uint64_t stream) {
  return on_device(self, index, "stream_synchronize", [&](Driver& driver, Device& device) -> ob_status {
    if (const ob_status status = driver.check_stream(index, stream); status != OB_OK) return status;
    return check(driver, device, driver.api.StreamSynchronize(to_stream(stream)), "cuStreamSynchronize");
  });
}

ob_status stream_query(void* self, int32_t index, uint64_t stream) {
  return on_device(self, index, "stream_query", [&](Driver& driver, Device& device) -> ob_status {
    if (const ob_status status = driver.check_stream(index, stream); status != OB_OK) return status;
    return check_query(driver, device, driver.api.StreamQuery(to_stream(stream)), "cuStreamQuery");
  });
}

ob_status event_create(void* self, int32_t index, uint32_t flags, uint64_t* out_event) {
  return on_device(self, index, "event_create", [&](Driver& driver, Device& device) -> ob_status {
    unsigned cuda_flags = (flags & OB_EVENT_TIMING) != 0 ? 0u : unsigned{kEventDisableTiming};
    if ((flags & OB_EVENT_BLOCKING) != 0) cuda_flags |= kEventBlockingSync;
    if ((flags & OB_EVENT_INTERPROCESS) != 0) cuda_flags |= kEventInterprocess;
    CUevent event = nullptr;
    const CUresult code = driver.api.EventCreate(&event, cuda_flags);
    if (code != CUDA_SUCCESS) return cuda_fail(driver.api, code, "cuEventCreate", device.where);
    *out_event = driver.events.make(Event{index, event});
    return OB_OK;
  });
}

ob_status event_destroy(void* self, int32_t index, uint64_t handle) {
  return on_device(self, index, "event_destroy", [&](Driver& driver, Device& device) -> ob_status {
    CUevent found = nullptr;
    if (const ob_status status = driver.find_event(index, handle, &found); status != OB_OK) return status;
    Event event;
    if (!driver.events.take(handle, &event))
      return fail(OB_INVALID_ARGUMENT, "two threads are destroying the same event");
    return check(driver, device, driver.api.EventDestroy(event.event), "cuEventDestroy");
  });
}

ob_status event_record(void* self, int32_t index, uint64_t stream, uint64_t handle) {
  return on_device(self, index, "event_record", [&](Driver& driver, Device& device) -> ob_status {
    CUevent event = nullptr;
    if (const ob_status status = driver.check_stream(index, stream); status != OB_OK) return status;
    if (const ob_status status = driver.find_event(index, handle, &event); status != OB_OK) return status;
    return check(driver, device, driver.api.EventRecord(event, to_stream(stream)), "cuEventRecord");
  });
}

ob_status event_query(void* self, int32_t index, uint64_t handle) {
  return on_device(self, index, "event_query", [&](Driver& driver, Device& device) -> ob_status {
    CUevent event = nullptr;
    if (const ob_status status = driver.find_event(index, handle, &event); status != OB_OK) return status;
    return check_query(driver, device, driver.api.EventQuery(event), "cuEventQuery");
  });
}

ob_status event_synchronize(void* self, int32_t index, uint64_t handle) {
  return on_device(self, index, "event_synchronize", [&](Driver& driver, Device& device) -> ob_status {
    CUevent event = nullptr;
    if (const ob_status status = driver.find_event(index, handle, &event); status != OB_OK) return status;
    return check(driver, device, driver.api.EventSynchronize(event), "cuEventSynchronize");
  });
}

ob_status event_elapsed(void* self, int32_t index, uint64_t start, uint64_t end, double* out_milliseconds) {
  return on_device(self, index, "event_elapsed", [&](Driver& driver, Device& device) -> ob_status {
    CUevent from = nullptr;
    CUevent to = nullptr;
    float milliseconds = 0;
    if (const ob_status status = driver.find_event(index, start, &from); status != OB_OK) return status;
    if (const ob_status status = driver.find_event(index, end, &to); status != OB_OK) return status;
    const CUresult code = driver.api.EventElapsedTime(&milliseconds, from, to);
    *out_milliseconds = milliseconds;
    return check_query(driver, device, code, "cuEventElapsedTime");
  });
}

int64_t monotonic_ns() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

// Measure one moment on both clocks: an event on an idle stream is reached shortly before its wait
// ends.
CUresult drop_anchor(const Api& api, Device& device) {
  for (int i = 0; i < 3; ++i) {
    CUresult code = api.EventRecord(device.anchor, device.anchor_stream);
    if (code == CUDA_SUCCESS) code = api.EventSynchronize(device.anchor);
    if (code != CUDA_SUCCESS) return code;
  }
  device.anchor_ns = monotonic_ns();
  return CUDA_SUCCESS;
}

ob_status event_timestamp(void* self, int32_t index, uint64_t handle, int64_t* out_nanoseconds) {
  return on_device(self, index, "event_timestamp", [&](Driver& driver, Device& device) -> ob_status {
    CUevent event = nullptr;
    if (const ob_status status = driver.find_event(index, handle, &event); status != OB_OK) return status;
    const std::lock_guard lock(device.anchor_mutex);
    CUresult code = CUDA_SUCCESS;
    if (monotonic_ns() - device.anchor_ns > kAnchorAge) code = drop_anchor(driver.api, device);
    if (code != CUDA_SUCCESS) return cuda_fail(driver.api, code, "cuEventRecord", device.where);
    float milliseconds = 0;
    code = driver.api.EventElapsedTime(&milliseconds, device.anchor, event);
    *out_nanoseconds = device.anchor_ns + static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
    return check_query(driver, device, code, "cuEventElapsedTime");
  });
}

ob_status stream_wait_event(void* self, int32_t index, uint64_t stream, int32_t event_device, uint64_t handle) {
  return on_device(self, index, "stream_wait_event", [&](Driver& driver, Device& device) -> ob_status {
    CUevent event = nullptr;
    if (const ob_status status = driver.check_stream(index, stream); status != OB_OK) return status;
    if (const ob_status status = driver.find_event(event_device, handle, &event); status != OB_OK) return status;
    return check(driver, device, driver.api.StreamWaitEvent(to_stream(stream), event, 0), "cuStreamWaitEvent");
  });
}

struct HostCall {
  ob_host_fn fn;
  void* user;
};

void run_host_call(CUstream, CUresult, void* user) {
  const std::unique_ptr<HostCall> call(static_cast<HostCall*>(user));
  call->fn(call->user);
}

ob_status host_callback(void* self, int32_t index, uint64_t stream, ob_host_fn fn, void* user) {
  return on_device(self, index, "host_callback", [&](Driver& driver, Device& device) -> ob_status {
    if (const ob_status status = driver.check_stream(index, stream); status != OB_OK) return status;
    bool is_captured = false;
    if (const ob_status status = is_capturing(driver, device, to_stream(stream), &is_captured); status != OB_OK) {
      return status;
    }
    if (is_captured) {
      return check(driver, device, driver.api.LaunchHostFunc(to_stream(stream), fn, user), "cuLaunchHostFunc");
    }
    // cuLaunchHostFunc would not call `fn` on a stream with a failure, but a caller may wait for
    // `fn`.
    auto call = std::make_unique<HostCall>(HostCall{fn, user});
    const CUresult code = driver.api.StreamAddCallback(to_stream(stream), run_host_call, call.get(), 0);
    if (code != CUDA_SUCCESS) return cuda_fail(driver.api, code, "cuStreamAddCallback", device.where);
    static_cast<void>(call.release());
    return OB_OK;
  });
}

// Relaxed: the same thread may allocate, open modules and use other
// streams while this stream captures.
ob_status graph_capture_begin(void* self, int32_t index, uint64_t stream) {
  return on_device(self, index, "graph_capture_begin", [&](Driver& driver, Device& device) -> ob_status {
    if (const ob_status status = driver.check_stream(index, stream); status != OB_OK) return status;
    const CUresult code = driver.api.StreamBeginCapture(to_stream(stream), kCaptureRelaxed);
    if (code == CUDA_SUCCESS) driver.captures.fetch_add(1);
    return check(driver, device, code, "cuStreamBeginCapture");
  });
}

ob_status graph_capture_end(void* self, int32_t index, uint64_t stream, uint64_t* out_graph) {
  return on_device(self, index, "graph_capture_end", [&](Driver& driver, Device& device) -> ob_status {
    if (const ob_status status = driver.check_stream(index, stream); status != OB_OK) return status;
    CUgraph graph = nullptr;
    int was_capturing = 0;
    static_cast<void>(driver.api.StreamIsCapturing(to_stream(stream), &was_capturing));
    const CUresult code = driver.api.StreamEndCapture(to_stream(stream), &graph);
    if (was_capturing != 0) driver.captures.fetch_sub(1);  // a capture that failed has ended too
    if (code != CUDA_SUCCESS) return cuda_fail(driver.api, code, "cuStreamEndCapture", device.where);
    *out_graph = driver.graphs.make(Graph{index, graph});
    return OB_OK;
  });
}

ob_status find_graph(Driver& driver, int32_t index, uint64_t handle, CUgraph* out_graph) {
  const Graph* graph = driver.graphs.find(handle);
  if (graph == nullptr || graph->device != index) {
    return fail(OB_INVALID_ARGUMENT, "device %d has no graph 0x%" PRIx64, index, handle);
  }
  *out_graph = graph->graph;
  return OB_OK;
}

ob_status find_executable(Driver& driver, int32_t index, uint64_t handle, CUgraphExec* out_executable) {
  const Executable* executable = driver.executables.find(handle);
  if (executable == nullptr || executable->device != index) [[unlikely]] {
    return fail(OB_INVALID_ARGUMENT, "device %d has no executable graph 0x%" PRIx64, index, handle);
  }
  *out_executable = executable->executable;
  return OB_OK;
}

ob_status graph_instantiate(void* self, int32_t index, uint64_t handle, uint64_t* out_executable) {
  return on_device(self, index, "graph_instantiate", [&](Driver& driver, Device& device) -> ob_status {
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    if (const ob_status status = find_graph(driver, index, handle, &graph); status != OB_OK) return status;
    const CUresult code = driver.api.GraphInstantiateWithFlags(&executable, graph, 0);
    if (code != CUDA_SUCCESS) return cuda_fail(driver.api, code, "cuGraphInstantiate", device.where);
    *out_executable = driver.executables.make(Executable{index, executable});
    return OB_OK;
  });
}

ob_status graph_launch(void* self, int32_t index, uint64_t stream, uint64_t handle) {
  return on_device(self, index, "graph_launch", [&](Driver& driver, Device& device) -> ob_status {
    CUgraphExec executable = nullptr;
    if (const ob_status status = driver.check_stream(index, stream); status != OB_OK) return status;
    if (const ob_status status = find_executable(driver, index, handle, &executable); status != OB_OK) return status;
    return check(driver, device, driver.api.GraphLaunch(executable, to_stream(stream)), "cuGraphLaunch");
  });
}

ob_status graph_destroy(void* self, int32_t index, uint64_t handle) {
  return on_device(self, index, "graph_destroy", [&](Driver& driver, Device& device) -> ob_status {
    CUgraph found = nullptr;
    if (const ob_status status = find_graph(driver, index, handle, &found); status != OB_OK) return status;
    Graph graph;
    if (!driver.graphs.take(handle, &graph))
      return fail(OB_INVALID_ARGUMENT, "two threads are destroying the same graph");
    return check(driver, device, driver.api.GraphDestroy(graph.graph), "cuGraphDestroy");
  });
}

ob_status graph_executable_destroy(void* self, int32_t index, uint64_t handle) {
  return on_device(self, index, "graph_executable_destroy", [&](Driver& driver, Device& device) -> ob_status {
    CUgraphExec found = nullptr;
    if (const ob_status status = find_executable(driver, index, handle, &found); status != OB_OK) return status;
    Executable executable;
    if (!driver.executables.take(handle, &executable)) {
      return fail(OB_INVALID_ARGUMENT, "two threads are destroying the same executable graph");
    }
    return check(driver, device, driver.api.GraphExecDestroy(executable.executable), "cuGraphExecDestroy");
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
  table->stream_wait_event = stream_wait_event;
  table->host_callback = host_callback;
}

void fill_graph_entries(ob_driver* table) {
  table->graph_capture_begin = graph_capture_begin;
  table->graph_capture_end = graph_capture_end;
  table->graph_instantiate = graph_instantiate;
  table->graph_launch = graph_launch;
  table->graph_destroy = graph_destroy;
  table->graph_executable_destroy = graph_executable_destroy;
}

}  // namespace nv

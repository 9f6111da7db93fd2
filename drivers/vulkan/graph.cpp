// SPDX-License-Identifier: BSD-3-Clause
// Graphs: what streams capture is recorded in secondary command buffers, which launches execute.
#include <algorithm>
#include <cinttypes>
#include <utility>

#include "driver.h"

namespace vulkan {
namespace {

using support::guarded;
using support::with_stream;

template <class Handles>
ob_status find_graph(const Handles& handles, int32_t index, uint64_t handle, std::shared_ptr<Graph>* out_graph) {
  const std::shared_ptr<Graph>* found = handles.find(handle);
  if (found == nullptr || (*found)->device.index != index) {
    return fail(OB_INVALID_ARGUMENT, "device %d has no graph 0x%" PRIx64, index, handle);
  }
  *out_graph = *found;
  return OB_OK;
}

// Copies and events between devices pass through the host, which nothing records yet: the core
// captures, which it can once several devices are open.
bool has_several_devices(const Driver& driver) {
  return std::count_if(std::begin(driver.devices), std::end(driver.devices),
                       [](const std::atomic<Device*>& slot) { return slot.load() != nullptr; }) > 1;
}

ob_status graph_capture_begin(void* self, int32_t index, uint64_t handle) {
  return with_stream<Driver>(
      self, index, handle, "graph_capture_begin", [&](Driver& driver, Stream* stream) -> ob_status {
        if (has_several_devices(driver)) {
          return fail(OB_UNIMPLEMENTED, "device %d: a graph can be captured only while no other device is open", index);
        }
        Device& device = *stream->device;
        auto graph = std::make_shared<Graph>(device, *stream);
        const VkCommandPoolCreateInfo pool = {VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, nullptr, 0,
                                              device.found.family};
        const VkResult code = device.api.CreateCommandPool(device.device, &pool, nullptr, &graph->pool);
        if (code != VK_SUCCESS) return vk_fail(code, "vkCreateCommandPool", where(device));
        {
          const std::lock_guard lock(stream->mutex);
          if (stream->graph != nullptr) return refuse_in_capture(*stream);
          close(*stream);
          graph->streams.push_back(stream);
          stream->graph = std::move(graph);
        }
        wake_submitter(device);
        return OB_OK;
      });
}

ob_status graph_capture_end(void* self, int32_t index, uint64_t handle, uint64_t* out_graph) {
  return with_stream<Driver>(
      self, index, handle, "graph_capture_end", [&](Driver& driver, Stream* stream) -> ob_status {
        std::shared_ptr<Graph> graph;
        std::vector<Stream*> streams;
        {
          const StreamLock lock(*stream);
          graph = stream->graph;
          if (graph == nullptr || &graph->origin != stream || graph->is_ended) {
            return fail(OB_FAILED_PRECONDITION, "device %d: no capture began on this stream", index);
          }
          if (graph->open != nullptr) end_step(*graph);
          graph->is_ended = true;
          streams = std::move(graph->streams);
        }
        for (Stream* captured : streams) {
          const std::lock_guard lock(captured->mutex);
          captured->graph = nullptr;
        }
        if (graph->failure != OB_OK) return fail(graph->failure, "%s", graph->failure_text.c_str());
        *out_graph = driver.graphs.make(std::move(graph));
        return OB_OK;
      });
}

// What was captured can be executed as it is.
ob_status graph_instantiate(void* self, int32_t index, uint64_t handle, uint64_t* out_executable) {
  return guarded("graph_instantiate", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    std::shared_ptr<Graph> graph;
    if (const ob_status status = find_graph(driver.graphs, index, handle, &graph); status != OB_OK) return status;
    *out_executable = driver.executables.make(std::move(graph));
    return OB_OK;
  });
}

ob_status queue_step(Stream& stream, const std::shared_ptr<Graph>& graph, const Batch& step) {
  for (const HostCall& call : step.calls) {
    if (const ob_status status = add_call(stream, call.fn, call.user); status != OB_OK) return status;
  }
  if (step.commands == nullptr) return OB_OK;
  const DeviceTiming timed(stream, {OB_ACTIVITY_KERNEL, 0, stream.index, stream.index, "graph"});
  Batch* batch = nullptr;
  if (const ob_status status = open_batch(stream, &batch); status != OB_OK) return status;
  stream.device->api.CmdExecuteCommands(batch->commands, 1, &step.commands);
  batch->bound = nullptr;  // secondary commands leave nothing defined
  if (batch->graphs.empty() || batch->graphs.back() != graph) batch->graphs.push_back(graph);
  end_command(stream, *batch);
  return OB_OK;
}

ob_status graph_launch(void* self, int32_t index, uint64_t stream_handle, uint64_t handle) {
  return with_stream<Driver>(
      self, index, stream_handle, "graph_launch", [&](Driver& driver, Stream* stream) -> ob_status {
        std::shared_ptr<Graph> graph;
        if (const ob_status status = find_graph(driver.executables, index, handle, &graph); status != OB_OK)
          return status;
        {
          const std::lock_guard lock(stream->mutex);
          if (stream->graph != nullptr) {
            return fail(OB_UNIMPLEMENTED, "device %d: a graph cannot be launched while the stream captures another",
                        index);
          }
          for (const std::unique_ptr<Batch>& step : graph->steps) {
            if (const ob_status status = queue_step(*stream, graph, *step); status != OB_OK) return status;
          }
        }
        notify(*stream);
        return OB_OK;
      });
}

template <class Handles>
ob_status destroy_graph(Handles& handles, int32_t index, uint64_t handle) {
  std::shared_ptr<Graph> graph;
  if (const ob_status status = find_graph(handles, index, handle, &graph); status != OB_OK) return status;
  std::shared_ptr<Graph> owned;
  return handles.take(handle, &owned) ? OB_OK : fail(OB_INVALID_ARGUMENT, "two threads are destroying the same graph");
}

ob_status graph_destroy(void* self, int32_t index, uint64_t handle) {
  return guarded("graph_destroy", [&] { return destroy_graph(static_cast<Driver*>(self)->graphs, index, handle); });
}

ob_status graph_executable_destroy(void* self, int32_t index, uint64_t handle) {
  return guarded("graph_executable_destroy",
                 [&] { return destroy_graph(static_cast<Driver*>(self)->executables, index, handle); });
}

}  // namespace

Graph::~Graph() {
  for (const std::unique_ptr<Batch>& step : steps) {
    for (const std::unique_ptr<Chunk>& chunk : step->chunks) free_buffer(device, chunk->buffer);
  }
  if (pool != nullptr) device.api.DestroyCommandPool(device.device, pool, nullptr);  // with its command buffers
}

ob_status refuse_in_capture(const Stream& stream) {
  return fail(
      OB_FAILED_PRECONDITION,
      "%s: the stream is capturing a graph. Until the capture ends, the stream cannot be synchronized, queried or "
      "destroyed, join another capture, or copy to or from another device or host memory that is not pinned",
      where(*stream.device).c_str());
}

void end_step(Graph& graph) {
  if (graph.open->commands != nullptr) {
    const VkResult code = graph.device.api.EndCommandBuffer(graph.open->commands);
    if (code != VK_SUCCESS && graph.failure == OB_OK) {
      graph.failure = vk_fail(code, "vkEndCommandBuffer", where(graph.device));
      graph.failure_text = support::last_error_text;
    }
  }
  graph.steps.push_back(std::move(graph.open));
}

ob_status join(Stream& stream, const Record& record) {
  const std::shared_ptr<Graph> graph = record.capture.lock();
  if (graph != nullptr && &graph->device != stream.device) {
    return fail(OB_UNIMPLEMENTED, "%s: a graph can contain work of one device only", where(*stream.device).c_str());
  }
  {
    const std::lock_guard lock(stream.mutex);
    if (graph != nullptr && stream.graph == graph) return OB_OK;
    if (stream.graph != nullptr) return refuse_in_capture(stream);
    std::unique_lock<std::mutex> of_graph;
    if (graph != nullptr) of_graph = std::unique_lock(graph->mutex);
    if (graph == nullptr || graph->is_ended) {
      return fail(
          OB_FAILED_PRECONDITION,
          "%s: the event's latest record was captured in a graph whose capture has ended; record the event again",
          where(*stream.device).c_str());
    }
    close(stream);
    stream.graph = graph;
    graph->streams.push_back(&stream);
  }
  wake_submitter(*stream.device);
  return OB_OK;
}

void fill_graph_entries(ob_driver* table) {
  table->graph_capture_begin = graph_capture_begin;
  table->graph_capture_end = graph_capture_end;
  table->graph_instantiate = graph_instantiate;
  table->graph_launch = graph_launch;
  table->graph_destroy = graph_destroy;
  table->graph_executable_destroy = graph_executable_destroy;
}

}  // namespace vulkan

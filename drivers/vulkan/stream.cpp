// SPDX-License-Identifier: BSD-3-Clause
// Streams, and the batches in which calls record commands.
#include <algorithm>
#include <utility>

#include "driver.h"

namespace vulkan {
namespace {

using support::guarded;
using support::with_device;
using support::with_stream;

constexpr uint64_t kChunkBytes = 64 << 10;
constexpr size_t kFreeChunks = 64;

// What the commands of a batch do: dispatches, copies and fills. A barrier of all stages takes an
// H200 4 µs longer.
constexpr VkFlags64 kStages = VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT;
constexpr VkFlags64 kWrites = VK_ACCESS_2_SHADER_WRITE_BIT | VK_ACCESS_2_TRANSFER_WRITE_BIT;
constexpr VkFlags64 kReads = VK_ACCESS_2_SHADER_READ_BIT | VK_ACCESS_2_TRANSFER_READ_BIT;

void barrier(const DeviceApi& api, VkCommandBuffer commands, VkFlags64 stages, VkFlags64 access) {
  const VkMemoryBarrier2 memory = {VK_STRUCTURE_TYPE_MEMORY_BARRIER_2, nullptr, kStages, kWrites, stages, access};
  VkDependencyInfo info = {};
  info.sType = VK_STRUCTURE_TYPE_DEPENDENCY_INFO;
  info.memoryBarrierCount = 1;
  info.pMemoryBarriers = &memory;
  api.CmdPipelineBarrier2(commands, &info);
}

// Recycle the batches that the device has finished. Call it with the stream's mutex held. A lost
// device's batches are kept: it may still be at work on their commands, which must not be recorded
// anew before it is done.
void recycle(Stream& stream) {
  if (stream.device->is_lost.load()) return;
  while (!stream.in_flight.empty() && has_reached({stream.timeline, stream.in_flight.front()->value})) {
    const std::unique_ptr<Batch> batch = std::move(stream.in_flight.front());
    stream.in_flight.pop_front();
    if (batch->commands != nullptr) stream.free_commands.push_back(batch->commands);
    for (std::unique_ptr<Chunk>& chunk : batch->chunks) {
      chunk->used = 0;
      if (stream.free_chunks.size() < kFreeChunks) {
        stream.free_chunks.push_back(std::move(chunk));
      } else {
        free_buffer(*stream.device, chunk->buffer);
      }
    }
  }
}

// Return the open batch, which may have no commands yet.
Batch& waiting_batch(Stream& stream) {
  if (stream.open == nullptr) {
    recycle(stream);
    stream.open = std::make_unique<Batch>();
    stream.open->stream = &stream;
  }
  return *stream.open;
}

// Return the batch that takes commands, or calls of the host: a new one if the open one has the
// others.
ob_status find_batch(Stream& stream, bool is_for_calls, Batch** out_batch) {
  const auto has_others = [&](const std::unique_ptr<Batch>& batch) {
    return batch != nullptr && (is_for_calls ? batch->commands != nullptr : !batch->calls.empty());
  };
  if (stream.graph == nullptr) {
    if (has_others(stream.open)) close(stream);
    *out_batch = &waiting_batch(stream);
    return OB_OK;
  }
  Graph& graph = *stream.graph;
  if (graph.is_ended) return fail(OB_FAILED_PRECONDITION, "device %d: the stream's capture is ending", stream.index);
  if (has_others(graph.open)) end_step(graph);
  if (graph.open == nullptr) graph.open = std::make_unique<Batch>();
  *out_batch = graph.open.get();
  return OB_OK;
}

// Return an abandoned stream that is idle, to be used again, or null. Streams are not destroyed
// before their device: queues of Mesa 22.3 touch a semaphore for a moment after its counter has
// told that the work is done.
std::unique_ptr<Stream> take_idle(Device& device) {
  std::unique_ptr<Stream> found;
  {
    const std::lock_guard lock(device.list_mutex);
    const std::vector<Stream*>& closing_streams = device.closing_streams;
    const auto at = std::find_if(device.retired.begin(), device.retired.end(), [&](const auto& stream) {
      const bool is_used = stream->is_dirty.load() || std::find(closing_streams.begin(), closing_streams.end(),
                                                                stream.get()) != closing_streams.end();
      return !is_used && has_reached({stream->timeline, stream->closed});
    });
    if (at == device.retired.end()) return nullptr;
    found = std::move(*at);
    device.retired.erase(at);
  }
  const std::lock_guard lock(found->mutex);
  recycle(*found);
  found->failure = OB_OK;
  return found;
}

ob_status stream_create(void* self, int32_t index, int32_t priority, uint64_t* out_stream) {
  return with_device<Driver>(self, index, "stream_create", [&](Driver& driver, Device* device) -> ob_status {
    if (priority != 0)
      return fail(OB_INVALID_ARGUMENT, "device %d: a stream's priority must be 0, not %d", index, priority);
    std::unique_ptr<Stream> stream = take_idle(*device);
    const ob_status status = stream == nullptr ? make_stream(*device, &stream) : OB_OK;
    if (status != OB_OK) return status;
    Stream* made = stream.get();
    *out_stream = made->handle = driver.streams.make(std::move(stream));
    return OB_OK;
  });
}

ob_status stream_destroy(void* self, int32_t index, uint64_t handle) {
  return guarded("stream_destroy", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    Stream* found = nullptr;
    if (const ob_status status = driver.find_stream(index, handle, &found); status != OB_OK) return status;
    {
      const std::lock_guard lock(found->mutex);
      if (found->graph != nullptr) return refuse_in_capture(*found);
    }
    std::unique_ptr<Stream> stream;
    if (!driver.streams.take(handle, &stream))
      return fail(OB_INVALID_ARGUMENT, "two threads are destroying the same stream");
    {
      const std::lock_guard lock(stream->mutex);
      close(*stream);
    }
    Device& device = *stream->device;
    {
      const std::lock_guard lock(device.list_mutex);
      device.retired.push_back(std::move(stream));
    }
    wake_submitter(device);
    return OB_OK;
  });
}

ob_status stream_synchronize(void* self, int32_t index, uint64_t handle) {
  return with_stream<Driver>(self, index, handle, "stream_synchronize",
                             [&](Driver& driver, Stream* stream) -> ob_status { return drain(*stream); });
}

ob_status stream_query(void* self, int32_t index, uint64_t handle) {
  return with_stream<Driver>(self, index, handle, "stream_query", [&](Driver& driver, Stream* stream) -> ob_status {
    uint64_t value = 0;
    {
      const std::lock_guard lock(stream->mutex);
      if (stream->graph != nullptr) return refuse_in_capture(*stream);
      value = close(*stream);
    }
    if (stream->device->is_lost.load()) return fail(OB_DEVICE_LOST, "%s is lost", where(*stream->device).c_str());
    if (has_reached({stream->timeline, value})) return OB_OK;
    wake_submitter(*stream->device);
    return OB_NOT_READY;
  });
}

ob_status host_callback(void* self, int32_t index, uint64_t handle, ob_host_fn fn, void* user) {
  return with_stream<Driver>(self, index, handle, "host_callback", [&](Driver& driver, Stream* stream) -> ob_status {
    ob_status status = OB_OK;
    {
      const StreamLock lock(*stream);
      status = add_call(*stream, fn, user);
    }
    if (status == OB_OK) notify(*stream);
    return status;
  });
}

ob_status stream_wait_event(void* self, int32_t index, uint64_t stream_handle, int32_t event_device, uint64_t handle) {
  return guarded("stream_wait_event", [&]() -> ob_status {
    Driver& driver = *static_cast<Driver*>(self);
    Stream* stream = nullptr;
    Event* event = nullptr;
    if (const ob_status status = driver.find_stream(index, stream_handle, &stream); status != OB_OK) return status;
    if (const ob_status status = driver.find_event(event_device, handle, &event); status != OB_OK) return status;
    std::shared_ptr<Record> record;
    {
      const std::lock_guard lock(event->mutex);
      record = event->record;
    }
    if (record == nullptr) return OB_OK;
    if (record->is_captured) return join(*stream, *record);
    {
      const std::lock_guard lock(stream->mutex);
      if (stream->graph != nullptr) {
        return fail(event->is_host ? OB_UNIMPLEMENTED : OB_FAILED_PRECONDITION,
                    "device %d: a capturing stream can wait only for events of its capture", index);
      }
      if (record->point.timeline == stream->timeline) return OB_OK;
      // A wait applies to a whole batch.
      if (stream->open != nullptr && stream->open->count > 0) close(*stream);
      waiting_batch(*stream).waits.push_back(record->point);
    }
    notify(*stream);
    return OB_OK;
  });
}

}  // namespace

Timeline::~Timeline() {
  if (semaphore != nullptr) device.api.DestroySemaphore(device.device, semaphore, nullptr);
}

ob_status make_stream(Device& device, std::unique_ptr<Stream>* out_stream) {
  auto stream = std::make_unique<Stream>();
  stream->index = device.index;
  stream->device = &device;
  stream->queue = device.queues[device.next_queue.fetch_add(1) % device.queues.size()];
  stream->timeline = std::make_shared<Timeline>(device);
  const VkSemaphoreTypeCreateInfo type = {VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, nullptr,
                                          VK_SEMAPHORE_TYPE_TIMELINE, 0};
  const VkCreateInfo semaphore = {VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, &type, 0};
  VkResult code = device.api.CreateSemaphore(device.device, &semaphore, nullptr, &stream->timeline->semaphore);
  if (code != VK_SUCCESS) return vk_fail(code, "vkCreateSemaphore", where(device));
  const VkCommandPoolCreateInfo pool = {VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, nullptr,
                                        VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, device.found.family};
  code = device.api.CreateCommandPool(device.device, &pool, nullptr, &stream->pool);
  if (code != VK_SUCCESS) return vk_fail(code, "vkCreateCommandPool", where(device));
  *out_stream = std::move(stream);
  return OB_OK;
}

void destroy_stream(Stream& stream) {
  Device& device = *stream.device;
  if (stream.caller.joinable()) {
    {
      const std::lock_guard lock(stream.call_mutex);
      stream.is_ending = true;
      stream.call_changed.notify_one();
    }
    stream.caller.join();
  }
  for (const std::unique_ptr<Batch>& batch : stream.in_flight) {
    for (const std::unique_ptr<Chunk>& chunk : batch->chunks) free_buffer(device, chunk->buffer);
  }
  for (const std::unique_ptr<Chunk>& chunk : stream.free_chunks) free_buffer(device, chunk->buffer);
  for (const std::unique_ptr<Chunk>& chunk : stream.staging) {
    if (chunk != nullptr) free_buffer(device, chunk->buffer);
  }
  device.api.DestroyCommandPool(device.device, stream.pool, nullptr);  // with its command buffers
}

ob_status open_batch(Stream& stream, Batch** out_batch) {
  if (const ob_status status = find_batch(stream, /*is_for_calls=*/false, out_batch); status != OB_OK) return status;
  Batch& batch = **out_batch;
  if (batch.commands != nullptr) return OB_OK;
  const DeviceApi& api = stream.device->api;
  const bool is_captured = stream.graph != nullptr;
  Recorder& recorder = is_captured ? static_cast<Recorder&>(*stream.graph) : stream;
  if (recorder.free_commands.empty()) {
    const VkCommandBufferAllocateInfo info = {
        VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, nullptr, recorder.pool,
        is_captured ? VK_COMMAND_BUFFER_LEVEL_SECONDARY : VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1};
    VkCommandBuffer commands = nullptr;
    const VkResult code = api.AllocateCommandBuffers(stream.device->device, &info, &commands);
    if (code != VK_SUCCESS) return vk_fail(code, "vkAllocateCommandBuffers", where(*stream.device));
    recorder.free_commands.push_back(commands);
  }
  VkCommandBufferInheritanceInfo inherited = {};
  inherited.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_INHERITANCE_INFO;
  // Launches of a graph may be under way at once.
  const VkCommandBufferBeginInfo info = {
      VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, nullptr,
      is_captured ? VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT : VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
      is_captured ? &inherited : nullptr};
  const VkResult code = api.BeginCommandBuffer(recorder.free_commands.back(), &info);
  if (code != VK_SUCCESS) return vk_fail(code, "vkBeginCommandBuffer", where(*stream.device));
  batch.commands = recorder.free_commands.back();
  recorder.free_commands.pop_back();
  return OB_OK;
}

ob_status add_call(Stream& stream, ob_host_fn fn, void* user) {
  if (stream.graph == nullptr && !stream.caller.joinable()) {
    stream.caller = std::thread(run_caller, std::ref(stream));
  }
  Batch* batch = nullptr;
  if (const ob_status status = find_batch(stream, /*is_for_calls=*/true, &batch); status != OB_OK) return status;
  const Work work = {OB_ACTIVITY_HOST, 0, stream.index, stream.index, "host_callback"};
  const bool is_recorded = stream.graph == nullptr && work.is_recorded(stream);
  batch->calls.push_back({fn, user, is_recorded ? std::make_unique<ob_activity>(work.record(stream)) : nullptr});
  ++batch->count;
  return OB_OK;
}

void end_command(Stream& stream, Batch& batch) {
  ++batch.count;
  barrier(stream.device->api, batch.commands, kStages, kReads | kWrites);
}

ob_status reserve(Stream& stream, Batch& batch, uint64_t bytes, Chunk** out_chunk, uint64_t* out_offset) {
  bytes = (bytes + 15) / 16 * 16;
  const auto fits = [&](const std::unique_ptr<Chunk>& chunk) { return chunk->buffer.bytes - chunk->used >= bytes; };
  if (batch.chunks.empty() || !fits(batch.chunks.back())) {
    const auto found = std::find_if(stream.free_chunks.begin(), stream.free_chunks.end(), fits);
    if (found != stream.free_chunks.end()) {
      batch.chunks.push_back(std::move(*found));
      stream.free_chunks.erase(found);
    } else {
      auto chunk = std::make_unique<Chunk>();
      Device& device = *stream.device;
      const ob_status status =
          make_buffer(device, std::max(bytes, kChunkBytes), device.host_type, true, &chunk->buffer);
      if (status != OB_OK) return status;
      batch.chunks.push_back(std::move(chunk));
    }
  }
  Chunk& chunk = *batch.chunks.back();
  *out_chunk = &chunk;
  *out_offset = chunk.used;
  chunk.used += bytes;
  return OB_OK;
}

uint64_t close(Stream& stream) {
  if (stream.open == nullptr) return stream.closed;
  Device& device = *stream.device;
  Batch& batch = *stream.open;
  if (batch.commands != nullptr) {
    // Make the device's writes visible to the host.
    barrier(device.api, batch.commands, VK_PIPELINE_STAGE_2_HOST_BIT, VK_ACCESS_2_HOST_READ_BIT);
    const VkResult code = device.api.EndCommandBuffer(batch.commands);
    if (code != VK_SUCCESS) {
      if (stream.failure == OB_OK) {
        stream.failure = vk_fail(code, "vkEndCommandBuffer", where(device));
        stream.failure_text = support::last_error_text;
      }
      batch.commands = nullptr;  // of the pool, and lost until the stream ends
    }
  }
  batch.value = ++stream.closed;
  stream.in_flight.push_back(std::move(stream.open));
  const std::lock_guard lock(device.list_mutex);
  device.closed.push_back(&batch);
  return stream.closed;
}

void notify(Stream& stream) {
  if (stream.is_dirty.exchange(true)) return;
  Device& device = *stream.device;
  const std::lock_guard lock(device.list_mutex);
  device.dirty.push_back(&stream);
  if (device.is_submitter_asleep) device.list_changed.notify_one();
}

ob_status take_failure(Stream& stream) {
  const std::lock_guard lock(stream.mutex);
  if (stream.failure == OB_OK) return OB_OK;
  return fail(std::exchange(stream.failure, OB_OK), "%s", stream.failure_text.c_str());
}

ob_status drain(Stream& stream) {
  uint64_t value = 0;
  {
    const std::lock_guard lock(stream.mutex);
    if (stream.graph != nullptr) return refuse_in_capture(stream);
    value = close(stream);
  }
  const ob_status status = wait_for({stream.timeline, value});
  const ob_status failure = take_failure(stream);
  return failure != OB_OK ? failure : status;
}

void fill_stream_entries(ob_driver* table) {
  table->stream_create = stream_create;
  table->stream_destroy = stream_destroy;
  table->stream_synchronize = stream_synchronize;
  table->stream_query = stream_query;
  table->stream_wait_event = stream_wait_event;
  table->host_callback = host_callback;
}

}  // namespace vulkan

// SPDX-License-Identifier: BSD-3-Clause
#include "driver.h"

#include <algorithm>
#include <cinttypes>
#include <string>

#include "error.h"
#include "work.h"

namespace sim {
namespace {

std::unique_ptr<Scheduler> make_scheduler(Driver& driver) {
  switch (driver.options.schedule) {
    case Schedule::kInline:
      return make_inline_scheduler();
    case Schedule::kLazy:
    case Schedule::kPct:
      return make_lazy_scheduler(driver);
    case Schedule::kNormal:
      break;
  }
  return make_worker_scheduler(driver);
}

}  // namespace

Driver::Driver(const Options& all_options)
    : options(all_options),
      repeats(all_options.repeats()),
      is_modelled(all_options.bandwidth != 0 || all_options.latency != 0),
      devices(new Device[static_cast<size_t>(std::max(all_options.devices, 1))]),
      scheduler(make_scheduler(*this)) {
  std::string problem;
  // parse_options has checked both.
  faults.add_rules(options.fault, &problem);
  if (!options.fault_counts.empty()) faults.keep_counts(options.fault_counts, &problem);
}

Driver::~Driver() {
  drain(OB_HOST);
  if (open_count_ > 0) scheduler->stop();
  for (int32_t i = 0; i < options.devices; ++i) devices[static_cast<size_t>(i)].memory.close();
}

ob_status Driver::check_index(int32_t index) const {
  if (index >= 0 && index < options.devices) return OB_OK;
  return fail(OB_INVALID_ARGUMENT, "there is no device %d; the number of devices is %d", index, options.devices);
}

ob_status Driver::find_device(int32_t index, Device** out_device) {
  const ob_status status = check_index(index);
  if (status != OB_OK) return status;
  *out_device = &devices[static_cast<size_t>(index)];
  if ((*out_device)->is_open.load(std::memory_order_acquire)) return OB_OK;
  return fail(OB_FAILED_PRECONDITION, "device %d is not open; call device_open first", index);
}

Stream* Driver::stream(int32_t device_index, uint64_t handle) {
  if (Stream* stream = streams.find(device_index, handle)) return stream;
  Device* device = nullptr;
  if (find_device(device_index, &device) == OB_OK) {
    fail(OB_INVALID_ARGUMENT, "device %d has no stream 0x%" PRIx64 "%s", device_index, handle,
         streams.was_issued(handle) ? ": it was destroyed or belongs to another device" : "");
  }
  return nullptr;
}

Event* Driver::event(int32_t device_index, uint64_t handle) {
  if (Event* event = events.find(device_index, handle)) return event;
  Device* device = nullptr;
  if (find_device(device_index, &device) == OB_OK) {
    fail(OB_INVALID_ARGUMENT, "device %d has no event 0x%" PRIx64 "%s", device_index, handle,
         events.was_issued(handle) ? ": it was destroyed or belongs to another device" : "");
  }
  return nullptr;
}

ob_status Driver::open(int32_t index) {
  std::lock_guard lock(open_mutex_);
  ob_status status = check_index(index);
  if (status != OB_OK) return status;
  Device& device = devices[static_cast<size_t>(index)];
  if (device.is_open) return fail(OB_FAILED_PRECONDITION, "device %d is already open", index);
  status = device.memory.open(index, options);
  if (status != OB_OK) return status;
  if (open_count_ == 0) {
    try {
      scheduler->start();
    } catch (...) {
      device.memory.close();
      throw;
    }
  }
  ++open_count_;
  device.is_open.store(true, std::memory_order_release);
  return OB_OK;
}

ob_status Driver::close(int32_t index) {
  std::lock_guard lock(open_mutex_);
  Device* device = nullptr;
  const ob_status status = find_device(index, &device);
  if (status != OB_OK) return status;
  const int64_t live_streams = device->stream_count.load();
  const int64_t live_events = device->event_count.load();
  const uint64_t live_memory = device->memory.live_count();
  if (live_streams != 0 || live_events != 0 || live_memory != 0) {
    return fail(OB_FAILED_PRECONDITION,
                "device %d: device_close was called while %" PRId64 " streams, %" PRId64 " events and %" PRIu64
                " pieces of memory (%s) exist; destroy them first",
                index, live_streams, live_events, live_memory, size_text(device->memory.live_bytes()).c_str());
  }
  drain(index);  // streams that were destroyed with work on them
  device->is_open.store(false);
  if (--open_count_ == 0) scheduler->stop();
  device->memory.close();
  return OB_OK;
}

ob_status Driver::create_stream(int32_t index, int32_t priority, uint64_t* out_stream) {
  uint64_t handle = 0;
  Stream* stream = streams.take(index, &handle);
  if (stream == nullptr) return fail(OB_OUT_OF_MEMORY, "device %d: too many streams", index);
  {
    std::lock_guard list_lock(streams_mutex_);
    all_streams_.push_back(stream);
    std::lock_guard lock(stream->lock);
    stream->device = index;
    stream->priority = priority;
    stream->last_handle = handle;
    stream->is_destroyed = false;
    stream->handle.store(handle, std::memory_order_release);
  }
  devices[static_cast<size_t>(index)].stream_count.fetch_add(1);
  *out_stream = handle;
  return OB_OK;
}

ob_status Driver::destroy_stream(int32_t index, uint64_t handle) {
  Stream* stream = this->stream(index, handle);
  if (stream == nullptr) return OB_INVALID_ARGUMENT;
  bool is_idle = false;
  {
    std::lock_guard turn(stream->inline_mutex);  // inline: not during another thread's task
    std::lock_guard lock(stream->lock);
    if (stream->handle.load(std::memory_order_relaxed) != handle) {
      return fail(OB_INVALID_ARGUMENT, "device %d: stream 0x%" PRIx64 " is being destroyed by two threads", index,
                  handle);
    }
    stream->handle.store(0, std::memory_order_relaxed);
    stream->is_destroyed = true;
    is_idle = !stream->is_active && stream->is_drained();
  }
  devices[static_cast<size_t>(index)].stream_count.fetch_sub(1);
  if (is_idle) recycle(stream);
  return OB_OK;
}

void Driver::recycle(Stream* stream) {
  {
    // The failure moves under the lock: take_failure finds it in one of two places.
    std::lock_guard lock(streams_mutex_);
    if (const ob_status status = stream->failure.take(); status != OB_OK) {
      char text[256];
      copy_last_error("", text, sizeof text);
      devices[static_cast<size_t>(stream->device)].orphaned_failure.add(status, text);
    }
    all_streams_.erase(std::find(all_streams_.begin(), all_streams_.end(), stream));
  }
  streams.give_back(stream->last_handle);
}

ob_status Driver::queue(Stream* stream, uint64_t handle, const Task& task, uint64_t* out_position) {
  const auto gone = [&] {
    return fail(OB_INVALID_ARGUMENT, "stream 0x%" PRIx64 " was destroyed by another thread", handle);
  };
  if (options.schedule == Schedule::kInline) {
    std::lock_guard turn(stream->inline_mutex);
    if (stream->handle.load(std::memory_order_relaxed) != handle) return gone();
    const uint64_t position = stream->tail.load(std::memory_order_relaxed) + 1;
    stream->tail.store(position, std::memory_order_release);
    run_task(*this, *stream, task);
    stream->completed.store(position, std::memory_order_release);
    if (out_position != nullptr) *out_position = position;
    return OB_OK;
  }
  bool was_idle = false;
  {
    std::lock_guard lock(stream->lock);
    if (stream->handle.load(std::memory_order_relaxed) != handle) return gone();
    stream->push(task);
    if (out_position != nullptr) *out_position = stream->tail.load(std::memory_order_relaxed);
    was_idle = !stream->is_active;
    stream->is_active = true;
  }
  if (was_idle) scheduler->make_ready(stream);
  if (options.runs_at_waits()) queued_count.fetch_add(1, std::memory_order_relaxed);
  return OB_OK;
}

std::vector<Stream*> Driver::streams_of(int32_t index) {
  std::lock_guard lock(streams_mutex_);
  std::vector<Stream*> matching;
  for (Stream* stream : all_streams_) {
    if (index == OB_HOST || stream->device == index) matching.push_back(stream);
  }
  return matching;
}

ob_status Driver::take_failure(int32_t index) {
  std::lock_guard lock(streams_mutex_);
  for (Stream* stream : all_streams_) {
    if (stream->device != index) continue;
    if (const ob_status status = stream->failure.take(); status != OB_OK) return status;
  }
  return devices[static_cast<size_t>(index)].orphaned_failure.take();
}

void Driver::drain(int32_t index) {
  for (Stream* stream : streams_of(index)) {
    scheduler->wait(stream, stream->tail.load(std::memory_order_acquire), true);
  }
}

}  // namespace sim

// SPDX-License-Identifier: BSD-3-Clause
// The submitter, which submits closed batches; the threads that make the host's calls; waits.
#include <algorithm>
#include <chrono>
#include <utility>

#include "driver.h"

namespace vulkan {
namespace {

constexpr uint64_t kWaitTimeout = 1'000'000'000;
// The pause between two looks at another device's progress, which is never announced.
constexpr std::chrono::microseconds kProgressPollInterval{50};
// The pause after a submission, which takes an H200 14 µs and the caller's lock: calls that come
// meanwhile share a batch. Waits don't pause: they submit in their own thread.
constexpr std::chrono::microseconds kBatchInterval{50};
// After that time a wait for the host looks whether the device was lost meanwhile.
constexpr std::chrono::milliseconds kLostPollInterval{100};

void store_max(std::atomic<uint64_t>& value, uint64_t floor) {
  uint64_t current = value.load(std::memory_order_relaxed);
  while (current < floor && !value.compare_exchange_weak(current, floor, std::memory_order_acq_rel)) {
  }
}

void note_failure(Stream& stream, ob_status status) {
  const std::lock_guard lock(stream.mutex);
  if (stream.failure != OB_OK) return;
  stream.failure = status;
  stream.failure_text = support::last_error_text;
}

// Return true if only the host can see that a point is reached.
bool is_foreign(const Device& device, const Point& point) {
  return &point.timeline->device != &device || point.timeline->semaphore == nullptr;
}

// Return true if all work that a batch waits for is submitted, or done if it is not the device's. A
// queue must never wait for later work, since other streams share the queue. Commands wait for the
// host's calls before them in their stream; calls find them in the list of the same thread.
bool can_submit(const Device& device, Batch& batch) {
  if (batch.calls.empty() && batch.stream->timeline->submitted.load() + 1 < batch.value) return false;
  bool can = true;
  std::erase_if(batch.waits, [&](const Point& point) {
    if (is_foreign(device, point) && has_reached(point)) return true;
    const bool is_submitted = !is_foreign(device, point) && point.timeline->submitted.load() >= point.value;
    can = can && is_submitted;
    return is_submitted && point.timeline->done.load() >= point.value;  // the device may not know that value
  });
  return can;
}

// Return true if a batch waits for another device, whose progress is never announced.
bool waits_for_others(const Device& device, const Batch& batch) {
  return std::any_of(batch.waits.begin(), batch.waits.end(),
                     [&](const Point& point) { return &point.timeline->device != &device; });
}

VkResult submit_commands(Device& device, const Batch& batch, VkCommandBuffer commands) {
  std::vector<VkSemaphoreSubmitInfo> waits;
  for (const Point& point : batch.waits) {
    waits.push_back({VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO, nullptr, point.timeline->semaphore, point.value,
                     VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, 0});
  }
  const VkSemaphoreSubmitInfo signal = {VK_STRUCTURE_TYPE_SEMAPHORE_SUBMIT_INFO, nullptr,
                                        batch.stream->timeline->semaphore,       batch.value,
                                        VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT,    0};
  const VkCommandBufferSubmitInfo given = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_SUBMIT_INFO, nullptr, commands, 0};
  VkSubmitInfo2 info = {};
  info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO_2;
  info.waitSemaphoreInfoCount = static_cast<uint32_t>(waits.size());
  info.pWaitSemaphoreInfos = waits.data();
  info.commandBufferInfoCount = commands != nullptr ? 1 : 0;
  info.pCommandBufferInfos = &given;
  info.signalSemaphoreInfoCount = 1;
  info.pSignalSemaphoreInfos = &signal;
  return device.api.QueueSubmit2(batch.stream->queue, 1, &info, nullptr);
}

// Call it with submit_mutex held. A batch that the device refuses is skipped, so that the rest of
// the stream runs. The batch may be gone when this returns.
void submit(Device& device, Batch& batch) {
  Stream& stream = *batch.stream;
  const std::shared_ptr<Timeline> timeline = stream.timeline;
  const uint64_t value = batch.value;
  if (!device.is_lost.load()) {
    VkResult code = submit_commands(device, batch, batch.commands);
    if (code != VK_SUCCESS) {
      note_failure(stream, vk_fail(code, "vkQueueSubmit2", where(device)));
      if (code != VK_ERROR_DEVICE_LOST) code = submit_commands(device, batch, nullptr);
      if (code != VK_SUCCESS) device.is_lost.store(true);
    }
  }
  timeline->submitted.store(value, std::memory_order_release);
}

// Let a stream's thread make the calls of a batch.
void queue_host_calls(Batch& batch) {
  Stream& stream = *batch.stream;
  const std::lock_guard lock(stream.call_mutex);
  stream.batches_with_calls.push_back(&batch);
  stream.call_changed.notify_one();
}

// Make calls, once the work before them is done. They are made on a lost device too.
void make_calls(Batch& batch) {
  const std::shared_ptr<Timeline> timeline = batch.stream->timeline;
  const uint64_t value = batch.value;
  for (const Point& point : batch.waits) static_cast<void>(wait_for(point));
  static_cast<void>(wait_for({timeline, value - 1}));
  for (HostCall& call : batch.calls) {
    if (call.record != nullptr) call.record->start = monotonic_now();
    call.fn(call.user);
    if (call.record == nullptr) continue;
    call.record->end = monotonic_now();
    timeline->device.activities->add({*call.record, {}, {}});
  }
  store_max(timeline->done, value);  // from here on the batch may be gone
  timeline->submitted.store(value, std::memory_order_release);
}

}  // namespace

void run_caller(Stream& stream) {
  std::unique_lock lock(stream.call_mutex);
  for (;;) {
    stream.call_changed.wait(lock, [&] { return stream.is_ending || !stream.batches_with_calls.empty(); });
    if (stream.batches_with_calls.empty()) return;
    Batch& batch = *stream.batches_with_calls.front();
    stream.batches_with_calls.pop_front();
    lock.unlock();
    make_calls(batch);
    submit_ready_batches(*stream.device);
    lock.lock();
  }
}

void wake_submitter(Device& device) {
  const std::lock_guard lock(device.list_mutex);
  if (device.is_submitter_asleep) device.list_changed.notify_one();
}

void notify_host_progress(Device& device) {
  const std::lock_guard lock(device.list_mutex);
  device.is_signalled = true;
  device.list_changed.notify_one();
  device.progressed.notify_all();
}

// Batches are in the order in which they were closed, and each waits only for earlier ones, so one
// pass finds all that can be submitted.
void submit_ready_batches(Device& device) {
  const std::lock_guard submitting(device.submit_mutex);
  {
    const std::lock_guard lock(device.list_mutex);
    device.pending.insert(device.pending.end(), device.closed.begin(), device.closed.end());
    device.closed.clear();
  }
  std::vector<const Stream*> blocked_streams;
  bool needs_polling = false;
  for (auto at = device.pending.begin(); at != device.pending.end();) {
    Batch& batch = **at;
    if (std::find(blocked_streams.begin(), blocked_streams.end(), batch.stream) != blocked_streams.end() ||
        !can_submit(device, batch)) {
      blocked_streams.push_back(batch.stream);
      needs_polling = needs_polling || waits_for_others(device, batch);
      ++at;
      continue;
    }
    if (batch.calls.empty()) {
      submit(device, batch);
    } else {
      queue_host_calls(batch);
    }
    at = device.pending.erase(at);
  }
  const std::lock_guard lock(device.list_mutex);
  device.progressed.notify_all();
  device.needs_polling = needs_polling;
  if (needs_polling && device.is_submitter_asleep) device.list_changed.notify_one();
}

void run_submitter(Device& device) {
  std::unique_lock lock(device.list_mutex);
  while (!device.is_closing) {
    if (device.dirty.empty() && device.closed.empty() && !device.is_signalled) {
      device.is_submitter_asleep = true;
      if (device.needs_polling) {
        device.list_changed.wait_for(lock, kProgressPollInterval);
      } else {
        device.list_changed.wait(lock);
      }
      device.is_submitter_asleep = false;
    }
    device.is_signalled = false;
    device.closing_streams = std::exchange(device.dirty, {});
    lock.unlock();
    for (Stream* stream : device.closing_streams) {
      stream->is_dirty.store(false);
      const std::lock_guard held(stream->mutex);
      close(*stream);
    }
    submit_ready_batches(device);
    lock.lock();
    device.closing_streams.clear();
    device.list_changed.wait_for(lock, kBatchInterval, [&] { return device.is_closing; });
  }
}

bool has_reached(const Point& point) {
  Timeline& timeline = *point.timeline;
  const bool is_submitted = timeline.submitted.load(std::memory_order_acquire) >= point.value;
  if (timeline.done.load(std::memory_order_acquire) >= point.value) return true;
  if (!is_submitted) return false;
  if (timeline.device.is_lost.load()) return true;  // nothing is under way any more
  uint64_t value = 0;
  const VkResult code =
      timeline.device.api.GetSemaphoreCounterValue(timeline.device.device, timeline.semaphore, &value);
  if (code != VK_SUCCESS) {
    if (code == VK_ERROR_DEVICE_LOST) timeline.device.is_lost.store(true);
    return code == VK_ERROR_DEVICE_LOST;
  }
  // A batch counts as finished only when its submission has returned.
  store_max(timeline.done, std::min(value, timeline.submitted.load(std::memory_order_acquire)));
  return value >= point.value;
}

ob_status wait_for(const Point& point) {
  Timeline& timeline = *point.timeline;
  Device& device = timeline.device;
  const auto is_submitted = [&] { return timeline.submitted.load(std::memory_order_acquire) >= point.value; };
  for (;;) {
    // What the host did on a lost device is done, but not what lies before it.
    if (device.is_lost.load()) return fail(OB_DEVICE_LOST, "%s is lost", where(device).c_str());
    const bool can_wait = is_submitted();  // read before `done`, which the host raises first
    if (timeline.done.load(std::memory_order_acquire) >= point.value) return OB_OK;
    if (!can_wait) {
      submit_ready_batches(device);
      std::unique_lock lock(device.list_mutex);
      device.progressed.wait_for(lock, kLostPollInterval, [&] {
        return is_submitted() || timeline.done.load(std::memory_order_acquire) >= point.value || device.is_lost.load();
      });
      continue;
    }
    VkSemaphoreWaitInfo info = {};
    info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO;
    info.semaphoreCount = 1;
    info.pSemaphores = &timeline.semaphore;
    info.pValues = &point.value;
    const VkResult code = device.api.WaitSemaphores(device.device, &info, kWaitTimeout);
    if (code == VK_SUCCESS) {
      store_max(timeline.done, point.value);
    } else if (code != VK_TIMEOUT) {
      if (code == VK_ERROR_DEVICE_LOST) device.is_lost.store(true);
      return vk_fail(code, "vkWaitSemaphores", where(device));
    }
  }
}

}  // namespace vulkan

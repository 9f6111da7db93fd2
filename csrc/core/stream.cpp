// SPDX-License-Identifier: BSD-3-Clause
#include "core/stream.h"

#include <algorithm>
#include <condition_variable>
#include <deque>

#include "core/activity.h"
#include "core/blocking.h"
#include "core/capture.h"
#include "core/device.h"
#include "core/error.h"
#include "core/event.h"
#include "core/kernel_failure.h"
#include "core/lost_device.h"
#include "core/observer.h"
#include "core/pending.h"
#include "core/process.h"
#include "core/sync_debug.h"

namespace outboard {

namespace {

constexpr int kPooledStreams = kStreamsPerPriority * kMaxPriorities;

struct ExternalStream {
  Stream stream;
  ExternalStream* next = nullptr;  // the one before it
};

// The streams of one device. None moves; external streams are only added.
struct DeviceStreams {
  Stream fixed[1 + kPooledStreams];  // default, then the pools
  std::atomic<uint32_t> next[kMaxPriorities] = {};
  std::deque<ExternalStream> external;  // guarded by streams_mutex; elements never move
  std::atomic<ExternalStream*> newest{nullptr};
};

// Made when a device's first stream is requested: most processes use one device of 64.
std::atomic<DeviceStreams*> all_streams[kMaxDevices];
std::mutex streams_mutex;
std::condition_variable stream_made;

thread_local Stream* thread_streams[kMaxDevices] = {};

DeviceStreams& new_streams(c10::DeviceIndex device) {
  auto fresh = std::make_unique<DeviceStreams>();
  for (int i = 0; i < 1 + kPooledStreams; ++i) {
    Stream& stream = fresh->fixed[i];
    stream.device = device;
    stream.id = i;
    stream.priority = i == 0 ? 0 : static_cast<int8_t>(-((i - 1) / kStreamsPerPriority));
  }
  DeviceStreams* expected = nullptr;
  if (all_streams[device].compare_exchange_strong(expected, fresh.get())) {
    return *fresh.release();  // lives as long as the process, as streams do
  }
  return *expected;
}

DeviceStreams& streams_of(c10::DeviceIndex device) {
  DeviceStreams* streams = all_streams[device].load(std::memory_order_acquire);
  return C10_LIKELY(streams != nullptr) ? *streams : new_streams(device);
}

[[noreturn]] void raise_no_stream(c10::DeviceIndex device, c10::StreamId id) {
  raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT,
        "there is no stream with id " + std::to_string(id) + " on device " + std::to_string(static_cast<int>(device)) +
            ": ids come from torch." + driver_name() + ".Stream(), current_stream() and get_stream_from_external()");
}

}  // namespace

void ErrorSlot::set(std::exception_ptr error) noexcept {
  std::lock_guard lock(mutex_);
  if (!error_) {
    error_ = std::move(error);
    is_set_.store(true, std::memory_order_release);
  }
}

void ErrorSlot::raise() {
  if (C10_LIKELY(!is_set())) {
    return;
  }
  std::exception_ptr error;
  {
    std::lock_guard lock(mutex_);
    error = std::exchange(error_, nullptr);
    is_set_.store(false, std::memory_order_release);
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

uint64_t make_stream(Stream& stream) {
  ensure_open(stream.device);
  if (stream.is_external) {  // used again after a wait for it had failed
    stream.is_created.store(true, std::memory_order_release);
    return stream.handle;
  }
  uint64_t handle = 0;
  OB_CALL(stream_create, stream.device, stream.priority, &handle);
  {
    std::lock_guard lock(streams_mutex);
    if (!stream.is_created.load()) {
      stream.handle = handle;
      stream.is_created.store(true, std::memory_order_release);
      return handle;
    }
  }
  // Another thread was first.
  OB_CALL(stream_destroy, stream.device, handle);
  return stream.handle;
}

Stream& get_stream(c10::DeviceIndex device, c10::StreamId id) {
  check_device_index(device);
  DeviceStreams& streams = streams_of(device);
  if (C10_LIKELY(id >= 0 && id <= kPooledStreams)) {
    return streams.fixed[id];
  }
  std::lock_guard lock(streams_mutex);
  const c10::StreamId index = id - kFirstExternalStreamId;
  if (index < 0 || static_cast<size_t>(index) >= streams.external.size()) {
    raise_no_stream(device, id);
  }
  return streams.external[static_cast<size_t>(index)].stream;
}

Stream& default_stream(c10::DeviceIndex device) {
  check_device_index(device);
  return streams_of(device).fixed[0];
}

Stream& pool_stream(c10::DeviceIndex device, int priority) {
  const ob_device_properties& properties = device_properties(device);
  // Slot n holds priority -n. Priorities below the default one are clamped to it, as on CUDA.
  const int greatest = std::clamp<int>(properties.stream_priority_greatest, 1 - kMaxPriorities, 0);
  const int slot = -std::clamp(priority, greatest, 0);
  DeviceStreams& streams = streams_of(device);
  const uint32_t index = streams.next[slot].fetch_add(1, std::memory_order_relaxed) % kStreamsPerPriority;
  return streams.fixed[1 + slot * kStreamsPerPriority + static_cast<int>(index)];
}

Stream& external_stream(c10::DeviceIndex device, uint64_t handle) {
  check_device_index(device);
  ensure_open(device);
  DeviceStreams& streams = streams_of(device);
  std::lock_guard lock(streams_mutex);
  for (ExternalStream& known : streams.external) {
    if (known.stream.handle == handle) {
      known.stream.is_created.store(true, std::memory_order_release);  // its owner may have made another one since
      return known.stream;
    }
  }
  ExternalStream& added = streams.external.emplace_back();
  Stream& stream = added.stream;
  stream.device = device;
  stream.is_external = true;
  stream.id = kFirstExternalStreamId + static_cast<c10::StreamId>(streams.external.size()) - 1;
  stream.handle = handle;
  stream.is_created.store(true, std::memory_order_release);
  added.next = streams.newest.load();
  streams.newest.store(&added, std::memory_order_release);
  return stream;
}

Stream& current_stream(c10::DeviceIndex device) noexcept {
  Stream* stream = thread_streams[device];
  return C10_LIKELY(stream != nullptr) ? *stream : *(thread_streams[device] = &streams_of(device).fixed[0]);
}

void set_current_stream(Stream& stream) noexcept {
  thread_streams[stream.device] = &stream;
}

namespace {

// Return true if there may be work to wait for. Raise if the device is gone: its streams look
// as if they had never been made.
bool was_used(const Stream& stream) {
  ensure_usable(stream.device);
  return stream.is_external || stream.is_created.load(std::memory_order_acquire);
}

}  // namespace

bool query_stream(Stream& stream) {
  refuse_in_capture(stream, "querying a capturing stream");
  if (!was_used(stream)) {
    return true;
  }
  ensure_open(stream.device);
  if (has_pending(stream) && !submit_ready(stream)) {
    return false;
  }
  if (driver().stream_query) {
    const ob_status status = driver().stream_query(driver().self, stream.device, stream.handle);
    if (!is_unimplemented(status)) {
      if (status != OB_NOT_READY) {
        check(status, "stream_query", stream.device);
        observe_order(ObservedOrder::StreamSync, stream.device, stream.id);
      }
      return status == OB_OK;
    }
  }
  Event event;
  event.record(stream);
  return event.query();
}

namespace {

ob_status wait_for_stream(const Stream& stream) {
  const TrackedWait waiting("stream_synchronize", stream.device, &stream);
  return driver().stream_synchronize(driver().self, stream.device, stream.handle);
}

}  // namespace

void synchronize_stream(Stream& stream, Interruptible interruptible) {
  refuse_in_capture(stream, "synchronizing a capturing stream");
  if (!was_used(stream)) {
    return;
  }
  ensure_open(stream.device);
  flush_pending(stream, interruptible);
  const StreamPosition before = advance_position(stream);
  detail::fetch_record(stream);
  ActivityScope activity(stream, {ActivityKind::Wait, "stream_synchronize"});
  detail::wait_interruptibly(stream, interruptible, "stream_synchronize");
  stream.failures.has_driver_work.store(false, std::memory_order_relaxed);  // this wait raises its failure
  detail::check_wait(wait_for_stream(stream), stream);
  activity.finish();
  observe_order(ObservedOrder::StreamSync, stream.device, stream.id);
  raise_failures(before);
  detail::after_wait(stream.device);
}

void drain_stream(Stream& stream) {
  if (in_bad_fork() || !was_used(stream)) {
    return;
  }
  ensure_open(stream.device);
  // Work that the driver captures is not under way, and earlier work
  // was done when the capture began.
  if (const Capture* capture = capture_of(stream); C10_UNLIKELY(capture != nullptr) && capture->is_native()) {
    return;
  }
  flush_pending(stream, Interruptible::No);
  const WorkPosition position = next_position(stream);
  ActivityScope activity(stream, {ActivityKind::Wait, "stream_synchronize"});
  try {
    check(wait_for_stream(stream), "stream_synchronize", stream.device);
  } catch (...) {
    // The failure of work is reported once, and the work is done then. A stream that
    // cannot be waited for fails again.
    const std::exception_ptr failure = std::current_exception();
    if (is_lost(stream.device) || wait_for_stream(stream) != OB_OK) {
      throw;
    }
    report_failure(position, failure);
  }
  activity.finish();
  observe_order(ObservedOrder::StreamSync, stream.device, stream.id);
}

bool has_host_queue() noexcept {
  return driver().host_callback != nullptr;
}

namespace {

bool call_host_work(Stream& stream, ob_host_fn fn, void* user) {
  const uint64_t handle = stream_handle(stream);
  if (C10_LIKELY(driver().host_callback != nullptr)) {
    const TrackedCall noted("host_callback", stream.device, &stream);
    detail::begin_failure_watch();
    const ob_status status = driver().host_callback(driver().self, stream.device, handle, fn, user);
    if (C10_LIKELY(status == OB_OK)) {
      return C10_LIKELY(!detail::has_failed_here(stream));
    }
    if (!is_unimplemented(status)) {
      raise_status(status, "host_callback", stream.device);
    }
  }
  detail::check_wait(wait_for_stream(stream), stream);
  fn(user);
  return false;
}

bool call_observed_host_work(Stream& stream, ob_host_fn fn, void* user, const char* name) {
  ActivityScope activity(stream, {ActivityKind::Host, "host_callback", name});
  auto timed = activity.time_host_work(fn, user);
  const bool is_queued =
      timed ? call_host_work(stream, ActivityScope::TimedHostWork::run, timed.get()) : call_host_work(stream, fn, user);
  static_cast<void>(timed.release());  // it has run, or will run
  activity.finish();
  return is_queued;
}

}  // namespace

bool queue_host_work(Stream& stream, ob_host_fn fn, void* user, const char* name) {
  refuse_in_capture(stream, "host work that runs once");
  refuse_second_stream(stream);
  stream.last_work.store(name, std::memory_order_relaxed);
  if (C10_UNLIKELY(!has_host_queue())) {
    note_sync(name != nullptr ? name : "host work");
  }
  return C10_LIKELY(!is_recording_activities()) ? call_host_work(stream, fn, user)
                                                : call_observed_host_work(stream, fn, user, name);
}

void wait_and_run(Stream& stream, ob_host_fn fn, void* user, const char* name) {
  note_sync(name != nullptr ? name : "host work");
  synchronize_stream(stream);
  if (C10_LIKELY(!is_recording_activities())) {
    fn(user);
    return;
  }
  ActivityScope activity(stream, {ActivityKind::Host, "host_work", name});
  if (auto timed = activity.time_own_work(fn, user)) {
    ActivityScope::TimedHostWork::run(timed.release());
  } else {
    fn(user);
  }
  activity.finish();
}

namespace detail {

void flush_for_handle(Stream& stream) {
  flush_pending(stream);
}

void check_wait(ob_status status, Stream& stream) {
  if (C10_LIKELY(status == OB_OK)) {
    return;
  }
  if (stream.is_external) {
    stream.is_created.store(false);  // its owner may have destroyed it
  }
  raise_status(status, "stream_synchronize", stream.device);
}

void wait_interruptibly(Stream& stream, Interruptible interruptible, const char* entry) {
  if (interruptible == Interruptible::No || !can_interrupt(entry)) {
    return;
  }
  const auto is_done = [](void* user) {
    const Stream& queried = *static_cast<Stream*>(user);
    const ob_status status = driver().stream_query(driver().self, queried.device, queried.handle);
    if (C10_UNLIKELY(status == OB_DEVICE_LOST)) {
      raise_status(status, "stream_query", queried.device);
    }
    return status != OB_NOT_READY;
  };
  if (!driver().stream_query || C10_LIKELY(is_done(&stream))) {
    return;
  }
  const TrackedWait waiting(entry, stream.device, &stream);
  poll_until_done(waiting, stream.device, is_done, &stream);
}

void wait_interruptibly(c10::DeviceIndex device, Interruptible interruptible) {
  if (interruptible == Interruptible::No) {
    return;
  }
  const char* entry = driver().device_synchronize ? "device_synchronize" : "stream_synchronize";
  for_each_created_stream(
      device,
      [](Stream& stream, void* user) {
        if (!is_captured_by_driver(stream)) {
          wait_interruptibly(stream, Interruptible::Yes, *static_cast<const char**>(user));
        }
      },
      &entry);
}

void finish_waiting_call(Stream& stream, bool is_queued) {
  if (!is_queued) {
    raise_failures(stream);
  } else if (capture_of(stream) == nullptr) {
    synchronize_stream(stream);
  }
}

void for_each_created_stream(c10::DeviceIndex device, void (*visit)(Stream&, void*), void* user) {
  DeviceStreams* streams = all_streams[device].load(std::memory_order_acquire);
  if (!streams) {
    return;
  }
  for (Stream& stream : streams->fixed) {
    if (stream.is_created.load(std::memory_order_acquire)) {
      visit(stream, user);
    }
  }
  // Elements never move and are never removed. They are visited without the lock, which must
  // not be held during a driver call.
  for (ExternalStream* external = streams->newest.load(std::memory_order_acquire); external != nullptr;
       external = external->next) {
    if (external->stream.is_created.load(std::memory_order_acquire)) {
      visit(external->stream, user);
    }
  }
}

void forget_streams(c10::DeviceIndex device) noexcept {
  DeviceStreams* streams = all_streams[device].load();
  if (streams == nullptr) {
    return;
  }
  const auto forget = [](Stream& stream) {
    stream.is_created.store(false);
    stream.has_pending.store(false);
    stream.capture.store(nullptr);
  };
  for (Stream& stream : streams->fixed) {
    forget(stream);
  }
  // Take no lock: in a child it may be held by a thread that does not exist there. The links
  // never change once they are visible.
  for (ExternalStream* external = streams->newest.load(std::memory_order_acquire); external != nullptr;
       external = external->next) {
    forget(external->stream);
  }
}

}  // namespace detail

}  // namespace outboard

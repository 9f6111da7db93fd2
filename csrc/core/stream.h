// SPDX-License-Identifier: BSD-3-Clause
// Streams: a default stream a device, 32 pooled streams a priority a device, external streams. Each driver stream is
// made on its first use and lives as long as the device; a StreamState never moves, so a pointer to it stays valid.
//
// A c10::StreamId is 0 for the default stream, 1 + 32 * slot + index for a pooled one (slot 0 is priority 0, slot n is
// priority -n), and kFirstExternalStreamId + n for the n-th external one, which a table maps to the driver's handle.
#pragma once

#include <c10/core/Stream.h>
#include <torch_outboard/driver.h>

#include <atomic>
#include <exception>
#include <mutex>

#include "core/blocking.h"
#include "core/driver.h"
#include "core/export.h"
#include "core/failure.h"
#include "core/wait.h"

namespace outboard {

constexpr int kStreamsPerPriority = 32;
constexpr int kMaxPriorities = 8;
constexpr c10::StreamId kFirstExternalStreamId = 1 << 20;

// An error that could not be raised where it happened: the first, kept until somebody can.
class OUTBOARD_API ErrorSlot {
 public:
  void set(std::exception_ptr error) noexcept;  // later errors are dropped until the first is taken
  bool is_set() const noexcept { return is_set_.load(std::memory_order_acquire); }
  void raise();  // rethrows and clears, if set

 private:
  std::atomic<bool> is_set_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

class Capture;

struct StreamState {
  c10::DeviceIndex device = 0;
  int8_t priority = 0;
  bool is_external = false;
  c10::StreamId id = 0;
  std::atomic<bool> is_made{false};
  uint64_t handle = 0;  // valid once is_made
  StreamFailures failures;  // of the host work that was queued on it; see core/failure.h
  std::atomic<Capture*> capture{nullptr};  // the graph capture that takes what is queued; see core/capture.h
  std::atomic<const char*> last_work{nullptr};  // what was queued last, by name; for who asks why a wait lasts
};

using Stream = StreamState;  // outboard::Stream& is how the core names a stream

namespace detail {
OUTBOARD_API void finish_waiting_call(Stream& stream, bool is_queued);
}

// The stream's driver handle; makes the driver stream (and opens the device) on first use.
OUTBOARD_API uint64_t make_stream(Stream& stream);
inline uint64_t stream_handle(Stream& stream) {
  // is_made does not survive a fork or a lost device by itself, so those reset it.
  return C10_LIKELY(stream.is_made.load(std::memory_order_acquire)) ? stream.handle : make_stream(stream);
}

// By id; raises ValueError for an id or a device that is none.
OUTBOARD_API Stream& get_stream(c10::DeviceIndex device, c10::StreamId id);
OUTBOARD_API Stream& default_stream(c10::DeviceIndex device);
// Next of the 32 pooled streams of that priority, round-robin; the priority is clamped to what the device has.
OUTBOARD_API Stream& pool_stream(c10::DeviceIndex device, int priority);
// Wraps a driver's handle that somebody else owns; the same handle gives the same stream.
OUTBOARD_API Stream& external_stream(c10::DeviceIndex device, uint64_t handle);

// The thread's current stream of that device; the default stream at first. Neither opens anything.
OUTBOARD_API Stream& current_stream(c10::DeviceIndex device) noexcept;
OUTBOARD_API void set_current_stream(Stream& stream) noexcept;

// Whether all queued work is done. Never blocks, never raises what the work failed with. CaptureError on a stream that
// captures, which has nothing to ask for; so do the next.
OUTBOARD_API bool query_stream(Stream& stream);
// Waits, then raises the first failure of the work queued before, on this stream or on one that it waited for, once.
OUTBOARD_API void synchronize_stream(Stream& stream, Leave leave = Leave::Never);
// Only waits, also for a stream that captures: for what the driver was given before. What the work has failed with is
// left to the next wait that is a user's. For what owns memory.
OUTBOARD_API void drain_stream(Stream& stream);

// Runs fn(user) in the stream's order: through the driver's host_callback, or else after a wait on the calling thread.
// Returns true if it was queued, false if it has already run: then a failure that it reported is known, and for
// tell_failures to raise. Once this returned, fn was or will be called exactly once; if it raises, fn is not called. CaptureError on a stream that captures: what can run again is a HostCommand.
// `name` is what a profiler calls it: it lives as long as the process, and may be null.
OUTBOARD_API bool queue_host_work(Stream& stream, ob_host_fn fn, void* user, const char* name);
// Waits for the stream, raises what it has failed with, and runs fn(user) on this thread: for a caller that waits for
// the result anyway, and memory that the host reaches. Capture and `name` as above.
OUTBOARD_API void wait_and_run(Stream& stream, ob_host_fn fn, void* user, const char* name);
// Ends a call that queued work, once that owns nothing of the caller's: raises the failure of what has run within the
// call (`is_queued` is false), and waits for the work if OUTBOARD_BLOCKING says so.
inline void finish_call(Stream& stream, bool is_queued = true) {
  if (C10_UNLIKELY(!is_queued || waits_for_calls())) {
    detail::finish_waiting_call(stream, is_queued);
  }
}
// Whether queue_host_work queues.
OUTBOARD_API bool has_host_queue() noexcept;

inline c10::Stream to_c10(const Stream& stream) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, stream.device), stream.id);
}
inline Stream& from_c10(const c10::Stream& stream) {
  return get_stream(stream.device_index(), stream.id());
}

namespace detail {
// Raises what stream_synchronize gave. An external stream is then left out of waits for the device until it is used again.
void check_wait(ob_status status, Stream& stream);
// With Leave::OnSignal, where a signal may end a wait in `entry` and the driver has stream_query: waits for what is queued
// on a made stream, and raises if a signal ends that. The driver's own wait, which tells the failures, is then a short one.
OUTBOARD_API void wait_until_left(Stream& stream, Leave leave, const char* entry);
// The same for all streams of a device, before a wait for the whole of it.
void wait_until_left(c10::DeviceIndex device, Leave leave);
// Calls visit(stream) for each stream of the device that was made.
void for_each_made_stream(c10::DeviceIndex device, void (*visit)(Stream&, void*), void* user);
// In a forked child, or of a lost device: every stream must pass make_stream, which raises.
void forget_streams(c10::DeviceIndex device) noexcept;
}  // namespace detail

}  // namespace outboard

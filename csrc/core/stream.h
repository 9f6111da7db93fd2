// SPDX-License-Identifier: BSD-3-Clause
// Streams: one default stream per device, 32 pooled streams per priority and device, and external
// streams. A driver stream is created on first use and lives as long as the device. A StreamState
// never moves, so pointers to it stay valid.
//
// A c10::StreamId is 0 for the default stream and 1 + 32 * slot + index for a pooled stream (slot 0
// is priority 0, slot n is priority -n). The n-th external stream has kFirstExternalStreamId + n; a
// table maps it to the driver's handle.
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

// An error that could not be raised where it happened. The first error is
// kept until a caller can raise it.
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
struct PendingList;

struct StreamState {
  c10::DeviceIndex device = 0;
  int8_t priority = 0;
  bool is_external = false;
  c10::StreamId id = 0;
  std::atomic<bool> is_created{false};
  uint64_t handle = 0;  // valid once is_created
  std::atomic<bool> has_pending{false};  // work waits on its list; see core/pending.h
  std::atomic<bool> is_handle_exposed{false};  // a caller has the handle, and may queue work below the core
  std::atomic<PendingList*> pending{nullptr};
  StreamFailures failures;  // failures of its queued work; see core/failure.h
  std::atomic<Capture*> capture{nullptr};  // the graph capture that takes its queued work; see core/capture.h
  std::atomic<const char*> last_work{nullptr};  // name of the work queued last, for reports of long waits
};

using Stream = StreamState;  // the core passes streams as outboard::Stream&

namespace detail {
OUTBOARD_API void finish_waiting_call(Stream& stream, bool is_queued);
OUTBOARD_API void flush_for_handle(Stream& stream);
}  // namespace detail

// Pass all pending work of the stream to the driver, and return its driver handle. Create the
// driver stream, and open the device, on first use.
OUTBOARD_API uint64_t make_stream(Stream& stream);
inline uint64_t stream_handle(Stream& stream) {
  if (C10_UNLIKELY(stream.has_pending.load(std::memory_order_acquire))) {
    detail::flush_for_handle(stream);
  }
  // A fork and a lost device reset is_created.
  return C10_LIKELY(stream.is_created.load(std::memory_order_acquire)) ? stream.handle : make_stream(stream);
}

// Return the stream by id. Raise ValueError for an invalid id or device.
OUTBOARD_API Stream& get_stream(c10::DeviceIndex device, c10::StreamId id);
OUTBOARD_API Stream& default_stream(c10::DeviceIndex device);
// Return the next of the 32 pooled streams of that priority, round-robin. The priority is
// clamped to the device's range.
OUTBOARD_API Stream& pool_stream(c10::DeviceIndex device, int priority);
// Wrap a driver handle that the caller owns. The same handle returns the same stream.
OUTBOARD_API Stream& external_stream(c10::DeviceIndex device, uint64_t handle);

// Get or set the thread's current stream of that device; the default stream at
// first. Neither opens anything.
OUTBOARD_API Stream& current_stream(c10::DeviceIndex device) noexcept;
OUTBOARD_API void set_current_stream(Stream& stream) noexcept;

// Return true if all queued work is done. Never block, and never raise the work's failures. Raise
// CaptureError on a capturing stream, whose work has not run; the next two do so too.
OUTBOARD_API bool query_stream(Stream& stream);
// Wait, then raise, once, the first failure of work queued before, on this stream or on streams
// that it waited for.
OUTBOARD_API void synchronize_stream(Stream& stream, Interruptible interruptible = Interruptible::No);
// Wait without raising failures, for owners of memory. On a capturing stream, wait for the work
// queued before the capture. The user's next wait raises the failures.
OUTBOARD_API void drain_stream(Stream& stream);

// Run fn(user) in the stream's order, through the driver's host_callback, or else on
// the calling thread after a wait.
//
// Return true if it was queued. Return false if it has already run: a failure that it reported
// is known then, and raise_failures raises it. After the return, fn was called or will be
// called exactly once; if this raises, fn is not called. Raise CaptureError on a capturing
// stream: work that can run again is a HostCommand. `name` is its name in profiles; it lives
// as long as the process, and may be null.
OUTBOARD_API bool queue_host_work(Stream& stream, ob_host_fn fn, void* user, const char* name);
// Wait for the stream, raise its failures, and run fn(user) on this thread. For a caller that waits
// for the result anyway, on memory that the host reaches. Capture and `name` as above.
OUTBOARD_API void wait_and_run(Stream& stream, ob_host_fn fn, void* user, const char* name);
// End a call that queued work, once the work owns nothing of the caller's. Raise the
// failure of work that ran within the call (`is_queued` is false), and wait for the
// work if OUTBOARD_BLOCKING is set.
inline void finish_call(Stream& stream, bool is_queued = true) {
  if (C10_UNLIKELY(!is_queued || waits_for_calls())) {
    detail::finish_waiting_call(stream, is_queued);
  }
}
// Return true if queue_host_work queues.
OUTBOARD_API bool has_host_queue() noexcept;

inline c10::Stream to_c10(const Stream& stream) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, stream.device), stream.id);
}
inline Stream& from_c10(const c10::Stream& stream) {
  return get_stream(stream.device_index(), stream.id());
}

namespace detail {
// Raise the error that stream_synchronize returned. Waits for the device then skip an external
// stream until it is used again.
void check_wait(ob_status status, Stream& stream);
// Wait for the work queued on a created stream, and raise if a signal ends the wait. Does nothing
// unless `interruptible` is Yes, a signal may end a wait in `entry`, and the driver has
// stream_query. The driver's own wait afterwards, which raises the failures, is short.
OUTBOARD_API void wait_interruptibly(Stream& stream, Interruptible interruptible, const char* entry);
// Do the same for all streams of a device, before a wait for the whole device.
void wait_interruptibly(c10::DeviceIndex device, Interruptible interruptible);
// Call visit(stream) for each stream of the device that was created.
void for_each_created_stream(c10::DeviceIndex device, void (*visit)(Stream&, void*), void* user);
// Make every stream pass make_stream again, which raises. For a forked child and for a lost device.
void forget_streams(c10::DeviceIndex device) noexcept;
}  // namespace detail

}  // namespace outboard

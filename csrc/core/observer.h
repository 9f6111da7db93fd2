// SPDX-License-Identifier: BSD-3-Clause
// The interface of observers of streams, which receive accesses to memory and the operations that
// order them. The stream sanitizer is such an observer. Without an observer each call site costs
// one load.
#pragma once

#include <c10/core/Device.h>
#include <c10/macros/Macros.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/export.h"
#include "core/stream.h"

namespace outboard {

// The bytes of a storage that an access touches: `bytes` from `begin` on, counted from the
// storage's first byte. If `pitch` is not 0, only the first `width` of every `pitch` bytes.
struct ObservedAccess {
  uint64_t storage;  // address of the storage's first byte
  uint64_t begin;
  uint64_t bytes;
  uint64_t width;
  uint64_t pitch;
  bool is_write;
};

enum class ObservedOrder : int {
  EventRecord = 0,  // a record on the stream
  EventWait = 1,    // the stream waits for the event
  EventSync = 2,    // the host has waited for the event, or has seen that it is done
  StreamSync = 3,   // the same for a stream: the host has waited for it
  DeviceSync = 4    // the same for all streams of a device
};

// An observer of queued work. Members are called on the thread that queues the work, with no lock
// held. If a member raises, the observed call fails.
class OUTBOARD_API Observer {
 public:
  virtual ~Observer() = default;
  virtual void access(const char* op, const Stream& stream, const ObservedAccess* accesses, size_t count) = 0;
  // Note an ordering. `event` is the driver's handle, 0 if no event takes part. Where a stream
  // waits for it, the event may be of another device.
  virtual void order(ObservedOrder kind, c10::DeviceIndex device, c10::StreamId stream, c10::DeviceIndex event_device,
                     uint64_t event) = 0;
  // Note an allocation: earlier accesses to the memory belong to another owner. The memory is from
  // the pool of `stream`, whose work is ordered after that stream's work on the previous owner's
  // data.
  virtual void allocate(c10::DeviceIndex device, uint64_t address, size_t bytes, c10::StreamId stream) = 0;
  // Note that reuse of memory waits for the work of a stream.
  virtual void record(c10::DeviceIndex device, uint64_t address, c10::StreamId stream) = 0;
  // Note that freed memory is filled with the pattern of this number (memory/poison.h).
  virtual void poison(c10::DeviceIndex device, uint64_t address, size_t bytes, uint64_t number) = 0;
  // Note a copy that the caller does not wait for, from or to pinned memory of the host.
  virtual void host_copy(const char* op, const Stream& stream, uint64_t address, size_t bytes, bool is_write) = 0;
  // Note that an operator of the host reads or writes pinned memory now.
  virtual void host_access(const char* op, uint64_t address, size_t bytes, bool is_write) = 0;
  // Note an allocation of pinned memory.
  virtual void host_allocate(uint64_t address, size_t bytes) = 0;
  // Note accesses that a capture records, which each replay makes.
  virtual void capture(const char* op, const Stream& stream, const ObservedAccess* accesses, size_t count) = 0;
  // Note that the current capture became the graph `graph`, or that the graph is replayed on a
  // stream.
  virtual void graph(bool is_replay, const Stream& stream, uint64_t graph) = 0;
};

namespace detail {
OUTBOARD_API extern std::atomic<Observer*> active_observer;
OUTBOARD_API bool is_unobserved_thread() noexcept;
}  // namespace detail

// A scope whose accesses and waits are not reported to the observer: a waiting thread of the core
// orders nothing for the program, and the core reports the accesses of a whole call itself. Records
// of events and waits of streams are still reported.
class OUTBOARD_API DisableObserver {
 public:
  DisableObserver() noexcept;
  ~DisableObserver();
  DisableObserver(const DisableObserver&) = delete;
  DisableObserver& operator=(const DisableObserver&) = delete;

 private:
  bool was_disabled_;
};

// Return the observer, also of unobserved code.
inline Observer* observer_of_all() noexcept {
  return detail::active_observer.load(std::memory_order_acquire);
}
inline Observer* observer() noexcept {
  Observer* const active = observer_of_all();
  return C10_UNLIKELY(active != nullptr) && detail::is_unobserved_thread() ? nullptr : active;
}
// Install the observer; null removes it. It must live as long as the process.
inline void set_observer(Observer* observer) noexcept {
  detail::active_observer.store(observer, std::memory_order_release);
}

inline void observe_order(ObservedOrder kind, c10::DeviceIndex device, c10::StreamId stream,
                          c10::DeviceIndex event_device = 0, uint64_t event = 0) {
  const bool is_of_streams = kind == ObservedOrder::EventRecord || kind == ObservedOrder::EventWait;
  if (Observer* active = is_of_streams ? observer_of_all() : observer(); C10_UNLIKELY(active != nullptr)) {
    active->order(kind, device, stream, event_device, event);
  }
}

}  // namespace outboard

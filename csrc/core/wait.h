// SPDX-License-Identifier: BSD-3-Clause
// Waits for the driver, of any length. A long wait is reported once: a thread reads the notes of
// the waiting threads, and each note costs the waiter two stores. Ctrl-C ends a wait that the user
// requested, if the driver can query whether the work is done. Such a wait polls, because a wait
// inside the driver cannot be interrupted.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "core/blocking.h"
#include "core/export.h"

namespace outboard {

struct StreamState;

// A call that may take long, from construction to destruction. `entry` is the driver's entry or
// another name for the call. The texts live as long as the process. `what` names the object of the
// wait, if it is not the work of `stream`, which may be null. The device may be OB_HOST. A nested
// call on the same thread is part of the outer call.
class OUTBOARD_API TrackedCall {
 public:
  TrackedCall(const char* entry, c10::DeviceIndex device, const StreamState* stream = nullptr,
              const char* what = nullptr);
  ~TrackedCall();
  TrackedCall(const TrackedCall&) = delete;
  TrackedCall& operator=(const TrackedCall&) = delete;

 private:
  bool is_noted_;
};

// The same, without holding the interpreter lock.
class OUTBOARD_API TrackedWait {
 public:
  TrackedWait(const char* entry, c10::DeviceIndex device, const StreamState* stream = nullptr,
              const char* what = nullptr)
      : call_(entry, device, stream, what) {}
  TrackedWait(const TrackedWait&) = delete;
  TrackedWait& operator=(const TrackedWait&) = delete;

 private:
  BlockingRegion blocking_;
  TrackedCall call_;
};

// Receives reports of long waits; without a receiver, they go to standard error. Called on its own
// thread, with no lock held.
using WaitReporter = void (*)(const std::string& text);
OUTBOARD_API void set_wait_reporter(WaitReporter reporter) noexcept;
// Set the duration after which a wait is reported: 30 seconds, except in tests.
OUTBOARD_API void set_long_wait(std::chrono::milliseconds limit);

// Two functions. One returns whether a signal may end a wait in an entry on the calling thread. The
// other handles pending signals, and raises if one of them ends the wait.
struct InterruptHooks {
  bool (*can_interrupt)(const char* entry);
  void (*handle)();
};
OUTBOARD_API void set_interrupt_hooks(InterruptHooks hooks) noexcept;

// Whether a signal may end the wait: Yes for the user's own wait (synchronize()), No if
// something relies on its completion, such as the memory that a copy writes to.
enum class Interruptible : bool { No, Yes };

namespace detail {
OUTBOARD_API bool can_interrupt(const char* entry);
// Poll until the device's work is done, and handle signals meanwhile. Pass on a handler's
// exception.
OUTBOARD_API void poll_until_done(const TrackedWait& waiting, c10::DeviceIndex device, bool (*is_done)(void*),
                                  void* user);
// Handle pending signals, on a thread that can_interrupt. Pass on the handler's exception.
OUTBOARD_API void handle_signals();
// Note a driver call on a thread of the core. The process waits for these calls before it exits;
// the wait returns false if a signal ends it.
OUTBOARD_API void begin_own_call() noexcept;
OUTBOARD_API void end_own_call() noexcept;
// Start a thread with signals blocked: the host program's handlers expect the program's own
// threads. Raise std::system_error if no thread can be started.
OUTBOARD_API std::thread new_thread(std::function<void()> body);
// Start such a thread, for the life of the process. Return false if no thread can be started.
OUTBOARD_API bool start_thread(std::function<void()> body);
bool wait_for_own_calls() noexcept;
// Stop reporting waits when the process exits.
OUTBOARD_API void stop_reporting_waits();
}  // namespace detail

// Wait for another thread, within `waiting`. The lock is held at the call and at the return. A
// signal may end the wait, which then raises with the lock released: nothing may rely on its end.
template <typename IsDone>
void wait_for_thread(const TrackedWait&, std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                     IsDone is_done) {
  if (!detail::can_interrupt("")) {
    changed.wait(lock, is_done);
    return;
  }
  while (!changed.wait_for(lock, std::chrono::milliseconds(20), is_done)) {
    lock.unlock();
    detail::handle_signals();
    lock.lock();
  }
}

}  // namespace outboard

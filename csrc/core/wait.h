// SPDX-License-Identifier: BSD-3-Clause
// Waits for the driver, however long they last. What lasts is told, once a wait: a thread looks at the notes that waiting
// threads keep, which cost these two stores. And a wait that a user asked for can be left by Ctrl-C, if the driver can be
// asked whether the work is done: it is then asked again and again, since what blocks in the driver can't be interrupted.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

#include "core/blocking.h"
#include "core/export.h"

namespace outboard {

struct StreamState;

// A call that may last, from its construction to its end: of the driver's entry `entry`, or of what the name says. The
// texts live as long as the process. `what` is waited for if it isn't the work of `stream`, which may be null. The device
// may be OB_HOST. Within another call of the same thread it is part of that.
class OUTBOARD_API NotedCall {
 public:
  NotedCall(const char* entry, c10::DeviceIndex device, const StreamState* stream = nullptr,
            const char* what = nullptr);
  ~NotedCall();
  NotedCall(const NotedCall&) = delete;
  NotedCall& operator=(const NotedCall&) = delete;

 private:
  bool is_noted_;
};

// The same without the interpreter lock.
class OUTBOARD_API Waiting {
 public:
  Waiting(const char* entry, c10::DeviceIndex device, const StreamState* stream = nullptr, const char* what = nullptr)
      : call_(entry, device, stream, what) {}
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  BlockingRegion blocking_;
  NotedCall call_;
};

// Who is told of a wait that has lasted long; nobody: the standard error. Called on a thread of its own, with no lock held.
using WaitTeller = void (*)(const std::string& text);
OUTBOARD_API void set_wait_teller(WaitTeller teller) noexcept;
// How long that is: 30 seconds but for tests.
OUTBOARD_API void set_long_wait(std::chrono::milliseconds limit);

// Whether a signal may end a wait in this entry on the calling thread, and what handles the signals that have come: it
// raises if one of them ends the wait.
struct InterruptHooks {
  bool (*can_interrupt)(const char* entry);
  void (*handle)();
};
OUTBOARD_API void set_interrupt_hooks(InterruptHooks hooks) noexcept;

// Whose wait it is: the user's own (synchronize()), which a signal may end, or one whose end something relies on, as the
// memory that a copy writes to.
enum class Leave : bool { Never, OnSignal };

namespace detail {
OUTBOARD_API bool can_interrupt(const char* entry);
// Asks until the work is done, and handles signals meanwhile: raises what that raises.
OUTBOARD_API void ask_until_done(const Waiting& waiting, bool (*is_done)(void*), void* user);
// Handles the signals that have come, on a thread that can_interrupt: raises what that raises.
OUTBOARD_API void handle_signals();
// Calls of the driver's on threads of the core's own. At the end of the process they are waited for, unless a signal ends
// that: false then.
OUTBOARD_API void begin_own_call() noexcept;
OUTBOARD_API void end_own_call() noexcept;
// Starts a thread that takes no signals: they are the host program's, whose threads have the handlers in mind. False if
// there are no more threads.
OUTBOARD_API bool start_thread(std::function<void()> body);
bool wait_for_own_calls() noexcept;
// At the end of the process: nothing is told any more.
OUTBOARD_API void stop_telling_of_waits();
}  // namespace detail

// Waits for another thread, within `waiting`; the lock is held at the call and at the return. A signal may end the wait,
// which then raises with the lock given up: nothing may rely on its end.
template <typename IsDone>
void wait_for_thread(const Waiting&, std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
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

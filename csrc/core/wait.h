// SPDX-License-Identifier: BSD-3-Clause
// Waits for the driver, however long they last. What lasts is told, once a wait: a thread looks at the notes that waiting
// threads keep, which cost these two stores. And a wait that a user asked for can be left by Ctrl-C, if the driver can be
// asked whether the work is done: it is then asked again and again, since what blocks in the driver can't be interrupted.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <string>

#include "core/blocking.h"
#include "core/export.h"

namespace outboard {

struct StreamState;

// A wait that may last, from its construction to its end. `entry` lives as long as the process; `stream` is null for a
// wait for the whole device. Within another one of the same thread it is part of that.
class OUTBOARD_API Waiting {
 public:
  Waiting(const char* entry, c10::DeviceIndex device, const StreamState* stream = nullptr);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  BlockingRegion blocking_;
  bool is_noted_;
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
// At the end of the process: nothing is told any more.
OUTBOARD_API void stop_telling_of_waits();
}  // namespace detail

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Pending work: work that waits on the host for a program. If a launch's program is still being
// built, the launch is added to its stream's list. Subsequent launches, fills and copies are added
// too. Everything else goes through stream_handle() or a wait, which first pass the list to the
// driver, so that the driver receives the stream's work in order. The program's threads do this,
// not threads of the core: work that is ready goes to the driver together with the next work.
// Thread-safe.
//
// Such work fails after its call returned: the next wait for the stream raises the failure
// (core/failure.h).
#pragma once

#include <memory>

#include "core/capture.h"
#include "core/export.h"
#include "core/stream.h"

namespace outboard {

// An object that a launch waits for, such as the build of its program.
class OUTBOARD_API Awaited {
 public:
  virtual ~Awaited() = default;
  virtual bool is_ready() const noexcept = 0;
  // Return the driver's kernel once the wait is over. Raise the failure if there is no kernel.
  virtual uint64_t kernel() const = 0;
  // Called every tenth of a second by a waiting thread, and once at the end of the wait.
  virtual void show_wait(bool is_at_end) const noexcept = 0;
};
// Notify the threads that wait for an Awaited object. Call it after is_ready() has become true.
OUTBOARD_API void notify_ready();
// Wait for the object. Return at once if it is over.
OUTBOARD_API void wait_until_ready(const Awaited& awaited, const Stream& stream, const char* name,
                                   Interruptible interruptible);

// Return true if this thread's work may wait on the stream's list: the stream is not capturing, no
// caller has its handle and may queue work below the core, no call waits for its work, and no
// profile is recorded.
OUTBOARD_API bool may_add_pending(const Stream& stream) noexcept;

inline bool has_pending(const Stream& stream) noexcept {
  return C10_UNLIKELY(stream.has_pending.load(std::memory_order_acquire));
}

// Add work to the list, and pass work that is ready to the driver. `awaited` may be null: the work
// then waits only for the work before it. `name` lives as long as the process.
OUTBOARD_API void add_pending(Stream& stream, std::unique_ptr<DriverCommand> work,
                              std::shared_ptr<const Awaited> awaited, const char* name);

// Pass work that is ready to the driver, without waiting. Return false if some work is left.
OUTBOARD_API bool submit_ready(Stream& stream);
// Wait until the list is empty. Return at once on the thread that is passing the list to the
// driver.
OUTBOARD_API void flush_pending(Stream& stream, Interruptible interruptible = Interruptible::Yes);
// Do the same for all streams of a device, or of all devices.
OUTBOARD_API void flush_pending(c10::DeviceIndex device, Interruptible interruptible);
OUTBOARD_API void flush_all_pending(Interruptible interruptible);
// Drop the lists when the process exits.
void drop_pending() noexcept;

}  // namespace outboard

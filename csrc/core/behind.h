// SPDX-License-Identifier: BSD-3-Clause
// Work that waits on the host for a program. A launch whose program is being built is put on a list
// of its stream, which is then behind. Launches, fills and copies that follow are added to the
// list. Everything else passes stream_handle() or a wait, and these first bring the list to the
// driver, which therefore gets the stream's work in order. Threads of the program do that, none of
// ours: what is ready goes to the driver with the next work. Thread-safe.
//
// Work fails there after its call: the next wait for the stream raises it (core/failure.h).
#pragma once

#include <memory>

#include "core/capture.h"
#include "core/export.h"
#include "core/stream.h"

namespace outboard {

// What a launch waits for, such as the build of its program.
class OUTBOARD_API Awaited {
 public:
  virtual ~Awaited() = default;
  virtual bool is_over() const noexcept = 0;
  // Return the driver's kernel once it is over. Raise the failure if there is none.
  virtual uint64_t kernel() const = 0;
  // Called every tenth of a second by a thread that waits for it, and once at the end of the wait.
  virtual void show_wait(bool is_at_end) const noexcept = 0;
};
// Notify the threads that wait for one. Call it after is_over() has become true.
OUTBOARD_API void tell_over();
// Wait for it. Return at once if it is over.
OUTBOARD_API void wait_until_over(const Awaited& awaited, const Stream& stream, const char* name, Leave leave);

// Return true if work of this thread may wait on the stream's list: the stream does not capture,
// its handle is not with a caller who may queue work below the core, no call waits for its work,
// and no profile is recorded.
OUTBOARD_API bool may_fall_behind(const Stream& stream) noexcept;

inline bool is_behind(const Stream& stream) noexcept {
  return C10_UNLIKELY(stream.is_behind.load(std::memory_order_acquire));
}

// Add work to the list, and bring to the driver what is ready. `awaited` may be null: the work
// waits for what is before it. `name` lives as long as the process.
OUTBOARD_API void fall_behind(Stream& stream, std::unique_ptr<DriverCommand> work,
                              std::shared_ptr<const Awaited> awaited, const char* name);

// Bring what is ready to the driver, without a wait. Return false if some is left.
OUTBOARD_API bool advance(Stream& stream);
// Wait for the list to be empty. Return at once on the thread that is bringing it to the driver.
OUTBOARD_API void catch_up(Stream& stream, Leave leave = Leave::OnSignal);
// Do the same for all streams of a device, or of all devices.
OUTBOARD_API void catch_up(c10::DeviceIndex device, Leave leave);
OUTBOARD_API void catch_up_all(Leave leave);
// Drop the lists, at the end of the process.
void drop_behind() noexcept;

}  // namespace outboard

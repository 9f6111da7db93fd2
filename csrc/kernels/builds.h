// SPDX-License-Identifier: BSD-3-Clause
// Builds of programs on a pool of threads. A launch is queued while its program is built, and waits
// for it in the stream's order (core/behind.h), so that the caller goes on to the next plan.
//
// A call whose program is refused can go to another provider only if nothing is queued for it. So
// a program that was refused before is waited for, which later processes know from disk. So is the
// first program of a process, and each one once the driver has refused a new one. Thread-safe.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

#include "core/behind.h"
#include "core/export.h"
#include "kernels/program.h"

namespace outboard::kernels {

// Set how many threads build at a time; 0 for none: each caller builds. If it is not called, as
// many as there are processors, at most eight.
OUTBOARD_API void set_build_threads(int count);
// Begin no build any more, at the end of the process. Those that were not begun fail.
OUTBOARD_API void end_builds() noexcept;

// Note that the driver has built a program for a caller that waited.
void note_built() noexcept;
// Note that the driver has refused a program. Return true if later processes know it.
bool note_refused(c10::DeviceIndex device, const ProgramText& program);
// Return true if launches on the stream may be queued while their programs are built.
OUTBOARD_API bool may_build_behind(const Stream& stream) noexcept;

// A build on the pool.
class OUTBOARD_API BegunBuild : public Awaited {
 public:
  // Once it is over: return true if it has failed, and if that was raised.
  virtual bool has_failed() const noexcept = 0;
  virtual bool is_told() const noexcept = 0;
  // Wait for it, for a caller that has queued nothing. Return the kernel, or raise the failure.
  virtual uint64_t wait(c10::DeviceIndex device, const char* name) const = 0;
};
// Start one. Return null if there is no pool, or no thread can be started. `on_refusal` is called
// on the pool's thread if the driver refuses the program.
OUTBOARD_API std::shared_ptr<const BegunBuild> start_build(c10::DeviceIndex device, const ProgramText& program,
                                                           const std::string& entry, const std::string& name,
                                                           std::function<void()> on_refusal);

// What the pool has done and has to do.
struct BuildCounts {
  size_t waiting = 0;  // not begun
  size_t running = 0;
  size_t built = 0;  // since the process began
  double seconds = 0;  // of all threads, for those
};
OUTBOARD_API BuildCounts count_builds();

// While more than two seconds of building lie before a wait, and the standard error is a terminal,
// write a line there: `before`, how many of how many are built, the time that is left, `behind`.
// With an empty `before` nothing is written, as at first.
OUTBOARD_API void show_builds(const std::string& before, const std::string& behind);

}  // namespace outboard::kernels

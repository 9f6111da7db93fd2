// SPDX-License-Identifier: BSD-3-Clause
// Builds of programs on a pool of threads. A launch is queued while its program is built, and waits
// for it in the stream's order (core/pending.h), so that the caller continues with the next plan.
//
// If a call's program is refused, another provider can run the call only if nothing was queued for
// it. The caller therefore waits for a program that was refused before (later processes know this
// from disk), for the first program of a process, and for every program once the driver has refused
// a new one. Thread-safe.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

#include "core/export.h"
#include "core/pending.h"
#include "kernels/program.h"

namespace outboard::kernels {

// Set the number of threads that build; with 0, each caller builds. Default: one thread per
// processor, at most eight.
OUTBOARD_API void set_build_threads(int count);
// Start no more builds, because the process exits. Pending builds fail.
OUTBOARD_API void end_builds() noexcept;

// Note that the driver has built a program for a caller that waited.
void note_built() noexcept;
// Note that the driver has refused a program. Return true if this was stored for later processes.
bool note_refused(c10::DeviceIndex device, const ProgramText& program);
// Return true if launches on the stream may be queued while their programs are built.
OUTBOARD_API bool may_build_in_background(const Stream& stream) noexcept;

// A build on the pool.
class OUTBOARD_API BackgroundBuild : public Awaited {
 public:
  // Return true if the build is over, has failed, and the failure was raised.
  virtual bool has_failed() const noexcept = 0;
  virtual bool is_raised() const noexcept = 0;
  // Wait for the build, for a caller that has queued nothing. Return the kernel, or raise the
  // failure.
  virtual uint64_t wait(c10::DeviceIndex device, const char* name) const = 0;
};
// Start a build. Return null if there is no pool, or no thread can be started. `on_refusal` is
// called on the pool's thread if the driver refuses the program.
OUTBOARD_API std::shared_ptr<const BackgroundBuild> start_build(c10::DeviceIndex device, const ProgramText& program,
                                                                const std::string& entry, const std::string& name,
                                                                std::function<void()> on_refusal);

// Call `task` once on a thread of the pool, when no build waits. Return false if there is no pool,
// or no thread can be started. Nothing waits for the task, and at the end of the process it may not
// be called.
OUTBOARD_API bool start_task(std::function<void()> task);

// Counts of the pool's finished and pending builds.
struct BuildCounts {
  size_t waiting = 0;  // builds that have not started
  size_t running = 0;
  size_t built = 0;  // since the process began
  double seconds = 0;  // total of all threads, for these builds
};
OUTBOARD_API BuildCounts count_builds();

// Show progress on standard error, if it is a terminal, while a wait has more than two seconds of
// building before it: `prefix`, the number of finished and of all builds, the remaining time,
// `suffix`. By default, and with an empty `prefix`, nothing is written.
OUTBOARD_API void show_builds(const std::string& prefix, const std::string& suffix);

}  // namespace outboard::kernels

// SPDX-License-Identifier: BSD-3-Clause
// Warnings of queued host work. The thread that runs it is a driver's, where they would reach nobody who asked: they are
// kept, a bounded number a stream, and issued after the next wait for the device, on the thread that waits.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/export.h"
#include "core/stream.h"

namespace outboard {

// While it lives, what this thread warns of is kept for `stream`, with `what` to say where it came from. On a thread whose
// warnings reach Python by themselves, because the work runs within the call, nothing is changed.
class OUTBOARD_API KeepWarnings final : public c10::WarningHandler {
 public:
  KeepWarnings(const Stream& stream, const std::string& what);
  KeepWarnings(const KeepWarnings&) = delete;
  KeepWarnings& operator=(const KeepWarnings&) = delete;
  void process(const c10::Warning& warning) override;

 private:
  const Stream& stream_;
  const std::string& what_;
  std::optional<c10::WarningUtils::WarningHandlerGuard> guard_;
};

// While it lives, what this thread warns of is dropped: for work of which only the shape or the error is wanted.
class NoWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}

 private:
  const c10::WarningUtils::WarningHandlerGuard guard_{this};
};

// While it lives, what this thread warns of is collected.
class CollectedWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { warnings_.push_back(warning); }
  std::vector<c10::Warning> take() { return std::move(warnings_); }

 private:
  std::vector<c10::Warning> warnings_;
  const c10::WarningUtils::WarningHandlerGuard guard_{this};
};

// Runs what is run again by the call itself, and drops what it warns of, as that is said again then. Torch says some
// warnings once a process: they are issued here. A call that is refused is not run: `is_asked` has all of them issued.
void run_before_call(const std::function<void()>& run, bool is_asked);

// Issues what is kept for the device; to be called after a wait, with no lock held. Raises what an issuer does: a filter
// may make an error of a warning. What was not issued by then stays for the next wait.
OUTBOARD_API void issue_late_warnings(c10::DeviceIndex device);
// The same for every device. For the end of the process.
OUTBOARD_API void issue_all_late_warnings();

// Takes the place of c10::warn, which writes to the standard error outside torch's own bindings.
using WarningIssuer = void (*)(const c10::Warning& warning);
OUTBOARD_API void set_warning_issuer(WarningIssuer issuer);

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Warnings of queued host work. The work runs on a driver's thread, where the user would not
// see them. A bounded number is kept for each stream and issued after the next wait for the
// device, on the waiting thread.
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

// Keep this thread's warnings for `stream` during its lifetime; `what` states their
// origin. Does nothing on a thread whose warnings reach Python by themselves, because
// the work runs within the call.
class OUTBOARD_API DeferWarnings final : public c10::WarningHandler {
 public:
  DeferWarnings(const Stream& stream, const std::string& what);
  DeferWarnings(const DeferWarnings&) = delete;
  DeferWarnings& operator=(const DeferWarnings&) = delete;
  void process(const c10::Warning& warning) override;

 private:
  const Stream& stream_;
  const std::string& what_;
  std::optional<c10::WarningUtils::WarningHandlerGuard> guard_;
};

// Drop this thread's warnings during its lifetime: for work that runs
// only for its shape or its error.
class NoWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}

 private:
  const c10::WarningUtils::WarningHandlerGuard guard_{this};
};

// Collect this thread's warnings during its lifetime.
class CollectedWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { warnings_.push_back(warning); }
  std::vector<c10::Warning> take() { return std::move(warnings_); }

 private:
  std::vector<c10::Warning> warnings_;
  const c10::WarningUtils::WarningHandlerGuard guard_{this};
};

// Run work that the call itself runs again, and drop its warnings, because the call repeats them.
// Torch issues some warnings only once per process; issue these here. With `refuses_call`, an error
// refuses the call, which then does not run: issue all warnings.
void run_before_call(const std::function<void()>& run, bool refuses_call);

// Issue the warnings that are kept for the device. Call it after a wait, with no lock held.
// Raise if an issuer raises: a filter may turn a warning into an error. The remaining
// warnings stay for the next wait.
OUTBOARD_API void issue_late_warnings(c10::DeviceIndex device);
// Do the same for every device, at the end of the process.
OUTBOARD_API void issue_all_late_warnings();

// A replacement for c10::warn, which writes to the standard error outside torch's own bindings.
using WarningIssuer = void (*)(const c10::Warning& warning);
OUTBOARD_API void set_warning_issuer(WarningIssuer issuer);

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/host_work.h"

#include <c10/util/Exception.h>

#include <exception>
#include <optional>
#include <utility>

#include "core/blocking.h"
#include "core/late_warnings.h"

namespace outboard {

namespace {

// Return the exception being handled, plus the name of what ran ("operator aten::add.out"). If the
// failure is raised after the call, the message also explains how to raise it at the call. A
// c10::Error keeps its type; any other exception becomes a c10::Error. Call it in a catch block.
std::exception_ptr with_name_of(const std::string& what, bool is_late) {
  std::string where = "in " + what + ", which ran on the device's stream";
  if (is_late && !waits_for_calls()) {
    where += "; OUTBOARD_BLOCKING=1 raises it at the call";
  }
  try {
    throw;
  } catch (c10::Error& error) {
    error.add_context(where);
    return std::current_exception();
  } catch (const std::exception& error) {
    return std::make_exception_ptr(c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                              std::string(error.what()) + " (" + where + ")"));
  } catch (...) {
    return std::make_exception_ptr(
        c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, "an unknown exception " + where));
  }
}

// The work that this thread is passing to its driver. If the driver runs it at once, the
// caller's context is already set.
thread_local const HostWork* passed_work = nullptr;

class PassedWorkGuard {
 public:
  explicit PassedWorkGuard(const HostWork* work) : here_(passed_work) { here_ = work; }
  ~PassedWorkGuard() { here_ = nullptr; }
  PassedWorkGuard(const PassedWorkGuard&) = delete;
  PassedWorkGuard& operator=(const PassedWorkGuard&) = delete;

 private:
  const HostWork*& here_;
};

}  // namespace

void HostWork::begin(Stream& stream) {
  position_ = next_position(stream);
  capture_ = capture_of(stream);
  context_ = CallContext::capture();
}

bool HostWork::queue(Owned<HostWork> work, const char* name) {
  Stream& stream = work->stream();
  if (Capture* capture = work->capture_; C10_UNLIKELY(capture != nullptr)) {
    capture->add(stream, std::unique_ptr<HostCommand>(work.release()));
    return false;
  }
  const auto run_once = [](void* user) {
    const Owned<HostWork> passed(static_cast<HostWork*>(user));
    passed->run_at(passed->position_, &HostWork::compute);
  };
  bool is_queued = false;
  {
    const PassedWorkGuard handing(work.get());
    is_queued = queue_host_work(stream, run_once, work.get(), name);  // if it raises, the work never runs
  }
  static_cast<void>(work.release());
  finish_call(stream, is_queued);
  return true;
}

void HostWork::run_at(const WorkPosition& position, void (HostWork::*body)()) noexcept {
  try {
    std::optional<CallContext::Scope> in_context;
    if (this != passed_work) {
      in_context.emplace(context_);
    }
    const DeferWarnings keep_warnings(*position.stream, name());
    const c10::impl::ForceDispatchKeyGuard below_autograd(below_autograd_keys());
    (this->*body)();
  } catch (...) {
    report_failure(position, with_name_of(kind() + name(), /*is_late=*/true));
  }
}

void HostWork::wait_and_run(const char* name) {
  struct Request {
    HostWork& work;
    std::exception_ptr error;
  } request{*this, nullptr};
  const auto run_here = [](void* user) {
    auto& [work, error] = *static_cast<Request*>(user);
    try {
      const c10::impl::ForceDispatchKeyGuard below_autograd(below_autograd_keys());
      work.compute();
    } catch (...) {
      error = with_name_of(work.kind() + work.name(), /*is_late=*/false);
    }
  };
  outboard::wait_and_run(stream(), run_here, &request, name);
  if (request.error) {
    std::rethrow_exception(request.error);
  }
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Work of a call on the host, on the device's memory: an operator's CPU kernel, a compiled kernel,
// or the body of an extension. This is its life:
//
// | step  | thread       | what                                                                       |
// |-------|--------------|----------------------------------------------------------------------------|
// | begin | the caller's | takes the stream, its capture and position, the caller's context |
// | queue | the caller's | passes the work to the driver, or to the graph if the stream captures      |
// | run   | the driver's | computes below autograd, in the caller's context; once, or in each replay  |
// | fail  | the driver's | names the work, and stores the exception in the stream (core/failure.h)    |
// | end   | the driver's | frees the work, or returns it to a pool; work of a graph lives as long     |
//
// The next wait issues the warnings of the work and raises its exception. Nothing is queued for a
// caller who waits for the result: wait_and_run() computes, and raises, on the caller's thread.
#pragma once

#include <memory>
#include <string>

#include "core/capture.h"
#include "core/failure.h"
#include "core/stream.h"
#include "ops/call/call_context.h"

namespace outboard {

class HostWork : public HostCommand {
 public:
  struct End {
    void operator()(HostWork* work) const noexcept { work->end(); }
  };
  template <class Work>
  using Owned = std::unique_ptr<Work, End>;

  explicit HostWork(Stream& stream) { begin(stream); }

  Stream& stream() const noexcept { return *position_.stream; }
  Capture* capture() const noexcept { return capture_; }  // null if the stream does not capture

  // Queue the work, and end the call: raise the failure of work that ran within it. The caller's
  // thread must not use anything of the work afterwards. Return false if the work is in a graph.
  // `name` is as in queue_host_work.
  static bool queue(Owned<HostWork> work, const char* name);
  // Wait for the stream, raise its failures, and compute here. Not while the stream captures.
  void wait_and_run(const char* name);

  void run(const WorkPosition& position) noexcept final { run_at(position, &HostWork::replay); }
  std::string describe() const final { return name(); }

 protected:
  HostWork() = default;  // for a pool
  void begin(Stream& stream);

  virtual const std::string& name() const noexcept = 0;
  virtual const char* kind() const noexcept { return ""; }  // precedes the name in errors: "operator "
  // Compute on the device's memory; an exception becomes the work's failure.
  virtual void compute() = 0;
  // Do the same in a replay. Called several times, perhaps on several threads at once.
  virtual void replay() { compute(); }
  virtual void end() noexcept { delete this; }

 private:
  void run_at(const WorkPosition& position, void (HostWork::*body)()) noexcept;

  WorkPosition position_;
  Capture* capture_ = nullptr;
  CallContext context_;
};

}  // namespace outboard

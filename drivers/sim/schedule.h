// SPDX-License-Identifier: BSD-3-Clause
// When queued work runs, and on which thread.
#pragma once

#include <memory>

#include "stream.h"

namespace sim {

struct Driver;

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // Before the first stream of the first device, and after the last stream is drained.
  virtual void start() {}
  virtual void stop() {}

  // The stream has tasks and is in nobody's hands: called when it was marked active, with no lock held.
  virtual void make_ready(Stream* stream) = 0;

  // Waits until the stream reaches `position`. `may_spin`: look for a moment before going to sleep.
  virtual void wait(Stream* stream, uint64_t position, bool may_spin) = 0;

  // A query found something that is not done.
  virtual void poll() {}
};

// Threads that take streams in turn (normal).
std::unique_ptr<Scheduler> make_worker_scheduler(Driver& driver);

// The waiting thread runs what it draws by lot (lazy).
std::unique_ptr<Scheduler> make_lazy_scheduler(Driver& driver);

// For the inline schedule, in which nothing is ever queued: waiting means for another thread's turn on the stream.
std::unique_ptr<Scheduler> make_inline_scheduler();

}  // namespace sim

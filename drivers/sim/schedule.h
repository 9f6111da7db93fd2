// SPDX-License-Identifier: BSD-3-Clause
// When queued work runs, and on which thread.
#pragma once

#include <atomic>
#include <memory>

#include "stream.h"

namespace sim {

struct Driver;

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // Called before the first stream of the first device, and after the last stream is drained.
  virtual void start() {}
  virtual void stop() {}

  // Note that the stream has tasks and no thread works on it. Called when it was
  // marked active, with no lock held.
  virtual void make_ready(Stream* stream) = 0;

  // Wait until the stream reaches `position`. `may_spin`: spin briefly before sleeping.
  virtual void wait(Stream* stream, uint64_t position, bool may_spin) = 0;

  // Note that an event of the host was completed. Its waiters were given to make_ready.
  virtual void resume() {}

  // Wait until the host waits for work, and nothing can run; or until
  // `is_cancelled`, after a resume().
  virtual void wait_until_needed(const std::atomic<bool>& is_cancelled) { static_cast<void>(is_cancelled); }

  // Note that a query found unfinished work.
  virtual void poll() {}
};

// Make the normal scheduler: threads take streams in turn.
std::unique_ptr<Scheduler> make_worker_scheduler(Driver& driver);

// Make the lazy scheduler: the waiting thread runs tasks that it draws at random.
std::unique_ptr<Scheduler> make_lazy_scheduler(Driver& driver);

// Make the inline scheduler, in which nothing is ever queued: a wait is for
// another thread's turn on the stream.
std::unique_ptr<Scheduler> make_inline_scheduler();

}  // namespace sim

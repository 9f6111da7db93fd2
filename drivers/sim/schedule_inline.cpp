// SPDX-License-Identifier: BSD-3-Clause
// The inline schedule: Driver::queue runs a task at once, on the calling thread.
#include "schedule.h"

namespace sim {
namespace {

// Nothing is queued, so a position that is not reached is another thread's task under way.
class InlineScheduler final : public Scheduler {
 public:
  void make_ready(Stream*) override {}
  void wait(Stream* stream, uint64_t position, bool) override {
    if (stream->is_done(position)) return;
    std::lock_guard turn(stream->inline_mutex);
  }
};

}  // namespace

std::unique_ptr<Scheduler> make_inline_scheduler() {
  return std::make_unique<InlineScheduler>();
}

}  // namespace sim

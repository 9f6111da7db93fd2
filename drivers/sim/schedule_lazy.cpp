// SPDX-License-Identifier: BSD-3-Clause
// The lazy and the pct schedule: nothing runs until the host waits; a seed decides the order.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "driver.h"
#include "schedule.h"
#include "work.h"

namespace sim {
namespace {

// A step chooses one of the runnable streams of all devices, and runs its next task. Streams
// are listed in the order of their creation, and waits are not tasks. So the same calls with
// the same seed run in the same order, whatever the addresses, the clock or the handles are.
//
// `lazy` draws the stream anew at each step. Work behind sixteen operators never comes first.
// `pct` gives streams ranks (probabilistic concurrency testing, Burckhardt et al., ASPLOS 2010):
// the highest runs until one of depth - 1 random steps, at which it falls below all others. Of k
// steps of n streams, a race that needs `depth` ordered steps shows with a probability of at
// least 1 / (n k^(depth-1)). Ranks are drawn again after an epoch, whose length the seed fixes:
// short epochs find races of near steps, long ones those of distant steps. Every other seed has
// one epoch, which lasts as long as the program.
//
// A waiting thread takes steps until the awaited work is done, and leaves all other work where it
// is. A query that finds unfinished work takes one step, but only if nothing was queued since the
// last query. A host that polls and works (an allocator that looks for finished blocks) makes
// nothing run; a host that only polls reaches the end.
class LazyScheduler final : public Scheduler {
 public:
  explicit LazyScheduler(Driver& driver) : driver_(driver), state_(driver.options.seed) {
    if (driver.options.schedule == Schedule::kPct && driver.options.seed % 2 != 0) {
      epoch_length_ = size_t{4} << draw(kEpochLengths);
    }
  }

  void make_ready(Stream*) override { go_on(); }

  void go_on() override {
    const std::lock_guard lock(change_mutex_);
    ++changes_;
    changed_.notify_all();
  }

  void wait(Stream* stream, uint64_t position, bool) override {
    // Records precede the waits that are bound to them, so some stream can run unless all that is
    // left waits for an event that the host completes.
    for (;;) {
      const uint64_t changes = count_changes();
      bool has_run = false;
      {
        const std::lock_guard lock(step_mutex_);
        if (stream->is_done(position)) return;
        has_run = step() || stream->is_done(position);  // the last of it may have been a wait
      }
      if (!has_run) sleep_until_changed(changes);
    }
  }

  void poll() override {
    const uint64_t queued = driver_.queued_count.load(std::memory_order_relaxed);
    if (queued_at_last_poll_.exchange(queued, std::memory_order_relaxed) != queued) return;
    const std::unique_lock lock(step_mutex_, std::try_to_lock);  // a query does not wait for another thread's step
    if (lock.owns_lock() && !step()) note_stall();
  }

  void wait_until_needed(const std::atomic<bool>& is_cancelled) override {
    std::unique_lock lock(change_mutex_);
    const uint64_t stalls = stalls_;
    changed_.wait(lock, [&] { return sleeping_ > 0 || stalls_ != stalls || is_cancelled.load(); });
  }

 private:
  void note_stall() {
    const std::lock_guard lock(change_mutex_);
    ++stalls_;
    changed_.notify_all();
  }

  uint64_t count_changes() {
    const std::lock_guard lock(change_mutex_);
    return changes_;
  }

  void sleep_until_changed(uint64_t changes) {
    std::unique_lock lock(change_mutex_);
    ++sleeping_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return changes_ != changes; });
    --sleeping_;
  }

  // Return false if nothing can run.
  bool step() {
    // A dropped wait may be what another stream waits for, so repeat until no wait is dropped.
    do {
      has_dropped_ = false;
      candidates_.clear();
      for (Stream* stream : driver_.streams_of(OB_HOST)) {
        if (skip_waits(stream)) candidates_.push_back(stream);
      }
    } while (has_dropped_);
    if (candidates_.empty()) return false;
    Stream* stream = is_ranked_ ? highest() : candidates_[draw(candidates_.size())];
    run_task(driver_, *stream, *stream->head());
    complete(stream);
    return true;
  }

  Stream* highest() {
    if (candidates_.size() == 1) return candidates_[0];  // no choice, so no step that counts
    if (epoch_ == 0 || (epoch_length_ != 0 && steps_ == epoch_length_)) begin_epoch();
    ++steps_;
    for (Stream* stream : candidates_) {
      if (stream->drawn == epoch_) continue;
      stream->drawn = epoch_;
      stream->rank = static_cast<int64_t>(draw(size_t{1} << 40));
    }
    const auto by_rank = [](const Stream* a, const Stream* b) { return a->rank < b->rank; };
    Stream* const highest = *std::max_element(candidates_.begin(), candidates_.end(), by_rank);
    if (!is_change()) return highest;
    highest->rank = --lowest_rank_;
    return *std::max_element(candidates_.begin(), candidates_.end(), by_rank);
  }

  void begin_epoch() {
    ++epoch_;
    steps_ = 0;
  }

  // Return whether a rank falls at this step. The epoch's end is unknown, so each step is one of
  // the depth - 1 among those so far, with the same chance.
  bool is_change() { return draw(steps_) < driver_.options.depth - 1; }

  // Drop the fulfilled waits at the head. Return true if a task is at the head now.
  bool skip_waits(Stream* stream) {
    while (const Task* task = stream->head()) {
      if (task->work != Work::kWait) return true;
      if (!task->wait.stream->is_done(task->wait.position)) return false;
      has_dropped_ = true;
      complete(stream);
    }
    return false;
  }

  void complete(Stream* stream) {
    stream->complete_head();  // releases no thread: waits are polled, not slept in
    bool is_over = false;
    {
      std::lock_guard lock(stream->lock);
      stream->is_active = !stream->is_drained();
      is_over = !stream->is_active && stream->is_destroyed;
    }
    if (is_over) driver_.recycle(stream);
  }

  // Return a random number by splitmix64; the bias of the remainder is below 2^-50.
  size_t draw(size_t count) {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<size_t>((z ^ (z >> 31)) % count);
  }

  Driver& driver_;
  std::mutex step_mutex_;  // a step runs host functions, which call no entry: they cannot return here
  uint64_t state_;
  bool has_dropped_ = false;
  std::vector<Stream*> candidates_;

  // The pct schedule's, under step_mutex_.
  static constexpr size_t kEpochLengths = 11;  // 4, 8, … 4096 steps
  const bool is_ranked_ = driver_.options.schedule == Schedule::kPct;
  size_t epoch_length_ = 0;  // 0: one epoch without end
  uint64_t epoch_ = 0;
  size_t steps_ = 0;  // of the epoch
  int64_t lowest_rank_ = 0;

  std::atomic<uint64_t> queued_at_last_poll_{0};

  std::mutex change_mutex_;
  std::condition_variable changed_;
  uint64_t changes_ = 0;  // under change_mutex_: work that was queued, and events that the host completed
  uint64_t stalls_ = 0;   // under change_mutex_: queries that found work which cannot run
  int sleeping_ = 0;      // under change_mutex_: threads that wait for such work
};

}  // namespace

std::unique_ptr<Scheduler> make_lazy_scheduler(Driver& driver) {
  return std::make_unique<LazyScheduler>(driver);
}

}  // namespace sim

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
//
// `pct` gives streams ranks (probabilistic concurrency testing, Burckhardt et al., ASPLOS 2010).
// The highest runs. At depth - 1 decisions, drawn beforehand, the stream that would run falls to
// the i-th rank below all others instead, i being the number of the draw, and the decision is taken
// again. A race of depth d is d + 1 steps s0 … sd such that each run in this order fails. Let c be
// the decisions among several streams other than those at which one falls, and n the streams. The
// order arises if the stream of s1 has the lowest rank at first (one of n), and the stream of each
// si of i > 1 falls to the rank i - 1 when it would run si: then si runs only if nothing else can,
// so s0 … s(i-1) are done, or wait for si and the order cannot arise. Each fall is one of at most c
// + d - 1 decisions. So the probability is at least 1 / (n (c + d - 1)^(d-1)). It is the published
// bound with k = c + d - 1: a stream falls before its step, not after it, so falls count as steps.
// A decision for a fall that is not needed is one after the last.
//
// Ranks and falls are drawn again after an epoch, whose length the seed fixes, and the bound holds
// for races within an epoch. Short epochs find races of near steps, long ones those of distant
// steps. Every other seed has one epoch, which lasts as long as the program; its falls lie in the
// first `steps` decisions.
//
// A waiting thread takes steps until the awaited work is done, and leaves all other work where it
// is. A query that finds unfinished work takes one step, but only if nothing was queued since the
// last query. A host that polls between other work, such as an allocator that looks for finished
// blocks, makes nothing run. A host that only polls reaches the end.
class LazyScheduler final : public Scheduler {
 public:
  explicit LazyScheduler(Driver& driver) : driver_(driver), state_(driver.options.seed) {
    if (!is_ranked_) return;
    is_repeated_ = driver.options.seed % 2 != 0;
    const bool is_given = !is_repeated_ && driver.options.steps != 0;
    const size_t choices = is_given ? driver.options.steps : size_t{4} << draw(kEpochLengths);
    epoch_length_ = choices + depth_ - 1;
  }

  void make_ready(Stream*) override { resume(); }

  void resume() override {
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
        has_run = step() || stream->is_done(position);  // the last entry may have been a wait
      }
      if (!has_run) sleep_until_changed(changes);
    }
  }

  void poll() override {
    const uint64_t queued = driver_.queued_count.load(std::memory_order_relaxed);
    if (queued_at_last_poll_.exchange(queued, std::memory_order_relaxed) != queued) return;
    const std::unique_lock lock(step_mutex_, std::try_to_lock);  // a query does not wait for another thread's step
    if (lock.owns_lock() && !step()) count_stall();
  }

  void wait_until_needed(const std::atomic<bool>& is_cancelled) override {
    std::unique_lock lock(change_mutex_);
    const uint64_t stalls = stalls_;
    changed_.wait(lock, [&] { return sleeping_ > 0 || stalls_ != stalls || is_cancelled.load(); });
  }

 private:
  void count_stall() {
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
    if (candidates_.size() == 1) return candidates_[0];  // no choice, so no decision that counts
    for (;;) {
      if (epoch_ == 0 || (is_repeated_ && decisions_ == epoch_length_ && may_change())) begin_epoch();
      ++decisions_;
      for (Stream* stream : candidates_) {
        if (stream->drawn == epoch_) continue;
        stream->drawn = epoch_;
        stream->rank = static_cast<int64_t>(draw(size_t{1} << 40));
      }
      Stream* const highest = *std::max_element(candidates_.begin(), candidates_.end(),
                                                [](const Stream* a, const Stream* b) { return a->rank < b->rank; });
      const auto fall = std::find(change_points_.begin(), change_points_.end(), decisions_);
      if (fall == change_points_.end() || !may_change()) return highest;
      highest->rank = change_points_.begin() - fall - 1;
    }
  }

  // Draw the decisions of the epoch at which ranks fall.
  void begin_epoch() {
    ++epoch_;
    decisions_ = 0;
    change_points_.clear();
    while (change_points_.size() < depth_ - 1) {
      const size_t fall = 1 + draw(epoch_length_);
      if (std::find(change_points_.begin(), change_points_.end(), fall) == change_points_.end())
        change_points_.push_back(fall);
    }
  }

  // Count a change of ranks. Return false if the option `changes` allows no more.
  bool may_change() {
    if (changes_made_ == driver_.options.changes) return false;
    ++changes_made_;
    return true;
  }

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
  static constexpr size_t kEpochLengths = 11;  // 4, 8, … 4096 choices
  const bool is_ranked_ = driver_.options.schedule == Schedule::kPct;
  const uint32_t depth_ = driver_.options.depth_of_seed();
  bool is_repeated_ = false;
  size_t epoch_length_ = 0;    // in decisions
  uint64_t epoch_ = 0;
  size_t decisions_ = 0;       // of the epoch
  std::vector<size_t> change_points_;  // the decisions at which the i-th rank below all is given
  uint64_t changes_made_ = 0;

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

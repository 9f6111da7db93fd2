// SPDX-License-Identifier: BSD-3-Clause
// The normal schedule: worker threads take ready streams in turn.
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "driver.h"
#include "schedule.h"
#include "work.h"

namespace sim {
namespace {

// The normal schedule. A stream is in one place at a time: idle, in the ready list, with a
// worker, or in the blocked list of the stream that it waits for. So a blocked stream occupies no
// worker, and no stream runs on two.
//
// A worker that has emptied its stream keeps it and looks for more work, of this stream
// or of others, for `spin` microseconds, and then sleeps. A host that alternately
// queues and waits therefore finds the worker awake: no list, no system call, one cache
// line from one core to the other.
class WorkerScheduler final : public Scheduler {
 public:
  explicit WorkerScheduler(Driver& driver) : driver_(driver), spin_(int64_t{driver.options.spin} * 1000) {}

  void start() override {
    is_stopping_ = false;
    // Signals belong to the host program: its handlers expect its own threads.
    sigset_t all, before;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (uint32_t i = 0; i < driver_.options.workers; ++i) {
        workers_.emplace_back([this] { work(); });
        pthread_setname_np(workers_.back().native_handle(), ("outboard-sim-" + std::to_string(i)).c_str());
      }
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      stop();
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void stop() override {
    {
      std::lock_guard lock(sleep_mutex_);
      is_stopping_ = true;
    }
    sleep_condition_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  void make_ready(Stream* stream) override {
    {
      std::lock_guard lock(ready_lock_);
      List& list = stream->priority < 0 ? urgent_ : ordinary_;
      list.append(stream);
      ready_count_.fetch_add(1);
    }
    // The order of these two loads does not matter, but both must follow the increment
    // of the count: a worker lowers `spinning_`, or raises `sleeping_`, before it
    // reads the count for the last time.
    if (sleeping_.load() > 0 && ready_count_.load() > spinning_.load()) wake_one();
  }

  void wait(Stream* stream, uint64_t position, bool may_spin) override {
    if (spin_until(may_spin ? spin_ : 0, [&] { return stream->is_done(position); })) return;
    stream->sleep_until(position);
  }

 private:
  static constexpr int kMaxTasksInARow = 8;  // consecutive tasks of one stream while others are ready
  static constexpr int kMaxUrgentInARow = 8;

  // First in, first out, linked by Stream::next.
  class List {
   public:
    bool is_empty() const { return first_ == nullptr; }
    void append(Stream* stream) {
      stream->next = nullptr;
      (is_empty() ? first_ : last_->next) = stream;
      last_ = stream;
    }
    Stream* take() {
      Stream* stream = first_;
      first_ = stream->next;
      return stream;
    }

   private:
    Stream* first_ = nullptr;
    Stream* last_ = nullptr;
  };

  void wake_one() {
    waker_processor_.store(sched_getcpu(), std::memory_order_relaxed);
    {
      // A worker holds it from its last look at the lists until it sleeps.
      std::lock_guard lock(sleep_mutex_);
    }
    sleep_condition_.notify_one();
  }

  Stream* take_ready() {
    if (ready_count_.load() == 0) return nullptr;
    std::lock_guard lock(ready_lock_);
    if (urgent_.is_empty() && ordinary_.is_empty()) return nullptr;
    ready_count_.fetch_sub(1);
    // Streams of high priority go first, but not forever.
    if (ordinary_.is_empty() || (!urgent_.is_empty() && urgent_in_a_row_ < kMaxUrgentInARow)) {
      ++urgent_in_a_row_;
      return urgent_.take();
    }
    urgent_in_a_row_ = 0;
    return ordinary_.take();
  }

  // Return a ready stream; null when the worker must end.
  Stream* take_or_sleep() {
    for (;;) {
      if (Stream* stream = take_ready()) return stream;
      std::unique_lock lock(sleep_mutex_);
      if (is_stopping_) return nullptr;
      sleeping_.fetch_add(1);
      if (ready_count_.load() == 0) sleep_condition_.wait(lock);
      sleeping_.fetch_sub(1);
      lock.unlock();
      leave_waker_processor();
    }
  }

  // Move off the processor of the thread that woke this one. The kernel may wake a worker on
  // that processor, because the worker slept there, and keep doing so. The waker then stands
  // still while the worker runs and looks for more work, although another processor is idle (a
  // burst of 40 calls took 300 us instead of 145). This costs some microseconds, once: the next
  // time the worker wakes where it slept.
  void leave_waker_processor() {
    const int processor = sched_getcpu();
    cpu_set_t allowed;
    if (processor != waker_processor_.load(std::memory_order_relaxed) || processor >= CPU_SETSIZE) return;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
    cpu_set_t others = allowed;
    CPU_CLR(static_cast<unsigned>(processor), &others);
    if (sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
  }

  void work() {
    while (Stream* stream = take_or_sleep()) run(stream);
  }

  void run(Stream* stream) {
    int in_a_row = 0;
    for (;;) {
      const Task* task = stream->head();
      if (task == nullptr) {
        if (spin_for_work(stream)) continue;
        if (release_if_empty(stream)) return;
        continue;
      }
      if (task->work == Work::kWait) {
        if (task->wait.stream->block(stream, task->wait.position)) return;
      } else {
        run_task(driver_, *stream, *task);
      }
      for (Stream* released = stream->complete_head(); released != nullptr;) {
        Stream* next = released->next;
        make_ready(released);
        released = next;
      }
      if (++in_a_row >= kMaxTasksInARow && ready_count_.load(std::memory_order_relaxed) > 0) {
        make_ready(stream);
        return;
      }
    }
  }

  // Look for more work. Return true if it came to this stream.
  bool spin_for_work(Stream* stream) {
    if (spin_ == 0 || ready_count_.load() > 0) return false;
    spinning_.fetch_add(1);
    const uint64_t done = stream->completed.load(std::memory_order_relaxed);
    bool is_more = false;
    spin_until(spin_, [&] {
      is_more = stream->tail.load(std::memory_order_relaxed) != done;
      return is_more || ready_count_.load(std::memory_order_relaxed) > 0;
    });
    spinning_.fetch_sub(1);
    // Another thread may have relied on this worker for another stream.
    if (is_more && sleeping_.load() > 0 && ready_count_.load() > 0) wake_one();
    return is_more;
  }

  // Release an empty stream. Return false if it got work meanwhile.
  bool release_if_empty(Stream* stream) {
    bool is_destroyed = false;
    {
      std::lock_guard lock(stream->lock);
      if (!stream->is_drained()) return false;
      stream->is_active = false;
      is_destroyed = stream->is_destroyed;
    }
    if (is_destroyed) driver_.recycle(stream);
    return true;
  }

  Driver& driver_;
  const int64_t spin_;  // nanoseconds
  std::atomic<int> waker_processor_{-1};  // where a thread last woke a worker
  std::vector<std::thread> workers_;

  SpinLock ready_lock_;
  List urgent_;
  List ordinary_;
  int urgent_in_a_row_ = 0;
  std::atomic<int64_t> ready_count_{0};
  std::atomic<int64_t> spinning_{0};

  std::mutex sleep_mutex_;
  std::condition_variable sleep_condition_;
  std::atomic<int64_t> sleeping_{0};
  bool is_stopping_ = false;  // under sleep_mutex_
};

}  // namespace

std::unique_ptr<Scheduler> make_worker_scheduler(Driver& driver) {
  return std::make_unique<WorkerScheduler>(driver);
}

}  // namespace sim

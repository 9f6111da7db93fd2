// SPDX-License-Identifier: BSD-3-Clause
#include "kernels/builds.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/build_lock.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/process.h"
#include "core/stream.h"
#include "core/wait.h"
#include "kernels/program_store.h"

namespace outboard::kernels {

namespace {

constexpr int kMaxThreads = 64;
// The default. Only one Python thread traces what they compile, so more threads would be idle, and
// each compiler takes some 100 MB.
constexpr int kMaxDefaultThreads = 8;

std::atomic<bool> has_built{false};
std::atomic<bool> has_refused{false};

class PoolBuild final : public BackgroundBuild {
 public:
  PoolBuild(c10::DeviceIndex device, ProgramText program, std::string entry, const std::string& name,
            std::function<void()> on_refusal)
      : device_(device),
        program_(std::move(program)),
        entry_(std::move(entry)),
        name_(name),
        on_refusal_(std::move(on_refusal)) {}

  // Called once, on a thread of the pool.
  void run() noexcept {
    try {
      kernel_ = find_kernel(device_, program_, entry_, name_);
      has_built.store(true, std::memory_order_relaxed);
    } catch (const ProgramHangs&) {
      failure_ = late_failure_ = std::current_exception();
      on_refusal_();
    } catch (const ProgramRefused& error) {
      failure_ = std::current_exception();
      on_refusal_();
      late_failure_ = late_refusal(error, note_refused(device_, program_));
    } catch (...) {
      failure_ = late_failure_ = std::current_exception();
    }
    finish();
  }

  // Called in place of run().
  void cancel() noexcept {
    failure_ = late_failure_ = std::make_exception_ptr(
        std::runtime_error("the program of " + name_ + " was not built, because the process is ending"));
    finish();
  }

  bool is_ready() const noexcept override { return is_ready_.load(std::memory_order_acquire); }

  uint64_t kernel() const override {
    if (late_failure_) {
      is_raised_.store(true, std::memory_order_release);
      std::rethrow_exception(late_failure_);
    }
    return kernel_;
  }

  bool has_failed() const noexcept override { return failure_ != nullptr; }
  bool is_raised() const noexcept override { return is_raised_.load(std::memory_order_acquire); }

  void show_wait(bool is_at_end) const noexcept override;

  uint64_t wait(c10::DeviceIndex device, const char* name) const override {
    wait_until_ready(*this, default_stream(device), name, Interruptible::Yes);
    if (failure_) {
      is_raised_.store(true, std::memory_order_release);
      std::rethrow_exception(failure_);
    }
    return kernel_;
  }

 private:
  void finish() noexcept {
    program_ = {};
    on_refusal_ = nullptr;
    is_ready_.store(true, std::memory_order_release);
    notify_ready();
  }

  static std::exception_ptr late_refusal(const ProgramRefused& error, bool is_stored) {
    return std::make_exception_ptr(ProgramRefused(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
        error.what_without_backtrace() +
            std::string("\nThe call was queued before its program was built, so no other provider could run it, and its"
                        " results were not computed. From now on, this process waits for each build, and the next"
                        " provider runs such calls.") +
            (is_stored ? " Later processes wait for this build too: run your script again."
                       : " To wait from the start, set OUTBOARD_BUILD_THREADS=0.")));
  }

  const c10::DeviceIndex device_;
  ProgramText program_;
  const std::string entry_;
  const std::string name_;
  std::function<void()> on_refusal_;
  uint64_t kernel_ = 0;
  std::exception_ptr failure_;  // for a caller that waits
  std::exception_ptr late_failure_;  // for a wait after the queued launch
  mutable std::atomic<bool> is_raised_{false};
  std::atomic<bool> is_ready_{false};
};

struct Pool {
  std::mutex mutex;  // never held during a build
  std::condition_variable added;
  std::deque<std::shared_ptr<PoolBuild>> waiting;
  std::deque<std::function<void()>> tasks;  // each begins when no build waits
  int running_tasks = 0;
  int limit = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxDefaultThreads);
  int threads = 0;
  int idle = 0;
  bool is_ended = false;
  BuildCounts counts;

  // A task may take as long as several builds, and callers wait for builds alone. Tasks therefore
  // leave half of the threads to builds.
  bool may_start_task() const { return !tasks.empty() && running_tasks < std::max(limit / 2, 1); }
};

Pool& pool() {
  static auto* const instance = new Pool;  // threads may outlive static destruction
  return *instance;
}

// The line on the terminal. One thread writes it at a time; others that wait write nothing.
struct Line {
  std::mutex mutex;
  std::string prefix;
  std::string suffix;
  size_t first = 0;  // how many were built when it was begun
  bool is_shown = false;
};

Line& line() {
  static auto* const instance = new Line;
  return *instance;
}

constexpr double kMinDisplayedSeconds = 2;
constexpr const char* kErase = "\r\033[K";

// Estimate the seconds until all builds are over from the builds so far.
double seconds_left(const BuildCounts& counts, int threads) {
  const double each = counts.built > 0 ? counts.seconds / static_cast<double>(counts.built) : 0;
  return each * static_cast<double>(counts.waiting + counts.running) / std::max(threads, 1);
}

// Run `body` without the lock. The end of the process waits for it, or it does not begin.
template <class Body>
void run_unlocked(std::unique_lock<std::mutex>& lock, const Body& body) {
  detail::begin_own_call();
  lock.unlock();
  body();
  detail::end_own_call();
  lock.lock();
}

void work() {
  Pool& all = pool();
  std::unique_lock lock(all.mutex);
  for (;;) {
    ++all.idle;
    all.added.wait(lock, [&all] { return (!all.waiting.empty() || all.may_start_task()) && !all.is_ended; });
    --all.idle;
    if (all.waiting.empty()) {
      const std::function<void()> task = std::move(all.tasks.front());
      all.tasks.pop_front();
      ++all.running_tasks;
      run_unlocked(lock, task);
      --all.running_tasks;
      continue;
    }
    std::shared_ptr<PoolBuild> build = std::move(all.waiting.front());
    all.waiting.pop_front();
    ++all.counts.running;
    const auto begin = std::chrono::steady_clock::now();
    run_unlocked(lock, [&build] {
      build->run();
      build.reset();
    });
    --all.counts.running;
    ++all.counts.built;
    all.counts.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
}

// Start a thread if all have work and the limit allows. Return false if there is none. Call with
// the lock held.
bool has_thread(Pool& all) {
  if (all.limit == 0 || all.is_ended) {
    return false;
  }
  if (all.idle <= static_cast<int>(all.waiting.size() + all.tasks.size()) && all.threads < all.limit &&
      detail::start_thread(work)) {
    ++all.threads;
  }
  return all.threads > 0;
}

}  // namespace

void set_build_threads(int count) {
  const std::lock_guard lock(pool().mutex);
  pool().limit = std::clamp(count, 0, kMaxThreads);
}

void end_builds() noexcept {
  end_lock_waits();
  std::deque<std::shared_ptr<PoolBuild>> left;
  {
    const std::lock_guard lock(pool().mutex);
    pool().is_ended = true;
    std::swap(left, pool().waiting);
    pool().tasks.clear();
  }
  for (const auto& build : left) {
    build->cancel();
  }
}

void note_built() noexcept {
  has_built.store(true, std::memory_order_relaxed);
}

bool note_refused(c10::DeviceIndex device, const ProgramText& program) {
  if (is_known_refusal(device, program)) {
    return true;  // callers of a known refusal wait, so it says nothing about unknown programs
  }
  has_refused.store(true, std::memory_order_relaxed);
  return store_refusal(device, program);
}

bool start_task(std::function<void()> task) {
  Pool& all = pool();
  const std::lock_guard lock(all.mutex);
  if (!has_thread(all)) {
    return false;
  }
  all.tasks.push_back(std::move(task));
  all.added.notify_one();
  return true;
}

bool may_build_in_background(const Stream& stream) noexcept {
  return has_built.load(std::memory_order_relaxed) && !has_refused.load(std::memory_order_relaxed) &&
         may_add_pending(stream);
}

std::shared_ptr<const BackgroundBuild> start_build(c10::DeviceIndex device, const ProgramText& program,
                                                   const std::string& entry, const std::string& name,
                                                   std::function<void()> on_refusal) {
  Pool& all = pool();
  const std::lock_guard lock(all.mutex);
  if (!has_thread(all)) {
    return nullptr;
  }
  auto build = std::make_shared<PoolBuild>(device, program, entry, name, std::move(on_refusal));
  all.waiting.push_back(build);
  all.added.notify_one();
  return build;
}

void PoolBuild::show_wait(bool is_at_end) const noexcept {
  Line& shown = line();
  const std::unique_lock lock(shown.mutex, std::try_to_lock);
  if (!lock || shown.prefix.empty()) {
    return;
  }
  const BuildCounts counts = count_builds();
  if (is_at_end) {
    if (shown.is_shown) {
      std::fputs(kErase, stderr);
      shown.is_shown = false;
    }
    return;
  }
  const double left = seconds_left(counts, pool().threads);
  if (!shown.is_shown && (left <= kMinDisplayedSeconds || isatty(STDERR_FILENO) == 0)) {
    shown.first = counts.built;
    return;
  }
  shown.is_shown = true;
  const size_t done = counts.built - std::min(shown.first, counts.built);
  std::fprintf(stderr, "%s%s: %zu of %zu, about %.0f s; %s", kErase, shown.prefix.c_str(), done,
               done + counts.waiting + counts.running, std::max(left, 1.0), shown.suffix.c_str());
  std::fflush(stderr);
}

void show_builds(const std::string& prefix, const std::string& suffix) {
  const std::lock_guard lock(line().mutex);
  line().prefix = prefix;
  line().suffix = suffix;
}

BuildCounts count_builds() {
  const std::lock_guard lock(pool().mutex);
  BuildCounts counts = pool().counts;
  counts.waiting = pool().waiting.size();
  return counts;
}

}  // namespace outboard::kernels

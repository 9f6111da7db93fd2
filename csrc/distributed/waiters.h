// SPDX-License-Identifier: BSD-3-Clause
// Threads that wait for a peer's matching send or receive, which may happen in any order, and for
// users' callbacks. Each task starts at once, so the number of threads is the largest number of
// tasks that ran at the same time.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace outboard {

// Start a thread with signals blocked, because signals belong to the host program.
std::thread start_group_thread(const char* name, std::function<void()> body);

// Thread-safe.
class Waiters {
 public:
  Waiters() = default;
  ~Waiters();
  Waiters(const Waiters&) = delete;
  Waiters& operator=(const Waiters&) = delete;

  // Run a task, which must not throw.
  void run(std::function<void()> task);
  // Wait for all tasks and end the threads. If called on one of the threads, only request their
  // end.
  void stop();
  // Forget the threads in a forked child, where they do not exist.
  void release_after_fork() noexcept;

 private:
  // Outlives this object on a thread that dropped the last reference to it.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    size_t idle = 0;
    bool is_stopping = false;
  };
  static void loop(State& state);

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::vector<std::thread> threads_;  // guarded by state_->mutex
};

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// Threads that wait: for a peer's half of a send or a receive, which may come in any order, and for
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

// Start a thread that takes no signals, which belong to the host program.
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
  // Wait for all tasks and end the threads. Called on one of them, only ask them to end.
  void stop();
  // Forget the threads in a forked child, which has none of them.
  void forget() noexcept;

 private:
  // Outlives this object in a thread that has dropped the last reference to it.
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

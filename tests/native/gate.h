// SPDX-License-Identifier: BSD-3-Clause
// A latch for tests: work waits at it until the test opens it.
#pragma once

#include <condition_variable>
#include <mutex>

class Gate {
 public:
  void open() {
    std::lock_guard lock(mutex_);
    is_open_ = true;
    condition_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    condition_.wait(lock, [this] { return is_open_; });
  }
  // So that a gate can be queued as work.
  void operator()() { wait(); }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool is_open_ = false;
};

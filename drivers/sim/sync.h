// SPDX-License-Identifier: BSD-3-Clause
// The clock, and a lock for sections of a few nanoseconds.
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace sim {

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Return nanoseconds of CLOCK_MONOTONIC.
inline int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// A lock without system calls when two threads meet. A mutex would also work. Holders hold it
// briefly; waiters yield after a while, because a holder may have been preempted.
class SpinLock {
 public:
  void lock() {
    for (int tries = 0; held_.exchange(true, std::memory_order_acquire);) {
      while (held_.load(std::memory_order_relaxed)) {
        if (++tries < 128) {
          pause();
        } else {
          sched_yield();
        }
      }
    }
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

// Call `done` until it is true or `nanoseconds` have passed. Return its last answer.
template <class Condition>
bool spin_until(int64_t nanoseconds, Condition&& done) {
  if (done()) return true;
  if (nanoseconds <= 0) return false;
  const int64_t deadline = now() + nanoseconds;
  do {
    for (int i = 0; i < 16; ++i) {
      pause();
      if (done()) return true;
    }
  } while (now() < deadline);
  return done();
}

}  // namespace sim

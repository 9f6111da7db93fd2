// SPDX-License-Identifier: BSD-3-Clause
// Tasks and the in-order queue that holds them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>

#include "sync.h"
#include "torch_outboard/driver.h"

namespace sim {

struct Stream;
struct Event;
struct StridedCopy;

enum class Work : uint8_t { kCall, kCopy, kFill, kStridedCopy, kMark, kWait };

// One piece of queued work. Addresses are the host's: they were translated,
// and checked, when it was queued.
struct alignas(64) Task {
  Work work;
  uint8_t pattern_size;     // of a fill
  ob_status injected;       // OB_OK, or the status with which this work must fail
  uint64_t correlation;     // of the profiler
  union {
    struct {
      ob_host_fn fn;
      void* user;
    } call;
    struct {
      void* dst;
      const void* src;
      uint64_t bytes;
      int32_t dst_device;
      int32_t src_device;
    } copy;
    struct {
      void* dst;
      uint64_t count;
      unsigned char pattern[16];
    } fill;
    StridedCopy* strided;  // owned by the task
    struct {
      Event* event;
      uint64_t record;
    } mark;
    struct {
      Stream* stream;
      uint64_t position;
    } wait;
  };
};
static_assert(sizeof(Task) == 64);

// The first failure of queued work, until a wait takes it.
class Failure {
 public:
  void add(ob_status status, const char* text);

  // Return the failure, with the last error set; OB_OK if there is none.
  ob_status take();

 private:
  std::mutex mutex_;
  std::atomic<ob_status> status_{OB_OK};
  char text_[256] = {};
};

// A stream. Its tasks are numbered from 0 without end; position n is reached when n tasks are
// done. A record of an event is a pair (stream, position), which stays valid whatever happens
// to the event. So waits need no shared event state. For the same reason a slot that serves
// another stream continues the count.
//
// Producers append under `lock`. One thread at a time consumes: the worker that took the stream
// from the ready list (normal), the holder of the step lock (lazy), the holder of `inline_mutex`
// (inline, where nothing is ever stored).
struct Stream {
  static constexpr uint64_t kSegmentTasks = 128;
  struct Segment {
    Task tasks[kSegmentTasks];
    Segment* next = nullptr;
  };

  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  // Identity. Everything except `handle` changes only while the slot is free.
  std::atomic<uint64_t> handle{0};
  uint64_t last_handle = 0;  // kept when the stream is destroyed with work on it
  int32_t device = 0;
  int32_t priority = 0;

  // Producers.
  SpinLock lock;
  bool is_active = false;     // under `lock`: with a worker, in the ready list, or blocked on another stream
  bool is_destroyed = false;  // under `lock`
  std::atomic<uint64_t> tail{0};

  // The pct schedule's, under its step lock.
  int64_t rank = 0;     // among streams that can run, the highest runs
  uint64_t drawn = 0;   // the epoch in which the rank was drawn

  // The consumer.
  alignas(64) std::atomic<uint64_t> completed{0};

  // The lowest position that a thread sleeps for. A consumer reads it after each task. A
  // sleeper sets it before it reads `completed` for the last time. Both are sequentially
  // consistent, so one of them sees the other.
  std::atomic<uint64_t> wake_at{kNoPosition};

  // A stream is in at most one list, the ready list or the list of streams blocked on another. So
  // one link suffices, and no list allocates memory.
  Stream* next = nullptr;
  uint64_t blocked_until = 0;  // a position of the stream that it is blocked on

  std::mutex inline_mutex;

  Failure failure;

  bool is_done(uint64_t position) const { return completed.load(std::memory_order_acquire) >= position; }
  bool is_drained() const { return is_done(tail.load(std::memory_order_acquire)); }

  // Append a task. The caller holds `lock`.
  void push(const Task& task);

  // Return the next task, null if there is none. Consumer only.
  Task* head();

  // Count the head as done, and wake the threads that waited for it. Return the streams that were
  // blocked on it, linked by `next`. Consumer only; the Task is gone afterwards.
  Stream* complete_head();

  // Make this a gate, a stream without tasks: its next position is reached when `open`
  // is called. Return the position.
  uint64_t close();
  // Reach the gate's position. Return what complete_head returns.
  Stream* open() { return complete_head(); }

  // Sleep until `position` is reached; another thread consumes.
  void sleep_until(uint64_t position);

  // Make complete_head return `waiter` when `position` is reached. Return
  // false if it is already reached.
  bool block(Stream* waiter, uint64_t position);

 private:
  static constexpr uint64_t kNoPosition = std::numeric_limits<uint64_t>::max();

  Segment* write_segment_ = nullptr;
  Segment* read_segment_ = nullptr;
  uint64_t read_base_ = 0;  // position of read_segment_'s first task
  std::atomic<Segment*> spare_{nullptr};

  std::mutex wait_mutex_;
  std::condition_variable wait_condition_;
  Stream* blocked_ = nullptr;  // under wait_mutex_
};

}  // namespace sim

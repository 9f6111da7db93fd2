// SPDX-License-Identifier: BSD-3-Clause
// The streams that use a block, from its free until no queued work can use it any more. Device memory, pinned memory
// and graphs all wait for their streams through this.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/event.h"
#include "core/export.h"
#include "core/stream.h"

namespace outboard::memory {

// One stream that uses a block. Its owner derives from it to say which block, and keeps it in place until it is done.
struct StreamUse {
  StreamUse* next = nullptr;
  Stream* stream = nullptr;
  Event event;  // behind the use, or some time later: then it covers more work, never less
  bool is_recorded = false;  // the event is
};

struct UseList {
  StreamUse* head = nullptr;
  StreamUse* tail = nullptr;
  void append(StreamUse* use) noexcept {
    use->next = nullptr;
    (tail ? tail->next : head) = use;
    tail = use;
  }
  StreamUse* pop() noexcept {
    StreamUse* use = head;
    head = use->next;
    if (!head) {
      tail = nullptr;
    }
    return use;
  }
  void splice_front(UseList& other) noexcept {
    if (other.head) {
      other.tail->next = head;
      head = other.head;
      tail = tail ? tail : other.tail;
      other = {};
    }
  }
};

// Poll never waits, and asks nothing of a stream that has failed; Retry, for after a wait, asks those again too; Wait
// waits for all.
enum class Effort { Poll, Retry, Wait };

// What a visit has found. The failure is one that nobody was told of before: whoever gets it raises it, once.
struct Settled {
  UseList done;
  std::exception_ptr error;
  Stream* failed = nullptr;  // whose failure it is
};

// A queue of events for each stream, so that a visit asks each stream for its oldest use only. Thread-safe.
//
// A stream whose event fails stops nobody but itself. What it uses is not given out before a new event of it, or a wait
// for the stream, or for the whole device, has succeeded: Retry tries the first, Wait all three.
class OUTBOARD_API StreamUses {
 public:
  StreamUses() = default;
  StreamUses(const StreamUses&) = delete;
  StreamUses& operator=(const StreamUses&) = delete;

  // The use ends with what is queued on its stream now, or with its event if that is recorded. Calls no driver entry, and
  // takes a lock that is held for moments: for deleters.
  void add(StreamUse* use) noexcept;

  bool is_empty() const noexcept { return count_.load(std::memory_order_acquire) == 0; }
  // Whether a Poll could find something out.
  bool is_pollable() const noexcept {
    return C10_UNLIKELY(!is_empty()) && count_.load() != stuck_.load() && !is_settling_.load();
  }

  // Calls the driver: with no lock held. One thread at a time: others get nothing, but that Wait waits for its turn. Uses
  // of a stream that is capturing wait for the end of the capture.
  Settled settle(Effort effort);

  // Waits for the stream, or for its device, whether for `is_whole_device` or because the stream can't be waited for.
  // False if neither could. A failure goes to *out_error, unless one is there or this stream's was told before.
  bool drain(Stream& stream, bool is_whole_device, std::exception_ptr* out_error) noexcept;

  // Drops all uses, with nothing under way any more: the device closes.
  void forget() noexcept;

 private:
  struct Queue {
    Stream* stream;
    UseList unrecorded{};
    UseList recorded{};  // in the order of the records
    size_t count = 0;  // of both
    bool is_failing = false;
    bool is_told = false;
  };

  bool enter(Effort effort, UseList* out_added);
  void leave() noexcept;
  Queue& queue_of(Stream& stream);
  void advance(Queue& queue, Effort effort, Settled* settled);
  static bool record_all(Queue& queue);

  std::mutex mutex_;
  // Guarded by mutex_.
  UseList added_;
  std::vector<Stream*> undrained_;  // whose failed drain was told
  std::atomic<bool> is_settling_{false};  // read without it
  std::thread::id settler_;
  std::condition_variable settled_;
  std::atomic<size_t> count_{0};
  std::atomic<size_t> stuck_{0};  // those of streams that have failed

  std::deque<Queue> queues_;  // touched only by the thread that set is_settling_
};

}  // namespace outboard::memory

// SPDX-License-Identifier: BSD-3-Clause
// The streams that use a block, from its free until no queued work can use it any more. Device
// memory, pinned memory and graphs all wait for their streams through this class.
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

// A stream that uses a block. The owner derives from it to add the block, and
// keeps it in place until it is done.
struct StreamUse {
  StreamUse* next = nullptr;
  Stream* stream = nullptr;
  Event event;  // recorded after the use; a later record only covers more work
  bool is_recorded = false;  // the event is recorded
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

// Poll never waits, and skips streams that have failed. Retry, for use after a
// wait, queries failed streams again. Wait waits for all streams.
enum class WaitMode { Poll, Retry, Wait };

// The result of processing. The failure was not reported before; the caller must raise it, once.
struct ProcessedUses {
  UseList done;
  std::exception_ptr error;
  Stream* failed = nullptr;  // the stream that failed
};

// A queue of events for each stream, so that processing queries only the oldest use of each stream.
// Thread-safe.
//
// A stream whose event fails blocks only its own uses. Blocks that it uses are not reused before
// a new event of the stream, or a wait for it or for the whole device, has succeeded: Retry
// tries the event, Wait all three.
class OUTBOARD_API StreamUses {
 public:
  StreamUses() = default;
  StreamUses(const StreamUses&) = delete;
  StreamUses& operator=(const StreamUses&) = delete;

  // Add a use. It ends with the work now queued on its stream, or with its event if the event is
  // recorded. For deleters: calls no driver entry, and takes a lock that is held briefly.
  void add(StreamUse* use) noexcept;

  bool is_empty() const noexcept { return count_.load(std::memory_order_acquire) == 0; }
  // Return true if a Poll could finish a use.
  bool is_pollable() const noexcept {
    return C10_UNLIKELY(!is_empty()) && count_.load() != failing_count_.load() && !is_processing_.load();
  }

  // Finish uses that are done. Calls the driver: call it with no lock held. One thread processes
  // at a time; others return at once, except that Wait waits for its turn. Uses of a capturing
  // stream wait for the end of the capture.
  ProcessedUses process(WaitMode wait_mode);

  // Wait for the stream. With `is_whole_device`, or if the stream cannot be waited for, wait for
  // its device. Return false if neither succeeds. Store a failure in *out_error, unless it is set
  // or this stream's was reported before.
  bool drain(Stream& stream, bool is_whole_device, std::exception_ptr* out_error) noexcept;

  // Drop all uses when the device closes and no work is under way.
  void drop_all() noexcept;

 private:
  struct Queue {
    Stream* stream;
    UseList unrecorded{};
    UseList recorded{};  // in the order of the records
    size_t count = 0;  // number of uses in both lists
    bool is_failing = false;
    bool is_reported = false;
  };

  bool enter(WaitMode wait_mode, UseList* out_added);
  void leave() noexcept;
  Queue& queue_of(Stream& stream);
  void advance(Queue& queue, WaitMode wait_mode, ProcessedUses* processed);
  static bool record_all(Queue& queue);

  std::mutex mutex_;
  // Guarded by mutex_.
  UseList added_;
  std::vector<Stream*> drain_failed_streams_;  // streams whose failed drain was reported
  std::atomic<bool> is_processing_{false};  // read without it
  std::thread::id processing_thread_;
  std::condition_variable processing_ended_;
  std::atomic<size_t> count_{0};
  std::atomic<size_t> failing_count_{0};  // uses of streams that have failed

  std::deque<Queue> queues_;  // touched only by the thread that set is_processing_
};

}  // namespace outboard::memory

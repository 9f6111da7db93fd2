// SPDX-License-Identifier: BSD-3-Clause
// Failures of queued host work, and which waits tell them. A failure belongs to a stream and to a place in its order.
// The record of an event keeps where its stream stands and on what that depends; a wait for the event hands both on.
// A stream that is synchronised tells its own failures, and those of other streams that lie before what it waited for:
// each once, whoever else tells it too.
//
// Work fails on a driver's thread, long after the records and waits behind it were queued. So a stream counts its
// records, work carries the count of its time (its mark), and dependencies are marks: a vector clock, of which nothing
// is stored but what a wait brought and no synchronisation has settled since. All of it is thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "core/export.h"

namespace outboard {

struct StreamState;

// Where host work stands in its stream's order.
struct WorkPlace {
  StreamState* stream = nullptr;
  uint64_t mark = 0;
};

// Work of `stream` up to `mark`, but for failures of it up to the number `told`.
struct Dependency {
  StreamState* stream = nullptr;
  uint64_t mark = 0;
  uint64_t told = 0;
};

// A list of dependencies, at most one a stream, which is copied when it changes while another holder has it.
class Dependencies {
 public:
  Dependencies() noexcept = default;
  Dependencies(const Dependencies& other) noexcept : list_(other.list_) {
    if (list_) {
      list_->holders.fetch_add(1, std::memory_order_relaxed);
    }
  }
  Dependencies(Dependencies&& other) noexcept : list_(std::exchange(other.list_, nullptr)) {}
  Dependencies& operator=(Dependencies other) noexcept {
    std::swap(list_, other.list_);
    return *this;
  }
  ~Dependencies() {
    if (list_ && list_->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete list_;
    }
  }

  bool is_null() const noexcept { return list_ == nullptr; }
  bool is_same(const Dependencies& other) const noexcept { return list_ == other.list_; }
  const Dependency* begin() const noexcept { return list_ ? list_->entries.data() : nullptr; }
  const Dependency* end() const noexcept { return list_ ? list_->entries.data() + list_->entries.size() : nullptr; }
  std::vector<Dependency>& edit();  // of this holder alone

 private:
  struct List {
    std::atomic<uint32_t> holders{1};
    std::vector<Dependency> entries;
  };
  List* list_ = nullptr;
};

// All that lies before a point of a stream's order.
struct Standing {
  StreamState* stream = nullptr;
  uint64_t mark = 0;
  Dependencies others;
};

// One of queued work that is not told everywhere.
struct Failure {
  uint64_t number = 0;  // from 1, of the stream's failures
  uint64_t mark = 0;    // of the work
  std::exception_ptr error;
  bool is_told = false;  // by any stream
};

class StreamRecord;

// What a stream keeps for all this.
struct StreamFailures {
  std::atomic<uint64_t> mark{0};
  std::atomic<uint64_t> done{0};           // work with a smaller mark has run
  std::atomic<uint64_t> told{0};           // number of its last failure that it has told itself
  std::atomic<bool> has_others{false};     // whether `others` may hold something
  std::mutex mutex;                        // guards `others`; held for moments
  Dependencies others;                     // what its work depends on
  uint64_t count = 0;                      // of its failures; this and the next under the lock of failure.cpp
  std::vector<Failure> kept;
  std::atomic<StreamRecord*> record{nullptr};  // what kernels write their failures to; see core/kernel_failure.h
};

// Where work stands that is queued now: to be asked before it is queued.
OUTBOARD_API WorkPlace next_place(StreamState& stream) noexcept;
// The same as a place that no other work of the stream has: its mark names the work.
OUTBOARD_API WorkPlace next_own_place(StreamState& stream) noexcept;

// Keeps a failure of the work, on any thread. What follows an untold failure of the same stream is dropped.
OUTBOARD_API void report_failure(const WorkPlace& place, std::exception_ptr error) noexcept;

// What is queued by now; to be noted after an event was recorded, and before a wait for the stream.
OUTBOARD_API void note_standing(StreamState& stream, Standing* out_standing);
inline Standing standing_of(StreamState& stream) {
  Standing standing;
  note_standing(stream, &standing);
  return standing;
}

// Makes what is queued on the stream from now on depend on all before `before`.
OUTBOARD_API void depend_on(StreamState& stream, const Standing& before);

// Raises the first failure before `before` that its stream has not told; to be called when all of it has run.
OUTBOARD_API void tell_failures(const Standing& before);
inline void tell_failures(StreamState& stream) {
  tell_failures(standing_of(stream));
}
// The same for all streams of a device, none of which tells it again.
OUTBOARD_API void tell_device_failures(int device);

namespace detail {
// Whether this thread has reported a failure of that stream since it began to watch: the driver ran the work within the
// call that queued it.
void begin_failure_watch() noexcept;
bool has_failed_here(const StreamState& stream) noexcept;
}  // namespace detail

}  // namespace outboard

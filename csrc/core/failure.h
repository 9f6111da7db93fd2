// SPDX-License-Identifier: BSD-3-Clause
// Failures of queued host work, and the waits that raise them. A failure belongs to a stream and to
// a position in its order. Recording an event stores its stream's position and the dependencies of
// that position; a wait for the event passes both on. Synchronizing a stream raises its own
// failures, and failures in other streams that precede the points for which this stream waited.
// Each stream raises a failure once, whether or not others raise it too. The driver reports
// failures of its own work, such as copies, only at a wait for the work's stream. A wait for
// another stream that depends on this work queries the driver, and stores the failures that it
// reports.
//
// Work fails on a driver's thread, long after later records and waits were queued. A stream
// therefore counts its records, work carries the count at its queueing (its mark), and dependencies
// are marks. This is a vector clock. It stores only dependencies that a wait has added and that no
// later synchronization has settled. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/export.h"

namespace outboard {

struct StreamState;

// The position of host work in its stream's order.
struct WorkPosition {
  StreamState* stream = nullptr;
  uint64_t mark = 0;
};

// Work of `stream` up to `mark`, except failures up to the number `last_raised`.
struct Dependency {
  StreamState* stream = nullptr;
  uint64_t mark = 0;
  uint64_t last_raised = 0;
};

// A list of dependencies, at most one per stream. Copied on write if it has several holders.
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
  std::vector<Dependency>& edit();  // the list for editing, after a copy if it had several holders

 private:
  struct List {
    std::atomic<uint32_t> holders{1};
    std::vector<Dependency> entries;
  };
  List* list_ = nullptr;
};

// All work before a point in a stream's order.
struct StreamPosition {
  StreamState* stream = nullptr;
  uint64_t mark = 0;
  Dependencies dependencies;
};

// A failure of queued work that some stream has not raised yet.
struct Failure {
  uint64_t number = 0;  // number among the stream's failures, from 1
  uint64_t mark = 0;    // mark of the work
  std::exception_ptr error;
  bool is_raised = false;  // some stream has raised the failure
};

class StreamRecord;
class GraphRecord;

// The failure state of one stream.
struct StreamFailures {
  std::atomic<uint64_t> mark{0};
  std::atomic<uint64_t> done{0};            // work with a smaller mark has run
  std::atomic<uint64_t> last_raised{0};     // number of the last failure that the stream has raised itself
  std::atomic<bool> has_dependencies{false};  // false if `dependencies` is empty
  std::atomic<bool> has_driver_work{false};  // such as copies, not queried since
  std::mutex mutex;                         // guards `dependencies` and `graph_records`; held briefly
  Dependencies dependencies;                // the work on which the stream's work depends
  uint64_t count = 0;                       // the stream's failures; this and the next are under failure's lock
  std::vector<Failure> kept;
  std::atomic<StreamRecord*> record{nullptr};  // where kernels write their failures; see core/kernel_failure.h
  std::atomic<bool> has_graph_records{false};  // false if `graph_records` is empty
  std::vector<std::shared_ptr<GraphRecord>> graph_records;  // records of graphs with a replay under way on the stream
};

// Return the position of work that is queued next. Call it before queueing the work.
OUTBOARD_API WorkPosition next_position(StreamState& stream) noexcept;
// Return a position that no other work of the stream shares: its mark identifies the work.
OUTBOARD_API WorkPosition next_unique_position(StreamState& stream) noexcept;

// Store a failure of the work; any thread may call it. Failures that follow an unraised failure
// of the same stream are dropped.
OUTBOARD_API void report_failure(const WorkPosition& position, std::exception_ptr error) noexcept;

// Return the point after the work queued so far. Call it before recording an event and before
// waiting for the stream, so that work queued meanwhile by another thread does not count as done.
OUTBOARD_API StreamPosition advance_position(StreamState& stream);

// Make work that is queued on the stream from now on depend on everything before `before`.
OUTBOARD_API void depend_on(StreamState& stream, const StreamPosition& before);

// Whether to query the driver for failures of its own work. The driver reports them at a wait for
// the whole stream, which includes work that other threads queue meanwhile. A thread for which
// queued work waits must not query: it would wait for itself.
enum class QueryDriver : bool { No, Yes };

// Raise the first failure that precedes `before` and that its stream has not raised. Call it once
// all of that work has run.
OUTBOARD_API void raise_failures(const StreamPosition& before, QueryDriver query = QueryDriver::Yes);
inline void raise_failures(StreamState& stream) {
  raise_failures(advance_position(stream));
}
// Do the same for all streams of a device. None of them raises that failure again.
OUTBOARD_API void raise_device_failures(int device);

namespace detail {
inline void store_max(std::atomic<uint64_t>& value, uint64_t least) noexcept {
  uint64_t now = value.load(std::memory_order_relaxed);
  while (now < least && !value.compare_exchange_weak(now, least, std::memory_order_release)) {
  }
}
// Note that the stream's work up to the position has run.
void note_done(const WorkPosition& position) noexcept;
// Watch for failures of a stream that are reported on this thread. Such a report shows that the
// driver ran the work within the call that queued it.
void begin_failure_watch() noexcept;
bool has_failed_here(const StreamState& stream) noexcept;
}  // namespace detail

}  // namespace outboard

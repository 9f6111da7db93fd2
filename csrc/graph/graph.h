// SPDX-License-Identifier: BSD-3-Clause
// A graph: work captured from streams, replayed on a stream. If the driver captures, it is the
// driver's own graph; else the core stores the calls and repeats them.
#pragma once

#include <c10/core/Allocator.h>

#include <memory>
#include <string>

#include "core/export.h"
#include "core/stream.h"

namespace outboard {

namespace graph {
struct Body;
class Recorder;
}  // namespace graph

enum class CaptureMode : int { Default = 0, Global = 1, ThreadLocal = 2, Relaxed = 3 };

// A graph. Only one thread at a time may use it. Replays of one graph on different streams wait
// for each other in stream order.
class OUTBOARD_API Graph {
 public:
  // With keep_graph, a native graph is instantiated by `instantiate` or the first replay,
  // not at the end of the capture.
  explicit Graph(bool keep_graph = false);
  // Calls no driver entry. A running replay ends before its body is freed. If the driver is
  // capturing and the capture was not ended (at least by `abandon`), the next call on its stream
  // raises.
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Capture subsequent work of the current device's current stream, which must not be the default
  // stream, and of streams that wait for its events. Their allocations come from `pool`; {0, 0}
  // makes a new pool. Raise CaptureError if the stream captures already, or if the graph already
  // holds a capture.
  void capture_begin(c10::MempoolId_t pool = {0, 0}, CaptureMode mode = CaptureMode::Default);
  // End the capture. If something could not be captured, raise CaptureError; there is no graph
  // then. Also raise CaptureError if the current stream is not the capture's; the capture then
  // continues.
  void capture_end();
  void instantiate();
  // Queue the work on the current stream of the graph's device. If this raises, part of the work
  // may be queued, and the next replay runs after it.
  void replay();
  // Wait for the last replay, and drop the graph or the capture. The next wait for the replay's
  // stream raises failures of its work.
  void reset();
  // End the current capture, if there is one, without a result.
  void abandon();
  c10::MempoolId_t pool() const;
  bool is_captured() const noexcept { return body_ != nullptr; }
  bool is_capturing() const noexcept { return recorder_ != nullptr; }
  // Return the steps as a Graphviz graph.
  std::string describe() const;

 private:
  bool keep_graph_;
  std::unique_ptr<graph::Body> body_;
  graph::Recorder* recorder_ = nullptr;
  Stream* stream_ = nullptr;  // the stream of the capture under way
  uint64_t capture_id_ = 0;
};

// Free dropped graphs without a running replay. Raise the driver's errors.
OUTBOARD_API void free_done_graphs();
// Wait for the replays of all dropped graphs and free them.
OUTBOARD_API void reclaim_graphs();

}  // namespace outboard

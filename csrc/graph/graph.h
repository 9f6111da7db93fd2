// SPDX-License-Identifier: BSD-3-Clause
// A graph: work captured from streams, replayed on a stream. If the driver captures, it is the driver's own graph; else
// the core stores the calls and repeats them.
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

// One thread at a time may use a graph; replays of one graph on different streams wait for each other in stream order.
class OUTBOARD_API Graph {
 public:
  // With keep_graph, a native graph is instantiated by `instantiate` or the first replay, not at the end of the capture.
  explicit Graph(bool keep_graph = false);
  // Calls no driver entry. What is replayed is freed once that is done; a capture of the driver's that nobody ended, by
  // `abandon` at least, makes the next call on its stream raise.
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Captures what is queued from now on on the current stream of the current device, which may not be its default one,
  // and on streams that wait for its events. What those streams allocate comes from `pool`, {0, 0} for one of its own.
  // CaptureError for a stream that captures already, and if the graph holds a capture.
  void capture_begin(c10::MempoolId_t pool = {0, 0}, CaptureMode mode = CaptureMode::Default);
  // CaptureError, and no graph, if something could not be captured; also if the current stream is another one than the
  // capture's, which then goes on.
  void capture_end();
  void instantiate();
  // Queues the work on the current stream of the graph's device. If it raises, part of the work may be queued, and the
  // next replay runs behind that.
  void replay();
  // Gives up the graph or the capture, once its last replay is done: waits for that. What the replay's work has failed
  // with is left to the next wait for its stream.
  void reset();
  // Ends the capture, if one is under way, without a result.
  void abandon();
  c10::MempoolId_t pool() const;
  bool is_captured() const noexcept { return body_ != nullptr; }
  bool is_capturing() const noexcept { return recorder_ != nullptr; }
  // The steps as a graph of Graphviz.
  std::string describe() const;

 private:
  bool keep_graph_;
  std::unique_ptr<graph::Body> body_;
  graph::Recorder* recorder_ = nullptr;
  Stream* stream_ = nullptr;  // of the capture under way
  uint64_t capture_id_ = 0;
};

// Frees the graphs that were dropped, where no replay is under way any more. Raises what the driver does.
OUTBOARD_API void free_retired_graphs();
// Frees all of them: waits for their replays.
OUTBOARD_API void reclaim_graphs();

}  // namespace outboard

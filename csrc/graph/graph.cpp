// SPDX-License-Identifier: BSD-3-Clause
#include "graph/graph.h"

#include <sstream>

#include "core/activity.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/observer.h"
#include "core/process.h"
#include "graph/body.h"
#include "graph/recorder.h"
#include "memory/management.h"

namespace outboard {

using graph::Body;
using graph::HostBatch;
using graph::Recorder;
using graph::Step;

namespace {

[[noreturn]] void raise_capture(const std::string& message) {
  raise(ErrorKind::Capture, OB_FAILED_PRECONDITION, message);
}

// One replay of a batch. The body outlives it: graphs are freed when their last replay is done.
struct BatchRun {
  HostBatch* batch;
  WorkPosition position;
};

void run_batch(void* user) {
  const std::unique_ptr<BatchRun> run(static_cast<BatchRun*>(user));
  for (const std::unique_ptr<HostCommand>& command : run->batch->commands) {
    command->run(run->position);
  }
}

// New random numbers for one replay.
struct CellUpdate {
  RandomPosition* cell;
  RandomPosition value;
};

void set_cell(void* user) {
  const std::unique_ptr<CellUpdate> update(static_cast<CellUpdate*>(user));
  *update->cell = update->value;
}

// Set where a native graph's host commands report failures.
struct Replaying {
  Body* body;
  WorkPosition position;
};

void set_replaying(void* user) {
  const std::unique_ptr<Replaying> now(static_cast<Replaying*>(user));
  now->body->replaying = now->position;
}

// Queue work. Return false if it has run on this thread instead.
template <class Work>
bool queue_work(Stream& stream, ob_host_fn fn, std::unique_ptr<Work> work, const char* name) {
  const bool is_queued = queue_host_work(stream, fn, work.get(), name);  // if it raises, fn is not called
  static_cast<void>(work.release());
  return is_queued;
}

// Make later work on `to` wait for the work on `from`.
void order(Stream& from, Stream& to) {
  if (&from != &to) {
    Event event;
    event.record(from);
    event.block(to);
  }
}

// Queue the steps on the replaying stream. Steps captured on another device go to the stream that
// they were captured on. Return false if some of them have run on this thread.
bool queue_steps(Body& body, Stream& stream) {
  Stream* previous = &stream;
  bool is_queued = true;
  for (Step& step : body.steps) {
    Stream& target = step.stream->device == stream.device ? stream : *step.stream;
    if (&target != previous) {
      body.execution.enter(body, target);
      order(*previous, target);
      previous = &target;
    }
    if (step.command) {
      step.command->queue(target);
    } else {
      auto run = std::make_unique<BatchRun>(BatchRun{step.batch.get(), next_position(target)});
      is_queued = queue_work(target, run_batch, std::move(run), "graph") && is_queued;
    }
  }
  order(*previous, stream);
  return is_queued;
}

// Launch a native graph. Return false as above.
bool launch(Body& body, Stream& stream) {
  bool is_queued = true;
  if (!body.host_commands.empty()) {
    auto now = std::make_unique<Replaying>(Replaying{&body, next_position(stream)});
    is_queued = queue_work(stream, set_replaying, std::move(now), "graph: begin");
  }
  for (const std::shared_ptr<GraphRecord>& record : body.records) {
    record->begin_replay(stream);
  }
  ActivityScope activity(stream, {ActivityKind::Kernel, "graph_launch", "graph"});
  const TrackedCall noted("graph_launch", stream.device, &stream);
  OB_CALL(graph_launch, stream.device, stream_handle(stream), body.executable);
  activity.finish();
  return is_queued;
}

}  // namespace

Graph::Graph(bool keep_graph) : keep_graph_(keep_graph) {}

Graph::~Graph() {
  if (driver_is_gone()) {
    static_cast<void>(body_.release());  // its members would call the driver
    return;
  }
  if (recorder_ && recorder_->is_active(capture_id_)) {
    recorder_->drop();
  }
  graph::free_when_done(std::move(body_));
}

void Graph::abandon() {
  Recorder* recorder = std::exchange(recorder_, nullptr);
  if (recorder && !driver_is_gone() && recorder->is_active(capture_id_)) {
    recorder->abort();
  }
}

void Graph::capture_begin(c10::MempoolId_t pool, CaptureMode mode) {
  graph::free_done(memory::WaitMode::Poll);
  if (recorder_) {
    raise_capture("this graph is already being captured: captures cannot be nested");
  }
  if (body_) {
    raise_capture("this graph has already been captured: reset() it, or create another graph");
  }
  const c10::DeviceIndex device = current_device();
  check_device_index(device);
  Stream& stream = current_stream(device);
  if (stream.id == 0) {
    raise_capture("a graph cannot be captured on a device's default stream, as on CUDA: enter torch." + driver_name() +
                  ".stream(torch." + driver_name() + ".Stream()) first, or use torch." + driver_name() + ".graph");
  }
  if (pool == c10::MempoolId_t{0, 0}) {
    pool = new_mempool_id();
  }
  recorder_ = &Recorder::begin(stream, pool, static_cast<graph::Mode>(mode));
  stream_ = &stream;
  capture_id_ = recorder_->id();
}

void Graph::capture_end() {
  if (!recorder_) {
    raise_capture("capture_end was called without capture_begin");
  }
  Stream& current = current_stream(stream_->device);
  if (&current != stream_) {
    raise_capture("a capture must end on the stream where it began: make that stream current and"
                  " call capture_end again, or reset() the graph");
  }
  Recorder& recorder = *std::exchange(recorder_, nullptr);
  body_ = recorder.end();
  if (Observer* active = observer(); C10_UNLIKELY(active != nullptr)) {
    active->graph(/*is_replay=*/false, *stream_, capture_id_);
  }
  if (!keep_graph_) {
    instantiate();
  }
}

void Graph::instantiate() {
  if (!body_) {
    raise_capture("no graph has been captured: call capture_begin and capture_end before instantiate()");
  }
  if (body_->is_native && body_->executable == 0) {
    ensure_open(body_->stream->device);
    OB_CALL(graph_instantiate, body_->stream->device, body_->graph, &body_->executable);
    if (!keep_graph_) {
      OB_CALL(graph_destroy, body_->stream->device, std::exchange(body_->graph, 0));
    }
  }
}

void Graph::replay() {
  if (!body_) {
    raise_capture("no graph has been captured: call capture_begin and capture_end before replay()");
  }
  Body& body = *body_;
  const c10::DeviceIndex device = body.stream->device;
  ensure_open(device);
  Stream& stream = current_stream(device);
  refuse_in_capture(stream, "the replay of a graph");
  instantiate();
  if (Observer* active = observer(); C10_UNLIKELY(active != nullptr)) {
    active->graph(/*is_replay=*/true, stream, capture_id_);
  }
  body.execution.begin(body, stream);  // from here on the body is in use, even if something fails
  bool is_queued = true;
  for (const graph::RandomUse& use : body.random) {
    use.cell->queued = use.source->take(use.increment);
    auto update = std::make_unique<CellUpdate>(CellUpdate{&use.cell->running, use.cell->queued});
    is_queued = queue_work(stream, set_cell, std::move(update), "graph: random offset") && is_queued;
  }
  is_queued = (body.is_native ? launch(body, stream) : queue_steps(body, stream)) && is_queued;
  body.execution.end(stream);
  finish_call(stream, is_queued);
}

void Graph::reset() {
  if (driver_is_gone()) {
    static_cast<void>(body_.release());
    recorder_ = nullptr;
    return;
  }
  if (recorder_) {
    std::exchange(recorder_, nullptr)->abort();
  }
  if (!body_) {
    return;
  }
  std::exception_ptr error;
  if (body_->execution.wait(&error)) {
    graph::free_body(std::move(body_));
  } else {
    graph::free_when_done(std::move(body_));  // until its streams can be waited for
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

c10::MempoolId_t Graph::pool() const {
  if (!body_) {
    raise_capture("a graph has no memory pool before its capture: call capture_begin and capture_end first");
  }
  return body_->pool;
}

std::string Graph::describe() const {
  if (!body_) {
    raise_capture("no graph has been captured: call capture_begin and capture_end before debug_dump()");
  }
  if (body_->is_native) {
    raise_not_supported("graph_capture_begin", "showing a graph that the driver captured");
  }
  std::ostringstream text;
  text << "digraph {\n";
  size_t count = 0;
  const auto add = [&](const std::string& what) {
    text << "  n" << count << " [label=\"" << what << "\"];\n";
    if (count > 0) {
      text << "  n" << count - 1 << " -> n" << count << ";\n";
    }
    ++count;
  };
  for (const Step& step : body_->steps) {
    if (step.command) {
      add(step.command->describe());
      continue;
    }
    for (const std::unique_ptr<HostCommand>& command : step.batch->commands) {
      add(command->describe());
    }
  }
  text << "}\n";
  return text.str();
}

void free_done_graphs() {
  graph::free_done(memory::WaitMode::Retry);
}

void reclaim_graphs() {
  graph::free_done(memory::WaitMode::Wait);
}

}  // namespace outboard

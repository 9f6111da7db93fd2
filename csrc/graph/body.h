// SPDX-License-Identifier: BSD-3-Clause
// The result of a capture: everything that a replay needs and must keep alive.
#pragma once

#include <c10/core/Allocator.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/capture.h"
#include "core/graph_record.h"
#include "graph/execution.h"
#include "memory/management.h"

namespace outboard::graph {

// Adjacent host commands, which become a single host callback in a replay.
struct HostBatch {
  std::vector<std::unique_ptr<HostCommand>> commands;
};

struct Step {
  Stream* stream = nullptr;                // the stream on which it was captured
  std::unique_ptr<DriverCommand> command;  // null: `batch`
  std::unique_ptr<HostBatch> batch;
};

struct RandomUse {
  std::shared_ptr<RandomSource> source;
  std::unique_ptr<RandomCell> cell;  // commands hold its address
  uint64_t increment = 0;            // the increment of one replay
};

// A device on which the pool is in use. During the capture, allocations of
// the capturing streams go there.
struct PoolUse {
  c10::DeviceIndex device;
  RouteId route;
};

struct Body {
  Stream* stream = nullptr;  // the stream on which the capture began
  bool is_native = false;
  std::vector<Step> steps;  // in an order in which they may run sequentially
  // Of a native graph: the commands that the driver's host callbacks call, and the graph's handles.
  std::deque<std::unique_ptr<HostCommand>> host_commands;
  WorkPosition replaying;  // written and read in stream order
  uint64_t graph = 0;
  uint64_t executable = 0;

  std::vector<std::shared_ptr<GraphRecord>> records;  // records of a native graph's checking kernels, one per device

  std::vector<RandomUse> random;
  std::vector<std::shared_ptr<const void>> kept;
  c10::MempoolId_t pool{0, 0};
  std::vector<PoolUse> pool_uses;

  Execution execution;
  Body* next_idle = nullptr;  // next in the list of bodies to free
};

// Free a body once its replays are done, on a thread that may call the driver. Never fails.
void free_when_done(std::unique_ptr<Body> body) noexcept;
// Free such bodies that are done, or all of them with Wait. Call it with no lock held. If a
// failure leaves the state of a body unknown, the body is kept.
void free_done(memory::WaitMode wait_mode);
// Free the body at once. No replay may be under way.
void free_body(std::unique_ptr<Body> body);
// Return the stream uses of the replays of bodies to free.
memory::StreamUses& replay_uses();

}  // namespace outboard::graph

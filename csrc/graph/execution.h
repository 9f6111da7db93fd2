// SPDX-License-Identifier: BSD-3-Clause
// The replays of a graph that may be running. A stream is registered before anything is queued on
// it, and removed when all of its queued work is done. If anything raises in between, the body is
// not freed early.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <list>

#include "core/stream.h"
#include "memory/stream_uses.h"

namespace outboard::graph {

struct Body;

struct BodyUse : memory::StreamUse {
  Body* body = nullptr;
};

class Execution {
 public:
  // Make the stream wait for earlier replays. Call it before the first step of a replay.
  void begin(Body& body, Stream& stream);
  // Call it before a step on another stream.
  void enter(Body& body, Stream& stream);
  // Call it after the last step. Makes `stream` wait for all work queued on the other streams.
  void end(Stream& stream);

  // Wait for the replays. Return false if they cannot be waited for. Store a failure in *out_error.
  bool wait(std::exception_ptr* out_error) noexcept;

  bool is_idle() const noexcept { return uses_.empty(); }
  // Hand each use to `uses`, which returns it once it is done; `pending` counts them.
  void transfer_uses_to(memory::StreamUses& uses) noexcept;
  std::atomic<size_t> pending{0};

 private:
  BodyUse& use_of(Body& body, Stream& stream);

  std::list<BodyUse> uses_;  // one for each stream; a use without a recorded event belongs to an unfinished replay
};

}  // namespace outboard::graph

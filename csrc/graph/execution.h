// SPDX-License-Identifier: BSD-3-Clause
// The replays of a graph that may be under way. A stream is noted before anything is queued on it, and removed when all
// its queued work is done. If anything raises in between, the body is not freed early.
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
  // Before the first step of a replay: makes the stream wait for the replays before it.
  void begin(Body& body, Stream& stream);
  // Before a step on another stream.
  void enter(Body& body, Stream& stream);
  // Behind the last step. `stream` waits for all that the others were given.
  void end(Stream& stream);

  // Waits for the replays. False if that is impossible; *out_error is what failed, if anything did.
  bool wait(std::exception_ptr* out_error) noexcept;

  bool is_idle() const noexcept { return uses_.empty(); }
  // Hands each use to `uses`, which gives it back once it is done; `pending` counts them.
  void give_up(memory::StreamUses& uses) noexcept;
  std::atomic<size_t> pending{0};

 private:
  BodyUse& use_of(Body& body, Stream& stream);

  std::list<BodyUse> uses_;  // one for each stream; those without a recorded event have begun a replay and not ended it
};

}  // namespace outboard::graph

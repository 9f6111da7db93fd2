// SPDX-License-Identifier: BSD-3-Clause
#include "graph/execution.h"

#include <algorithm>

#include "core/capture.h"
#include "core/error.h"
#include "graph/body.h"

namespace outboard::graph {

BodyUse& Execution::use_of(Body& body, Stream& stream) {
  const auto it = std::find_if(uses_.begin(), uses_.end(), [&](const BodyUse& use) { return use.stream == &stream; });
  if (it != uses_.end()) {
    return *it;
  }
  BodyUse& use = uses_.emplace_back();
  use.stream = &stream;
  use.body = &body;
  return use;
}

void Execution::begin(Body& body, Stream& stream) {
  for (BodyUse& use : uses_) {
    if (use.stream == &stream) {
      continue;
    }
    if (!use.is_recorded) {  // a replay failed between two steps, so also wait for later work on the stream
      if (capture_of(*use.stream) != nullptr) {
        raise(ErrorKind::Capture, OB_FAILED_PRECONDITION,
              "the last replay of this graph failed between two steps, and its stream is capturing now: end"
              " that capture before you replay again");
      }
      use.event.record(*use.stream);
      use.is_recorded = true;
    }
    use.event.block(stream);
  }
  enter(body, stream);
}

void Execution::enter(Body& body, Stream& stream) {
  use_of(body, stream).is_recorded = false;
}

void Execution::end(Stream& stream) {
  const auto last = std::find_if(uses_.begin(), uses_.end(), [&](const BodyUse& use) { return use.stream == &stream; });
  last->event.record(stream);
  last->is_recorded = true;
  std::erase_if(uses_, [&](const BodyUse& use) { return use.stream != &stream; });
}

bool Execution::wait(std::exception_ptr* out_error) noexcept {
  while (!uses_.empty()) {
    const BodyUse& use = uses_.front();
    bool is_done = false;
    try {
      if (use.is_recorded) {
        use.event.drain();
        is_done = true;
      }
    } catch (...) {
      *out_error = *out_error ? *out_error : std::current_exception();
    }
    if (!is_done && !replay_uses().drain(*use.stream, false, out_error)) {
      return false;
    }
    uses_.pop_front();
  }
  return true;
}

void Execution::transfer_uses_to(memory::StreamUses& uses) noexcept {
  pending.store(uses_.size());
  // The last use may be done, and the body freed, before this returns.
  BodyUse* last = uses_.empty() ? nullptr : &uses_.back();
  for (auto it = uses_.begin(); last; ++it) {
    BodyUse& use = *it;
    if (&use == last) {
      last = nullptr;
      uses.add(&use);
      break;
    }
    uses.add(&use);
  }
}

}  // namespace outboard::graph

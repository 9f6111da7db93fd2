// SPDX-License-Identifier: BSD-3-Clause
// Conversion of a call's tensors to contiguous CPU tensors for Gloo, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

#include "core/event.h"
#include "core/stream.h"
#include "distributed/kinds.h"

namespace outboard {

using Tensors = std::vector<at::Tensor>;

// The streams of a call; all null for CPU tensors. `in` and `out` are the current stream for a call that is waited for
// at once. Otherwise they are two of the group's own, so that a result never waits behind the next call's tensors.
struct CallStreams {
  Stream* current = nullptr;
  Stream* in = nullptr;
  Stream* out = nullptr;
};

class Staging {
 public:
  // Queue what precedes the exchange, on the caller's thread. `is_in_place`: `written` are the tensors read.
  Staging(Place place, const CallStreams& streams, const Tensors& read, const Tensors& written, bool is_in_place);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  Place place() const noexcept { return place_; }
  // Return true if Gloo may write the results before the device has finished earlier work of the stream.
  bool is_private() const noexcept { return place_ == Place::Staged; }

  // Wait until the tensors may be read and written, on a thread of the group. Raise the failures of earlier work.
  void wait_until_ready();
  Tensors& in() noexcept { return in_; }
  Tensors& out() noexcept { return is_in_place_ ? in_ : out_; }
  // Copy the results to the device, or queue the copy.
  void finish();

  // Make the caller's stream wait for the results, after finish(). Thread-safe.
  void join();
  bool is_done() const;  // after finish()
  Stream* out_stream() const noexcept { return streams_.out; }

 private:
  void reach(const Tensors& tensors, Tensors* views, Tensors* buffers) const;
  void copy_in();

  const Place place_;
  const CallStreams streams_;
  const bool is_in_place_;
  bool is_ready_ = false;
  std::mutex mutex_;  // guards join
  bool is_joined_ = false;
  Tensors read_, written_;          // of the device, or the CPU's own
  Tensors read_views_, out_views_;  // the same memory for the host; not of Place::Staged
  Tensors in_, out_;                // Gloo's tensors
  Event ready_, done_;
};

}  // namespace outboard

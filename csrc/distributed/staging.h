// SPDX-License-Identifier: BSD-3-Clause
// Conversion of a call's tensors to contiguous CPU tensors for Gloo, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/event.h"
#include "core/host_event.h"
#include "core/stream.h"
#include "distributed/kinds.h"

namespace outboard {

using Tensors = std::vector<at::Tensor>;

// The streams of a call; all null for CPU tensors. For a synchronous call, `in` and `out` are the
// current stream. Otherwise, they are two of the group's own streams, so that a result never waits
// for the next call's tensors. Sends and receives have two streams per peer and direction, because
// they may be called in any order.
struct CallStreams {
  Stream* current = nullptr;
  Stream* in = nullptr;
  Stream* out = nullptr;
};

class Staging {
 public:
  // The results have arrived on the device.
  struct Done {
    Event event;                         // after finish() or queue_results()
    std::atomic<bool> is_joined{false};  // one of the caller's streams waits for them
  };
  // Queue the work that precedes the exchange, on the caller's thread. `is_in_place`: `written` are
  // the tensors read.
  Staging(Transport transport, const CallStreams& streams, const Tensors& read, const Tensors& written,
          bool is_in_place);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  Transport transport() const noexcept { return transport_; }

  // For a barrier: make wait_until_ready() also wait for the work queued on these streams by then,
  // which are the results of earlier collectives.
  void follow(std::vector<Stream*> streams) { followed_ = std::move(streams); }

  // Return true if the stream waits for the exchange. Otherwise a thread waits, before it queues
  // work that needs the results.
  bool is_streamed() const noexcept { return exchanged_.has_value() || transport_ == Transport::Native; }
  // Return true if wait() blocks the caller anyway: see may_wait_in_streams().
  bool blocks_caller() const noexcept { return !may_stream_ && transport_ == Transport::Native && !is_captured_; }
  // Queue the wait for the exchange and the work after it, on the caller's thread. Call it once a
  // thread of the group has the request, so that a blocking copy can end. `name` is the
  // collective's. Only if is_streamed().
  void queue_results(const char* name);

  // Wait until the tensors may be read and written, on a thread of the group.
  // Raise the failures of earlier work.
  void wait_until_ready();
  Tensors& in() noexcept { return in_; }
  Tensors& out() noexcept { return is_in_place_ ? in_ : out_; }
  // Copy the results to the device, or queue the copy, unless it is queued.
  void finish();
  // End the exchange, with an error if it is not null, so that the stream continues. Only the first
  // call has an effect.
  void release(const std::exception_ptr& error);

  // Make the caller's stream wait for the results, after finish() or queue_results(). Thread-safe.
  void join();
  bool is_done() const;  // after finish()
  const std::shared_ptr<Done>& done() const noexcept { return done_; }
  // Raise the exchange's failure, once; no wait for the group's stream raises it again.
  // After release(), if is_streamed().
  void raise_failure();
  Stream* out_stream() const noexcept { return streams_.out; }
  bool is_captured() const noexcept { return is_captured_; }
  uint64_t bytes() const;  // bytes of this rank's tensors

  // Report the accesses to the stream sanitizer, before queue_results(). `op` is the collective's.
  void observe(const char* op) const;
  // Report to the sanitizer that the host has waited for the exchange, if no stream does.
  void observe_wait() const;

 private:
  bool can_stream() const;
  bool waits_on_host() const noexcept {
    return transport_ == Transport::Host && streams_.out != nullptr && !is_streamed();
  }
  void make_contiguous();
  void reach(const Tensors& tensors, Tensors* views, Tensors* buffers) const;
  void copy_in();
  void copy_out();

  const Transport transport_;
  const CallStreams streams_;
  const bool is_in_place_;
  const bool may_stream_;
  bool is_captured_ = false;  // captured in a graph, as a call of the driver's collectives
  bool is_ready_ = false;
  std::optional<HostEvent> exchanged_;
  std::mutex mutex_;  // guards join
  Tensors read_, written_;          // tensors on the device, or the CPU's own
  Tensors read_views_, out_views_;  // the same memory for the host; empty for Transport::Staged
  Tensors in_, out_;                // Gloo's tensors, or contiguous ones for the driver's collectives
  WorkPosition queued_at_;             // for Transport::Native
  Event ready_;
  const std::shared_ptr<Done> done_ = std::make_shared<Done>();
  std::vector<Stream*> followed_;
};

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// The threads of a group and their shared state. The state outlives the backend if Gloo cannot be
// interrupted: an abort leaves a thread in its exchange, which ends with Gloo's own timeout.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <memory>
#include <optional>
#include <unordered_map>

#include "core/activity.h"
#include "distributed/agreement.h"
#include "distributed/failure.h"
#include "distributed/native.h"
#include "distributed/staging.h"
#include "distributed/waiters.h"
#include "distributed/work.h"

namespace outboard {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Works = std::vector<WorkPtr>;

// One submitted call.
struct Request {
  c10::intrusive_ptr<DistributedWork> work;
  std::shared_ptr<Staging> staging;
  std::function<Works(c10d::Backend& gloo, Tensors& in, Tensors& out)> post;  // starts the exchange
  std::function<void(Tensors& out)> adjust;  // makes the result from the exchanged data; may be empty
  std::optional<CallFingerprint> fingerprint;  // ranks compare it beforehand
  OwnWorkTimer timer;  // the exchange's timer, for profilers
  // For point-to-point operations and fingerprints; collectives have an option for it.
  std::chrono::milliseconds timeout{};
};

// Return true if a stream may wait for this thread's exchanges. The order of threads differs
// between ranks, and streams that wait for each other's groups would deadlock. Streams therefore
// wait only for the thread that created the first living group, and for backward passes. Other
// threads wait themselves.
bool may_wait_in_streams() noexcept;

// How to end a thread during an exchange with Gloo, which cannot be interrupted. The caller waits
// for the thread, or lets it end on its own. When the process exits, the thread keeps its tensors,
// because freeing a tensor may need Python.
enum class EndMode : uint8_t { Wait, Detach, DetachAtExit };

// A thread that takes requests in order. The first request starts it. Not copied; thread-safe.
class RequestThread {
 public:
  using Run = std::function<void(Request& request)>;
  RequestThread(const char* name, Run run) : name_(name), state_(std::make_shared<State>()) {
    state_->run = std::move(run);
  }
  ~RequestThread() { end(EndMode::Wait); }
  RequestThread(const RequestThread&) = delete;
  RequestThread& operator=(const RequestThread&) = delete;

  void push(std::shared_ptr<Request> request);
  // End the thread after the queued requests.
  void end(EndMode ending);
  void release_after_fork() noexcept;  // call it in a forked child

 private:
  struct State {
    Run run;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::shared_ptr<Request>> requests;
    bool is_busy = false;
    bool is_ending = false;
    bool keeps_requests = false;
  };
  static void loop(State& state);

  const char* const name_;
  const std::shared_ptr<State> state_;
  std::thread thread_;  // guarded by state_->mutex
};

// Thread-safe.
class Group : public std::enable_shared_from_this<Group> {
 public:
  Group(c10::intrusive_ptr<c10d::Backend> gloo, std::string name, int rank);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Submit a request. Everything except sends and receives goes through one queue in call order,
  // including CPU tensors and barriers, so that ranks meet in Gloo in program order. Sends and
  // receives have another queue, because a peer may need this rank's receive before it joins a
  // collective.
  void submit(std::shared_ptr<Request> request, bool is_point_to_point);
  // Wait for the submitted requests; receives without a sender are cancelled. Later calls raise.
  void shut_down();
  // Fail the submitted requests, without waiting for Gloo.
  void abort(const std::string& reason, EndMode ending = EndMode::Detach);
  // Return true in a forked child, which does not have the threads.
  bool is_forked() const noexcept;
  void release_after_fork() noexcept;  // call it in the forked child

  c10d::Backend& gloo() noexcept { return *gloo_; }
  // A mutex held during calls to Gloo, but never while waiting for Gloo.
  std::mutex& gloo_mutex() noexcept { return gloo_mutex_; }
  GroupFailure& failure() noexcept { return failure_; }
  // The number of the last collective, the same on each rank. Sends and receives have no number.
  uint64_t sequence() const noexcept { return sequence_.load(); }
  uint64_t next_sequence() noexcept { return ++sequence_; }
  const std::shared_ptr<Waiters>& waiters() const noexcept { return waiters_; }
  // The driver's own collectives; null if it has none.
  void set_native(std::unique_ptr<NativeGroup> native);
  NativeGroup* native() const noexcept { return native_.get(); }

 private:
  void start_threads();
  void register_group();
  void run_collective(Request& request);
  void run_point_to_point(const std::shared_ptr<Request>& request);
  bool make_ready(Request& request);
  Works post(Request& request);
  void finish(Request& request, const Works& works, bool is_point_to_point);
  void complete(Request& request, const std::exception_ptr& error);
  void abort_receives();

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  GroupFailure failure_;
  std::atomic<uint64_t> sequence_{0};
  const int process_;  // the process that starts the threads
  const std::shared_ptr<Waiters> waiters_ = std::make_shared<Waiters>();
  std::unique_ptr<NativeGroup> native_;  // set before the group is shared
  std::mutex gloo_mutex_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::unordered_map<DistributedWork*, c10::intrusive_ptr<DistributedWork>> pending_;
  std::unordered_map<DistributedWork*, WorkPtr> exchanges_;  // Gloo's works of sends and receives
  std::unique_ptr<RequestThread> collectives_, point_to_point_;
  bool is_closed_ = false;
};

}  // namespace outboard

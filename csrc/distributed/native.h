// SPDX-License-Identifier: BSD-3-Clause
// The driver's own collectives (torch_outboard/collectives.h) for one group: its communicators, and
// a thread that watches the calls under way.
#pragma once

#include <torch_outboard/collectives.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>

#include "core/activity.h"
#include "distributed/failure.h"
#include "distributed/staging.h"
#include "distributed/work.h"

namespace outboard {

// Return the description of a failure of the driver's collectives.
std::string describe_entry(const char* entry, ob_status status);
// Raise a DistBackendError with that description.
[[noreturn]] void raise_entry(const char* entry, ob_status status);
// Queue the calls since the thread's group_begin. The driver may wait for peers.
ob_status end_native_group();

// Kind, reduction and dtype of a part, from which a driver decides whether it supports the part.
using NativeForm = std::tuple<int32_t, int32_t, int32_t>;

// One rank's end of the whole group, or of one direction between a pair of ranks.
struct Communicator {
  uint64_t handle = 0;
  std::string name;  // the same on each of its ranks
  int rank = 0;
  int size = 0;
  std::mutex mutex;  // held while the driver queues on it: calls have one order
  std::map<NativeForm, bool> does;  // the driver's answers so far; guarded by mutex
};

// Data about a call, besides its tensors.
struct NativeCallInfo {
  const Kind& kind;
  uint64_t sequence;
  std::chrono::milliseconds timeout;
  uint64_t bytes;
};

// Parts that a graph queues together in each replay.
struct NativeParts {
  std::vector<ob_collective> list;
  bool is_grouped;
};

// One call, while it is queued on a communicator and a stream, or captured in a graph.
class NativeCall {
 public:
  NativeCall(Communicator& communicator, Stream& stream, const NativeCallInfo& info,
             std::function<void()> check_timeout, bool is_grouped = false)
      : communicator_(communicator),
        stream_(stream),
        info_(info),
        check_timeout_(std::move(check_timeout)),
        is_grouped_(is_grouped) {}
  // Pass all parts to the graph instead of the driver.
  void capture(std::function<void(NativeParts parts)> to_graph) { to_graph_ = std::move(to_graph); }

  int rank() const noexcept { return communicator_.rank; }
  int size() const noexcept { return communicator_.size; }
  // Queue one part, or nothing if it has no elements. Return false, before anything is queued, if
  // the driver does not support it.
  bool add(ob_collective part);
  bool add(int32_t kind, const at::Tensor& src, const at::Tensor& dst, int root = 0);
  // Queue all parts between begin() and end() together.
  void begin();
  void end();

 private:
  friend class NativeGroup;
  void wait_until_ready(ob_status status, const char* entry);
  bool add_to_graph(const ob_collective& part);

  Communicator& communicator_;
  Stream& stream_;
  const NativeCallInfo info_;
  const std::function<void()> check_timeout_;  // raises if the group has ended, or after the timeout
  bool is_grouped_;
  std::function<void(NativeParts parts)> to_graph_;  // empty unless the stream captures
  std::vector<ob_collective> grouped_;               // for the graph
  std::optional<ActivityScope> activity_;            // the activity of a group of calls
};

using NativePost = std::function<bool(NativeCall& call, Tensors& in, Tensors& out)>;

// A send or a receive that is queued together with others.
struct NativeDeferred {
  Communicator* communicator;
  NativePost post;
  std::shared_ptr<Staging> staging;
  c10::intrusive_ptr<DistributedWork> work;
};

// Thread-safe.
class NativeGroup {
 public:
  NativeGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::string name, GroupFailure& failure)
      : store_(std::move(store)), rank_(rank), size_(size), name_(std::move(name)), failure_(failure) {}
  ~NativeGroup() { stop(); }
  NativeGroup(const NativeGroup&) = delete;
  NativeGroup& operator=(const NativeGroup&) = delete;

  // Return false once a rank's library was found to be missing.
  bool is_usable() const noexcept { return !is_unavailable_.load(); }
  // Return the communicator of all ranks, or of the sends to (`sends`) or receives from a peer. The
  // first call joins, and waits for the other ranks. Return null if the driver's library is missing
  // on any rank; all ranks then return null.
  Communicator* communicator(c10::DeviceIndex device, int peer, bool sends, std::chrono::milliseconds timeout);
  // Queue a call, or capture it in a graph, which then holds `owner`, the owner of this object.
  // Return false if the driver does not support the call. Raise DistBackendError if it fails.
  bool post(Communicator& communicator, const NativePost& post, Staging& staging, const NativeCallInfo& info,
            const std::shared_ptr<const void>& owner);
  // Queue and watch the call that a graph captured.
  void replay(Communicator& communicator, const NativeParts& parts, const NativeCallInfo& info, Stream& stream);
  // Queue sends and receives together, and watch them.
  void post_together(const std::vector<NativeDeferred>& all, std::chrono::milliseconds timeout);
  // Complete the work once its stream has reached it, or with an error.
  void watch(c10::intrusive_ptr<DistributedWork> work, std::shared_ptr<Staging> staging,
             std::chrono::milliseconds timeout);

  void shut_down();  // wait for the calls under way, then destroy the communicators
  void abort() noexcept;  // after the group's failure was set
  void stop();  // end the thread
  void release_after_fork() noexcept;  // call it in a forked child

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    c10::intrusive_ptr<DistributedWork> work;
    std::shared_ptr<Staging> staging;
    std::chrono::milliseconds timeout;
    Clock::time_point deadline;
  };
  // A call that is being queued, which may wait for peers there.
  struct Queueing {
    const Kind* kind;
    uint64_t sequence;
    std::chrono::milliseconds timeout;
    Clock::time_point deadline;
    std::exception_ptr error;  // the error with which the watcher ended the call
  };
  class Entry;
  void guarded(const Kind& kind, uint64_t sequence, std::chrono::milliseconds timeout,
               const std::function<void()>& body);
  void wake_watcher();
  bool capture(Communicator& communicator, const NativePost& post, Staging& staging, const NativeCallInfo& info,
               const std::shared_ptr<const void>& owner);
  std::function<void()> make_timeout_check(const Kind& kind, std::chrono::milliseconds timeout);
  uint64_t join(const std::string& key, c10::DeviceIndex device, int rank, int size, std::chrono::milliseconds timeout);
  bool exchange_id(const std::string& key, int rank, std::chrono::milliseconds timeout, std::string* out_id);
  void wait_until_joined(uint64_t handle, std::chrono::milliseconds timeout);
  void loop();
  void poll_pending(std::unique_lock<std::mutex>& lock);
  std::string end_overdue_queueing();
  std::string find_error();
  void fail(const Pending& pending, const std::string& why);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  const std::string name_;
  GroupFailure& failure_;
  std::atomic<bool> is_unavailable_{false};
  std::mutex join_mutex_;  // held while ranks meet
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::map<std::pair<int, bool>, std::unique_ptr<Communicator>> communicators_;
  std::deque<Pending> pending_;
  std::list<Queueing> queueing_;
  std::thread watcher_;
  bool is_asleep_ = false;   // the watcher, until it is notified
  bool is_closing_ = false;  // shut_down waits
  c10::DeviceIndex device_ = -1;
  bool is_stopping_ = false;
  bool is_aborted_ = false;
};

// The calls that each collective queues.
namespace native {
NativePost broadcast(int root);
NativePost all_reduce(int32_t reduce, double scale);
NativePost reduce(int32_t reduce, double scale, int root);
NativePost all_gather();  // one output for each input
NativePost all_gather_lists();  // outputs of each rank, for the inputs
NativePost reduce_scatter(int32_t reduce, double scale);
NativePost reduce_scatter_list(int32_t reduce, double scale);
NativePost gather(int root);
NativePost scatter(int root);
NativePost all_to_all();
NativePost all_to_all_splits(std::vector<int64_t> to_bytes, std::vector<int64_t> from_bytes);
NativePost send();
NativePost receive();
}  // namespace native

}  // namespace outboard

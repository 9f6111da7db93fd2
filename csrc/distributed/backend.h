// SPDX-License-Identifier: BSD-3-Clause
// The c10d backend for a driver's devices and, separately, for CPU tensors. Gloo exchanges the
// data: in the device's own memory if the host reaches it, else through pinned memory. The virtual
// functions of c10d::Backend change with every minor version of torch; the functions overridden
// here are the same in 2.11 to 2.15.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <map>
#include <memory>
#include <vector>

#include "core/export.h"
#include "distributed/group.h"
#include "distributed/unwaited.h"

namespace outboard {

class OUTBOARD_API DistributedBackend final : public c10d::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout) : c10d::Backend::Options("outboard", timeout) {}
    // Overrides the base class from torch 2.15 on.
    c10::intrusive_ptr<c10d::Backend::Options> clone() const { return c10::make_intrusive<Options>(*this); }
  };
  // A function that makes the Gloo backend of a new group.
  using MakeGloo = c10::intrusive_ptr<c10d::Backend> (*)(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                         int size, std::chrono::milliseconds timeout);

  DistributedBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                     c10::intrusive_ptr<Options> options, MakeGloo make_gloo);
  ~DistributedBackend() override;

  const std::string getBackendName() const override { return "outboard"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  void setSequenceNumberForGroup() override {}  // it starts at 0 on every rank
  uint64_t getSequenceNumberForGroup() override { return group_->sequence(); }
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  // Overrides the base class where it has this function, as in torch 2.15.
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options);
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int rank, int tag) override;
  WorkPtr recv(Tensors& tensors, int rank, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  // A call, as the collectives describe it.
  struct Call {
    const Kind& kind;
    Tensors read, written;
    bool is_in_place = false;
    bool is_async = true;
    Tensors results;
    std::function<Works(c10d::Backend& gloo, Tensors& in, Tensors& out)> post;
    std::function<void(Tensors& out)> adjust = {};
    NativePost native = {};  // the same call through the driver's own collectives; may be empty
    int peer = -1;           // for a send or a receive
    int root = -1;           // the root rank of a collective
    const char* reduction = "";
    std::vector<int64_t> part_bytes = {};  // for an all-to-all: bytes for each rank, then bytes from each rank
    std::vector<int64_t> in_splits = {}, out_splits = {};  // for profiles
    int channel = 0;  // the channel's streams: 0 for collectives, which run in order, others for sends and receives
  };
  WorkPtr submit(Call call);
  WorkPtr submit(Call call, NativePost native);
  WorkPtr submit_to_any(Call& call);
  // Do the same, recorded by torch's profilers.
  WorkPtr submit_recorded(Call& call);
  WorkPtr submit_native(Call& call);
  WorkPtr defer(Communicator& communicator, Call& call, c10::DeviceIndex device, uint64_t sequence);
  WorkPtr submit_to_gloo(Call& call);
  static CallFingerprint fingerprint_of(const Call& call);
  static void submit_timed(Group& group, std::shared_ptr<Request> request, bool is_point_to_point);
  bool uses_native(const at::Tensor& tensor) const;
  const std::shared_ptr<Group>& group_of(const Call& call) const;
  bool is_coalescing() {
    const std::lock_guard lock(mutex_);
    return is_coalescing_;
  }
  void drop_batch();
  void check(const Call& call, const Tensors& all) const;
  std::shared_ptr<Staging> stage(const Call& call);
  void record_async_results(const Call& call, const c10::intrusive_ptr<DistributedWork>& work,
                            const std::shared_ptr<Staging>& staging);
  Transport transport_of(const Call& call, const at::Tensor& first) const;
  std::vector<Stream*> streams_of_collectives();  // the streams of results
  CallStreams streams_for(c10::DeviceIndex device, Transport transport, const Call& call);
  WorkPtr all_gather_parts(const Kind& kind, const Tensors& outputs, const Tensors& inputs,
                           const c10d::AllgatherOptions& options);
  WorkPtr reduce_scatter_single(const Kind& kind, const Tensors& outputs, const Tensors& inputs,
                                const c10d::ReduceScatterOptions& options);
  WorkPtr reduce_in_place(const Kind& kind, const Tensors& tensors, const c10d::AllreduceOptions& options);
  WorkPtr receive(const Kind& kind, Tensors& tensors, int rank, int tag);

  std::chrono::milliseconds timeout_of(std::chrono::milliseconds timeout) const {
    return timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
  }
  template <class Options>
  Options with_timeout(Options options) const {
    options.timeout = timeout_of(options.timeout);
    return options;
  }

  const c10::intrusive_ptr<Options> options_;
  const MakeGloo make_gloo_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<Group> group_;
  // For CPU tensors. One thread may exchange CPU tensors, for example to save checkpoints, while
  // another exchanges device tensors. Each kind therefore has its own order and its own
  // connections.
  const std::shared_ptr<Group> cpu_group_;
  Unwaited unwaited_;
  using WeakStore = c10::weak_intrusive_ptr<c10d::Store>;
  using WeakBackend = c10::weak_intrusive_ptr<c10d::Backend>;
  struct Split {
    WeakStore store{c10::intrusive_ptr<c10d::Store>()};
    WeakBackend child{c10::intrusive_ptr<c10d::Backend>()};
  };
  std::mutex mutex_;
  // Guarded by mutex_.
  uint64_t splits_ = 0;
  Split last_split_;
  std::map<std::pair<c10::DeviceIndex, int>, std::pair<Stream*, Stream*>> streams_;  // streams by device and channel
  Works coalesced_;
  std::vector<NativeDeferred> deferred_;  // sends and receives, until endCoalescing
  bool is_coalescing_ = false;
};

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// The handle of a call on a group, which the caller holds.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>

#include "distributed/kinds.h"
#include "distributed/staging.h"
#include "distributed/waiters.h"

namespace outboard {

// A call's work. wait() makes the current stream wait for the results. If the driver's streams
// cannot wait for the host, or if there is a timeout, wait() blocks the caller until the exchange
// is over, as Gloo's own wait() does for every device.
class DistributedWork final : public c10d::Work {
 public:
  DistributedWork(int rank, const Kind& kind, uint64_t sequence, std::shared_ptr<Staging> staging, Tensors results,
                  std::shared_ptr<Waiters> waiters);
  ~DistributedWork() override;

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override { return results_; }
  int sourceRank() const override;
  uint64_t getSequencenumber() const override { return sequence_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  // End the work, with an error if it is not null. Only the first call has an effect.
  void complete(std::exception_ptr error);
  void set_source(int rank) noexcept { source_.store(rank); }
  const Kind& kind() const noexcept { return kind_; }

 private:
  void end_recording();
  void complete_future(c10::ivalue::Future& future, const std::exception_ptr& error) const;

  const Kind& kind_;
  const uint64_t sequence_;
  const std::shared_ptr<Staging> staging_;
  const Tensors results_;
  const std::shared_ptr<Waiters> waiters_;
  std::atomic<int> source_{-1};
  std::atomic<bool> is_ending_{false};
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // made on first use; guarded by mutex_
};

}  // namespace outboard

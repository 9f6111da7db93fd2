// SPDX-License-Identifier: BSD-3-Clause
// The records of a call for torch's profilers: its name, sizes and group, as torch's own backends
// record them, and the exchange on its stream's lane.
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <numeric>

#include "core/activity.h"
#include "distributed/backend.h"

namespace outboard {

namespace {

int64_t elements_of(const Tensors& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), int64_t{0},
                         [](int64_t sum, const at::Tensor& tensor) { return sum + tensor.numel(); });
}

// The group's ranks as torch writes them; a stride of -1 if they have none.
struct Ranks {
  int64_t start = 0;
  int64_t stride = 1;

  explicit Ranks(const std::vector<uint64_t>& global) {
    if (global.empty()) {
      return;
    }
    start = static_cast<int64_t>(global[0]);
    for (size_t i = 1; i < global.size() && stride != -1; ++i) {
      const int64_t step = static_cast<int64_t>(global[i]) - static_cast<int64_t>(global[i - 1]);
      stride = i == 1 || step == stride ? step : -1;
    }
    start = stride > 0 ? start : -1;
  }
};

}  // namespace

WorkPtr DistributedBackend::submit_recorded(Call& call) {
  const Tensors& in = call.read.empty() ? call.written : call.read;
  const Tensors& out = call.written.empty() ? call.read : call.written;
  const bool is_point_to_point = c10d::isP2POp(call.kind.type);
  const int rank = is_point_to_point && call.peer >= 0 ? call.peer : call.root >= 0 ? call.root : getRank();
  const auto sequence = static_cast<int64_t>(group_of(call)->sequence() + !is_point_to_point);
  const Ranks ranks(options_->global_ranks_in_group);
  RECORD_PARAM_COMMS_DATA(std::make_tuple(sequence, is_point_to_point), std::make_tuple(pg_uid_, pg_desc_), in, out,
                          rank, call.in_splits.empty() ? call.kind.record : "all_to_allv", elements_of(in),
                          elements_of(out), in.empty() ? at::kByte : in.front().scalar_type(), call.in_splits,
                          call.out_splits, static_cast<int>(ranks.start), static_cast<int>(ranks.stride), getSize());
  return submit_to_any(call);
}

void DistributedBackend::submit_timed(Group& group, std::shared_ptr<Request> request, bool is_point_to_point) {
  const Staging& staging = *request->staging;
  Stream* const lane = staging.out_stream();
  if (lane == nullptr) {  // CPU tensors
    group.submit(std::move(request), is_point_to_point);
    return;
  }
  ActivityScope activity(*lane, {ActivityKind::Host, "exchange", request->work->kind().title, staging.bytes()});
  request->timer = OwnWorkTimer(activity);
  group.submit(std::move(request), is_point_to_point);
  activity.finish();
}

}  // namespace outboard

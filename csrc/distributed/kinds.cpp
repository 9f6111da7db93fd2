// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/kinds.h"

#include "distributed/api.h"

namespace outboard {

namespace kinds {
using c10d::OpType;
#define OB_KIND(variable, type, name, op, record) \
  const Kind variable{OpType::type, name, "c10d::" op, "outboard:" name, record}
OB_KIND(all_reduce, ALLREDUCE, "all_reduce", "allreduce_", "allreduce");
OB_KIND(all_reduce_coalesced, ALLREDUCE_COALESCED, "all_reduce_coalesced", "allreduce_coalesced_",
        "allreduce_coalesced");
OB_KIND(broadcast, BROADCAST, "broadcast", "broadcast_", "broadcast");
OB_KIND(reduce, REDUCE, "reduce", "reduce_", "reduce");
OB_KIND(all_gather, ALLGATHER, "all_gather", "allgather_", "all_gather");
OB_KIND(all_gather_base, _ALLGATHER_BASE, "all_gather_into_tensor", "_allgather_base_", "_allgather_base");
OB_KIND(all_gather_coalesced, ALLGATHER_COALESCED, "all_gather_into_tensor_coalesced",
        "allgather_into_tensor_coalesced_", "allgather_into_tensor_coalesced");
OB_KIND(all_gather_lists, ALLGATHER_COALESCED, "all_gather_coalesced", "allgather_coalesced_", "all_gather_coalesced");
OB_KIND(gather, GATHER, "gather", "gather_", "gather");
OB_KIND(scatter, SCATTER, "scatter", "scatter_", "scatter");
OB_KIND(reduce_scatter, REDUCE_SCATTER, "reduce_scatter", "reduce_scatter_", "reduce_scatter");
OB_KIND(reduce_scatter_base, _REDUCE_SCATTER_BASE, "reduce_scatter_tensor", "_reduce_scatter_base_",
        "_reduce_scatter_base");
OB_KIND(reduce_scatter_coalesced, COALESCED, "reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced_",
        "reduce_scatter_tensor_coalesced");
OB_KIND(all_to_all_base, ALLTOALL_BASE, "all_to_all_single", "alltoall_base_", "all_to_all");
OB_KIND(all_to_all, ALLTOALL, "all_to_all", "alltoall_", "all_to_all");
OB_KIND(send, SEND, "send", "send", "send");
OB_KIND(recv, RECV, "recv", "recv_", "recv");
OB_KIND(recv_any_source, RECVANYSOURCE, "recv", "recv_any_source_", "recv");
OB_KIND(barrier, BARRIER, "barrier", "barrier", "barrier");
#undef OB_KIND
}  // namespace kinds

namespace {
const Kind* const all_kinds[] = {&kinds::all_reduce,
                                 &kinds::all_reduce_coalesced,
                                 &kinds::broadcast,
                                 &kinds::reduce,
                                 &kinds::all_gather,
                                 &kinds::all_gather_base,
                                 &kinds::all_gather_coalesced,
                                 &kinds::all_gather_lists,
                                 &kinds::gather,
                                 &kinds::scatter,
                                 &kinds::reduce_scatter,
                                 &kinds::reduce_scatter_base,
                                 &kinds::reduce_scatter_coalesced,
                                 &kinds::all_to_all_base,
                                 &kinds::all_to_all,
                                 &kinds::send,
                                 &kinds::recv,
                                 &kinds::recv_any_source,
                                 &kinds::barrier};
}  // namespace

std::vector<CollectiveRow> collective_coverage() {
  std::vector<CollectiveRow> rows;
  for (const Kind* kind : all_kinds) {
    if (const uint64_t calls = kind->host.load()) {
      rows.push_back({kind->op, "host", calls});
    }
    if (const uint64_t calls = kind->staged.load()) {
      rows.push_back({kind->op, "staged", calls});
    }
    if (const uint64_t calls = kind->native.load()) {
      rows.push_back({kind->op, "native", calls});
    }
  }
  return rows;
}

void reset_collective_coverage() {
  for (const Kind* kind : all_kinds) {
    kind->host = 0;
    kind->staged = 0;
    kind->native = 0;
  }
}

}  // namespace outboard

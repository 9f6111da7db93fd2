// SPDX-License-Identifier: BSD-3-Clause
// The functions of the collectives that the bindings need, besides the backend itself. Includes no
// c10d headers.
#pragma once

#include <cstdint>
#include <vector>

#include "core/export.h"

namespace outboard {

// How often collectives of the device's tensors ran, by "c10d::allreduce_" and "host" or "staged".
// The texts live as long as the process.
struct CollectiveRow {
  const char* op;
  const char* provider;
  uint64_t calls;
};
#ifdef OUTBOARD_DISTRIBUTED
OUTBOARD_API std::vector<CollectiveRow> collective_coverage();
OUTBOARD_API void reset_collective_coverage();

// End the threads of every group and fail pending work, when the process exits.
OUTBOARD_API void abort_all_groups() noexcept;
#else  // a torch without torch.distributed has no groups
inline std::vector<CollectiveRow> collective_coverage() {
  return {};
}
inline void reset_collective_coverage() {}
inline void abort_all_groups() noexcept {}
#endif

}  // namespace outboard

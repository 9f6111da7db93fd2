// SPDX-License-Identifier: BSD-3-Clause
#include "biases.h"

#include <algorithm>

#include "../own_kernels.h"

namespace nv {
namespace {

constexpr uint32_t kColumns = 32, kRows = 8;  // as in own_source.h
constexpr uint32_t kMaxSplits = 256;

// Must be Bias of own_source.h.
struct BiasArgument {
  uint32_t count, channels, inner, splits;
};

uint32_t tiles_of(uint32_t channels) {
  return (channels + kColumns - 1) / kColumns;
}

}  // namespace

// Enough blocks for a large GPU, and enough elements for each.
uint32_t Biased::splits() const {
  constexpr uint32_t kBlocks = 1024, kLeastRows = 64, kLeastElements = 2048;
  const uint32_t blocks = inner == 1 ? tiles_of(channels) : channels;
  const uint32_t most = count / channels / (inner == 1 ? kLeastRows : kLeastElements);
  return std::clamp(std::min(kBlocks / blocks, most), 1u, kMaxSplits);
}

uint64_t Biased::scratch_bytes() const {
  return uint64_t{splits()} * channels * sum_bytes;
}

ob_status add_bias(Driver& driver, Device& device, CUstream stream, const Biased& biased) {
  const BiasArgument argument = {biased.count, biased.channels, biased.inner, 1};
  const uint32_t each = kThreads * (16 / biased.element_bytes);
  const std::vector args = {pointer_arg(biased.data), pointer_arg(biased.bias), value_arg(&argument, sizeof argument)};
  return run_own(driver, device, stream, "add_bias_", biased.type, (biased.count + each - 1) / each, kThreads, 1, args);
}

ob_status sum_to_bias(Driver& driver, Device& device, CUstream stream, const Biased& biased, uint64_t scratch) {
  const bool is_last = biased.inner == 1;
  const uint32_t splits = biased.splits(), tiles = tiles_of(biased.channels);
  const BiasArgument argument = {biased.count, biased.channels, biased.inner, splits};
  const std::vector args = {pointer_arg(scratch), pointer_arg(biased.data), value_arg(&argument, sizeof argument)};
  const char* kernel = is_last ? "sum_rows_" : "sum_grids_";
  const ob_status status =
      run_own(driver, device, stream, kernel, biased.type, splits * (is_last ? tiles : biased.channels),
              is_last ? kColumns : kThreads, is_last ? kRows : 1, args);
  if (status != OB_OK) return status;
  const BiasArgument rest = {splits * biased.channels, biased.channels, 1, 1};
  const std::vector last = {pointer_arg(biased.bias), pointer_arg(scratch), value_arg(&rest, sizeof rest)};
  return run_own(driver, device, stream, "sum_splits_", biased.type, tiles, kColumns, kRows, last);
}

}  // namespace nv

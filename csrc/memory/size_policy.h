// SPDX-License-Identifier: BSD-3-Clause
// CUDA's size policy: how a request is rounded, how large its segment is, and when a block is
// split. The constants and the settings (PYTORCH_ALLOC_CONF) are torch's.
#pragma once

#include <c10/core/AllocatorConfig.h>

#include <algorithm>
#include <bit>
#include <cstddef>

#include "memory/block.h"

namespace outboard::memory {

using c10::CachingAllocator::kMinBlockSize;
using c10::CachingAllocator::kMinLargeAlloc;
using c10::CachingAllocator::kRoundLarge;
using c10::CachingAllocator::kSmallBuffer;
using c10::CachingAllocator::kSmallSize;
using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;

constexpr size_t kMaxRequest = size_t{1} << 48;  // 256 TiB: beyond it, a block cannot store its size

constexpr size_t round_up(size_t size, size_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

// Return the bytes of the block that serves a request. `bytes` is at most kMaxRequest.
inline size_t block_size_for(size_t bytes) {
  if (bytes <= kMinBlockSize) {
    return kMinBlockSize;
  }
  const size_t divisions = Config::roundup_power2_divisions(bytes);
  if (C10_LIKELY(divisions <= 1 || bytes <= kMinBlockSize * divisions)) {
    return round_up(bytes, kMinBlockSize);
  }
  // Round up to the next of `divisions` equal steps between two powers of two.
  const size_t step = std::bit_floor(bytes) / std::bit_floor(divisions);
  return round_up(round_up(bytes, std::max<size_t>(step, 1)), kMinBlockSize);
}

constexpr bool is_small_size(size_t block_size) {
  return block_size <= kSmallSize;
}

// Return the bytes to request from the driver for a block of that size.
inline size_t segment_size_for(size_t block_size) {
  if (is_small_size(block_size)) {
    return kSmallBuffer;
  }
  if (block_size < kMinLargeAlloc) {
    return std::max<size_t>(Config::large_segment_size(), round_up(block_size, kRoundLarge));
  }
  return round_up(block_size, kRoundLarge);
}

// Return true if a block is so large that it is never split. The setting counts whole MiB,
// so small blocks skip the check.
inline bool is_oversize(size_t size) {
  return C10_UNLIKELY(size >= kSmallSize) && size >= Config::max_split_size();
}

// Return the bytes to map at once for a request that lacks `size` bytes.
inline size_t map_size_for(bool is_small, size_t size, size_t granularity) {
  return round_up(size, round_up(is_small ? kSmallBuffer : Config::large_segment_size(), granularity));
}

// Return true if the remainder of a free block becomes a separate block.
inline bool should_split(const SizePool& pool, size_t free_size, size_t block_size, bool is_expandable) {
  const size_t remainder = free_size - block_size;
  if (is_expandable) {
    return remainder >= kMinBlockSize;  // the remainder joins its neighbours, or is unmapped
  }
  if (C10_UNLIKELY(pool.is_whole)) {
    return false;
  }
  return pool.is_small ? remainder >= kMinBlockSize : remainder > kSmallSize && !is_oversize(block_size);
}

// Return true if a free block may serve the request. Blocks that must not be split are reserved for
// requests of their size.
inline bool may_use(size_t free_size, size_t block_size) {
  return !is_oversize(free_size) ||
         (is_oversize(block_size) && free_size < block_size + Config::max_non_split_rounding_size());
}

}  // namespace outboard::memory

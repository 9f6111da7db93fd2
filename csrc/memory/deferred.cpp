// SPDX-License-Identifier: BSD-3-Clause
// Blocks that were freed while other streams may still use them. A free only parks the block. Its
// uses are checked here, by the next thread that allocates, synchronizes or empties the cache.
// There the driver may be called and may fail.
#include "core/process.h"
#include "memory/device_heap.h"

namespace outboard::memory {

// Free the parked blocks whose uses are done. Return a driver failure that was not reported yet.
std::exception_ptr DeviceHeap::settle_parked(Effort effort) {
  if (driver_is_gone()) {
    return nullptr;
  }
  // Other threads that find no memory wait for this.
  Transit transit;
  {
    const Lock lock(mutex_);
    stats_.num_sync_all_streams += effort == Effort::Wait;
    begin(&transit);
  }
  Settled settled = parked_.settle(effort);
  const Lock lock(mutex_);
  const bool has_changed = settled.done.head != nullptr;
  while (!is_closed_ && settled.done.head) {
    auto* use = static_cast<BlockUse*>(settled.done.pop());
    Block* block = use->block;
    uses_.give(use);
    block->pending = block->pending - 1;
    if (block->pending == 0) {
      free_block(block);
    }
  }
  end(&transit, has_changed);
  return settled.error;
}

void DeviceHeap::process_deferred() {
  bool is_closed = false;
  bool has_uncached = false;
  {
    const Lock lock(mutex_);
    is_closed = is_closed_;
    has_uncached = !is_closed_ && has_uncached_;
  }
  if (!is_closed && !parked_.is_empty()) {
    if (std::exception_ptr error = settle_parked(Effort::Retry)) {
      defer_error(std::move(error));
    }
  }
  if (has_uncached) {
    release_uncached(nullptr);
  }
  deferred_error_.raise();
}

}  // namespace outboard::memory

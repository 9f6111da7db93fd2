// SPDX-License-Identifier: BSD-3-Clause
// Blocks that were freed while other streams may still use them. A free only parks the block. Its
// uses are checked here, by the next thread that allocates, synchronizes or empties the cache.
// There the driver may be called and may fail.
#include <utility>

#include "core/capture.h"
#include "core/observer.h"
#include "core/process.h"
#include "core/queue.h"
#include "core/stream.h"
#include "memory/device_heap.h"
#include "memory/poison.h"

namespace outboard::memory {

// Free the parked blocks whose uses are done. Return a driver failure that was not reported yet.
std::exception_ptr DeviceHeap::process_parked(WaitMode wait_mode) {
  if (driver_is_gone()) {
    return nullptr;
  }
  // Other threads that find no memory wait for this.
  Transit transit;
  {
    const Lock lock(mutex_);
    stats_.num_sync_all_streams += wait_mode == WaitMode::Wait;
    begin(&transit);
  }
  ProcessedUses processed = parked_.process(wait_mode);
  const Lock lock(mutex_);
  const bool has_changed = processed.done.head != nullptr;
  while (!is_closed_ && processed.done.head) {
    auto* use = static_cast<BlockUse*>(processed.done.pop());
    Block* block = use->block;
    uses_.give(use);
    block->pending = block->pending - 1;
    if (block->pending == 0) {
      free_or_poison(block);
    }
  }
  end(&transit, has_changed);
  return processed.error;
}

// Fill the blocks that were freed, and return them to their pools. If nothing is queued on a
// block's stream, it is filled at once, since work of other streams may read it before that stream
// goes on. Return a failure of the driver; the remaining blocks are not filled.
std::exception_ptr DeviceHeap::poison_freed() {
  Transit transit;
  Block* list = nullptr;
  {
    const Lock lock(mutex_);
    if (C10_LIKELY(unfilled_blocks_ == nullptr) || driver_is_gone()) {
      return nullptr;
    }
    list = std::exchange(unfilled_blocks_, nullptr);
    begin(&transit);
  }
  const DisableObserver unobserved;
  std::exception_ptr error;
  try {
    for (const Block* block = list; block; block = block->child[0]) {
      Stream& stream = *block->pool->stream;
      if (capture_of(stream) != nullptr) {
        continue;
      }
      const uint64_t number = next_poison();
      const Segment& segment = *block->segment;
      if (segment.has_host && query_stream(stream)) {
        poison_host_memory(reinterpret_cast<void*>(block->address + segment.host_delta), block->size(), number);
      } else {
        const PoisonPattern pattern = poison_pattern(number);
        queue_fill(stream, block->address, pattern.data(), sizeof(pattern), block->size() / sizeof(pattern));
      }
      if (Observer* active = observer_of_all(); C10_UNLIKELY(active != nullptr)) {
        active->poison(device_, block->address, block->size(), number);
      }
    }
  } catch (...) {
    error = std::current_exception();
  }
  const Lock lock(mutex_);
  while (!is_closed_ && list) {
    free_block(std::exchange(list, list->child[0]));
  }
  end(&transit, true);
  return error;
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
    if (std::exception_ptr error = process_parked(WaitMode::Retry)) {
      defer_error(std::move(error));
    }
  }
  if (std::exception_ptr error = poison_freed()) {
    defer_error(std::move(error));
  }
  if (has_uncached) {
    release_uncached(nullptr);
  }
  deferred_error_.raise();
}

}  // namespace outboard::memory

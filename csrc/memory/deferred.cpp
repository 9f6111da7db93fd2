// SPDX-License-Identifier: BSD-3-Clause
// Blocks that were freed while other streams may still use them. A free only parks the block: events are recorded and
// polled here, on the next thread that allocates, synchronises or empties the cache, where the driver may be called
// and may fail. An event that is recorded later than the free covers more work than it must, never less.
#include "core/capture.h"
#include "core/driver.h"
#include "core/process.h"
#include "memory/device_heap.h"

namespace outboard::memory {

DeviceHeap::EventQueue& DeviceHeap::queue_of(Stream& stream) {
  for (EventQueue& queue : queues_) {
    if (queue.stream == &stream) {
      return queue;
    }
  }
  return queues_.emplace_back(EventQueue{&stream, {}});
}

// Records what is unrecorded, then frees the blocks whose events are all done: with Wait::No those that are done now,
// with Wait::Yes all. One thread at a time; with Wait::No the others leave it to that thread. A failure of the driver
// leaves every use where it was, to be tried again; it is raised from here only with Wait::Yes, else later.
void DeviceHeap::settle_parked(Wait wait) {
  if (driver_is_gone()) {
    return;
  }
  Transit transit;
  UseList fresh;
  for (;;) {
    {
      const Lock lock(mutex_);
      if (!is_settling_) {
        is_settling_ = true;
        settler_ = std::this_thread::get_id();
        fresh = std::exchange(unrecorded_, {});
        stats_.num_sync_all_streams += wait == Wait::Yes;
        begin(&transit);
        break;
      }
      if (wait == Wait::No || settler_ == std::this_thread::get_id()) {
        return;
      }
    }
    wait_for_transits(0);  // the other thread is one of them
  }

  UseList done;
  UseList captured;
  size_t recorded = 0;
  size_t finished = 0;
  std::exception_ptr error;
  try {
    while (StreamUse* use = fresh.head) {
      if (C10_UNLIKELY(capture_of(*use->stream) != nullptr)) {
        // An event would be a part of the graph. The block waits for the end of the capture.
        captured.append(fresh.pop());
        continue;
      }
      EventQueue& queue = queue_of(*use->stream);
      use->event.record(*use->stream);
      fresh.pop();
      queue.uses.append(use);
      ++recorded;
    }
    for (EventQueue& queue : queues_) {
      while (const StreamUse* use = queue.uses.head) {
        if (wait == Wait::Yes) {
          use->event.synchronize();
        } else if (!use->event.query()) {
          break;
        }
        done.append(queue.uses.pop());
        ++finished;
      }
    }
  } catch (...) {
    error = std::current_exception();
  }
  for (StreamUse* use = done.head; use; use = use->next) {
    use->event = Event();
  }

  {
    const Lock lock(mutex_);
    if (!is_closed_) {
      unrecorded_.splice_front(fresh);
      unrecorded_.splice_front(captured);
      recorded_count_ += recorded;
      recorded_count_ -= finished;
      while (done.head) {
        StreamUse* use = done.pop();
        Block* block = use->block;
        uses_.give(use);
        block->pending = block->pending - 1;
        if (block->pending == 0) {
          free_block(block);
        }
      }
    }
    is_settling_ = false;
    is_paused_ = error && wait == Wait::No;
    end(&transit, finished != 0);
  }
  if (error) {
    if (wait == Wait::Yes) {
      std::rethrow_exception(error);
    }
    defer_error(std::move(error));
  }
}

void DeviceHeap::process_deferred() {
  bool is_needed = false;
  bool has_uncached = false;
  {
    const Lock lock(mutex_);
    is_needed = !is_closed_ && has_deferred();
    has_uncached = !is_closed_ && has_uncached_;
  }
  if (is_needed) {
    settle_parked(Wait::No);
  }
  if (has_uncached) {
    release_uncached(nullptr);
  }
  deferred_error_.raise();
}

}  // namespace outboard::memory

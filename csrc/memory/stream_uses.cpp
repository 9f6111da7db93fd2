// SPDX-License-Identifier: BSD-3-Clause
#include "memory/stream_uses.h"

#include <algorithm>
#include <utility>

#include "core/blocking.h"
#include "core/capture.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/observer.h"
#include "core/pending.h"

namespace outboard::memory {

namespace {

// Return true if waits for the device skip an external stream because a wait for it failed. It is
// skipped until the user uses it again; an event of ours must not count as such a use.
bool is_skipped(const Stream& stream) noexcept {
  return stream.is_external && !stream.is_created.load(std::memory_order_acquire);
}

// Return true if the driver waits for all streams of the device, skipped ones included.
bool synchronize_whole_device(c10::DeviceIndex device) {
  const TrackedCall noted("device_synchronize", device);
  return driver().device_synchronize && !is_capturing_natively() &&
         driver().device_synchronize(driver().self, device) == OB_OK;
}

}  // namespace

void StreamUses::add(StreamUse* use) noexcept {
  const std::lock_guard lock(mutex_);
  added_.append(use);
  count_.fetch_add(1, std::memory_order_release);
}

// Make this thread the processing thread, with the uses added since the last visit. Return false
// if another thread processes, or this thread itself, further up the stack.
bool StreamUses::enter(WaitMode wait_mode, UseList* out_added) {
  const auto self = std::this_thread::get_id();
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (!is_processing_.load()) {
        is_processing_.store(true);
        processing_thread_ = self;
        *out_added = std::exchange(added_, {});
        return true;
      }
      if (wait_mode != WaitMode::Wait || processing_thread_ == self) {
        return false;
      }
    }
    // The other thread may need the interpreter lock to continue.
    const TrackedWait waiting("event_query", OB_HOST, nullptr,
                              "another thread that is checking which memory is still in use");
    std::unique_lock lock(mutex_);
    processing_ended_.wait(lock, [this] { return !is_processing_.load(); });
  }
}

void StreamUses::leave() noexcept {
  size_t failing = 0;
  for (const Queue& queue : queues_) {
    failing += queue.is_failing ? queue.count : 0;
  }
  {
    const std::lock_guard lock(mutex_);
    failing_count_.store(failing);
    processing_thread_ = {};
    is_processing_.store(false);
  }
  processing_ended_.notify_all();
}

StreamUses::Queue& StreamUses::queue_of(Stream& stream) {
  const auto it =
      std::find_if(queues_.begin(), queues_.end(), [&](const Queue& queue) { return queue.stream == &stream; });
  return it != queues_.end() ? *it : queues_.emplace_back(Queue{&stream});
}

// Return false if the stream is skipped, or if it captures, because the event
// would become part of the graph.
bool StreamUses::record_all(Queue& queue) {
  while (StreamUse* use = queue.unrecorded.head) {
    if (!use->is_recorded) {
      if (C10_UNLIKELY(capture_of(*queue.stream) != nullptr || is_skipped(*queue.stream))) {
        return false;
      }
      use->event.record(*queue.stream);
      if (C10_UNLIKELY(use->event.is_captured())) {  // a capture began meanwhile
        use->event = Event();
        return false;
      }
      use->is_recorded = true;
    }
    queue.recorded.append(queue.unrecorded.pop());
  }
  return true;
}

// Move finished uses from the queue to processed->done.
void StreamUses::advance(Queue& queue, WaitMode wait_mode, ProcessedUses* processed) {
  const DisableObserver unobserved;  // the program does not know what the allocator sees
  const auto finish = [&](UseList& uses) {
    StreamUse* use = uses.pop();
    use->event = Event();
    use->is_recorded = false;
    --queue.count;
    processed->done.append(use);
  };
  if (queue.is_failing && wait_mode == WaitMode::Poll) {
    return;
  }
  try {
    // A record waits for the programs of the stream's launches.
    const bool is_recorded =
        (wait_mode == WaitMode::Poll && has_pending(*queue.stream) && !outboard::submit_ready(*queue.stream))
            ? false
            : record_all(queue);
    while (const StreamUse* use = queue.recorded.head) {
      if (wait_mode == WaitMode::Wait) {
        use->event.drain();
      } else if (!use->event.query()) {
        break;
      }
      finish(queue.recorded);
    }
    queue.is_failing = !is_recorded && is_skipped(*queue.stream);  // the caller that waited for it got the error
    if (!queue.is_failing) {
      queue.is_reported = false;
      return;
    }
  } catch (...) {
    queue.is_failing = true;
    if (!queue.is_reported && !processed->error) {
      queue.is_reported = true;
      processed->error = std::current_exception();
      processed->failed = queue.stream;
    }
    // The state of the existing events is unknown: the next attempt records new ones.
    for (StreamUse* use = queue.recorded.head; use; use = use->next) {
      use->is_recorded = false;
    }
    queue.unrecorded.splice_front(queue.recorded);
  }
  const bool may_drain = wait_mode == WaitMode::Wait && capture_of(*queue.stream) == nullptr;
  std::exception_ptr drain_error = processed->error;  // a failure of this stream was reported above
  if (may_drain && drain(*queue.stream, false, &drain_error)) {
    while (queue.unrecorded.head) {
      finish(queue.unrecorded);
    }
    queue.is_failing = false;
    queue.is_reported = false;
  }
}

ProcessedUses StreamUses::process(WaitMode wait_mode) {
  ProcessedUses processed;
  UseList added;
  if (is_empty() || !enter(wait_mode, &added)) {
    return processed;
  }
  try {
    while (added.head) {
      Queue& queue = queue_of(*added.head->stream);
      queue.unrecorded.append(added.pop());
      ++queue.count;
    }
    for (Queue& queue : queues_) {
      if (queue.count != 0) {
        advance(queue, wait_mode, &processed);
      }
    }
  } catch (...) {  // no memory for a queue: the rest is tried again
    processed.error = std::current_exception();
    const std::lock_guard lock(mutex_);
    added_.splice_front(added);
  }
  size_t finished = 0;
  for (const StreamUse* use = processed.done.head; use; use = use->next) {
    ++finished;
  }
  count_.fetch_sub(finished);
  leave();
  return processed;
}

bool StreamUses::drain(Stream& stream, bool is_whole_device, std::exception_ptr* out_error) noexcept {
  std::exception_ptr error;
  bool is_drained = false;
  try {
    if (!is_whole_device) {
      drain_stream(stream);
      is_drained = true;
    }
  } catch (...) {
    error = std::current_exception();
  }
  try {
    if (!is_drained) {
      drain_device(stream.device);
      is_drained = !is_skipped(stream) || synchronize_whole_device(stream.device);
    }
  } catch (...) {
    error = error ? error : std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  const auto entry = std::find(drain_failed_streams_.begin(), drain_failed_streams_.end(), &stream);
  if (!error) {
    if (entry != drain_failed_streams_.end()) {
      drain_failed_streams_.erase(entry);
    }
  } else if (entry == drain_failed_streams_.end() && !*out_error) {
    *out_error = std::move(error);
    try {
      drain_failed_streams_.push_back(&stream);
    } catch (const std::bad_alloc&) {  // then it may be reported again
    }
  }
  return is_drained;
}

void StreamUses::drop_all() noexcept {
  const std::lock_guard lock(mutex_);
  const auto drop = [&](UseList& uses) {
    while (uses.head) {
      uses.pop()->event = Event();
      count_.fetch_sub(1);
    }
  };
  drop(added_);
  if (is_processing_.load()) {
    return;  // that thread processes the others
  }
  for (Queue& queue : queues_) {
    drop(queue.unrecorded);
    drop(queue.recorded);
    queue.count = 0;
  }
  failing_count_.store(0);
}

}  // namespace outboard::memory

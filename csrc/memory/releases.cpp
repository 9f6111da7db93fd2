// SPDX-License-Identifier: BSD-3-Clause
// The part of DeviceHeap that returns memory to the driver. The lock is never held over
// a driver call: the memory concerned is taken out of the heap before the call, and
// what remains is put back after it.
#include <cinttypes>
#include <cstdio>

#include "core/blocking.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/lost_device.h"
#include "core/process.h"
#include "memory/caching_allocator.h"
#include "memory/device_heap.h"
#include "memory/management.h"
#include "memory/segments.h"
#include "memory/size_policy.h"

namespace outboard::memory {

namespace {

using c10::CachingAllocator::StatArray;

void decrease(StatArray& stat, const SizePool& pool, size_t amount) {
  stat[0].decrease(amount);
  stat[pool.stat_type()].decrease(amount);
}

}  // namespace

void raise_closed(c10::DeviceIndex device) {
  raise(ErrorKind::Driver, OB_FAILED_PRECONDITION,
        "the memory of " + device_text(device) + " was released at the end of the process");
}

std::exception_ptr failure_of(ob_status status, const char* entry, c10::DeviceIndex device) noexcept {
  try {
    raise_status(status, entry, device);
  } catch (...) {
    return std::current_exception();
  }
}

ob_status free_memory(c10::DeviceIndex device, const Segment& segment) {
  const TrackedWait waiting(segment.is_expandable ? "mem_release" : "mem_free", device);
  if (is_lost(device) && !segment.source) {
    return OB_OK;
  }
  if (segment.is_expandable) {
    return driver().mem_release(driver().self, device, segment.address, segment.span);
  }
  if (segment.source) {
    segment.source->free(reinterpret_cast<void*>(segment.address), static_cast<ptrdiff_t>(segment.size), device,
                         reinterpret_cast<void*>(segment.pool->stream->handle));
    return OB_OK;
  }
  return driver().mem_free(driver().self, device, segment.address);
}

// Make room before the driver is asked, if this process has reserved
// more than a fraction of its limit.
void DeviceHeap::collect_garbage() {
  const double threshold = Config::garbage_collection_threshold();
  if (C10_LIKELY(threshold <= 0)) {
    return;
  }
  const auto total = static_cast<double>(device_properties(device_).total_memory);
  Transit transit;
  Segment* list = nullptr;
  {
    Lock lock(mutex_);
    const auto limit = static_cast<size_t>(threshold * fraction_ * total);
    const auto reserved = static_cast<size_t>(stats_.reserved_bytes[0].current);
    list = limit == 0 || reserved <= limit ? nullptr : detach_old_segments(reserved - limit);
    if (!list) {
      return;
    }
    begin(&transit);
  }
  std::exception_ptr error;
  release(list, &transit, &error);
  if (error) {
    std::rethrow_exception(error);
  }
}

// Release the free segments that pass the filter, and return how many. Raise the
// first failure after all were tried.
size_t DeviceHeap::release_cached(SegmentFilter filter) {
  if (driver_is_gone()) {
    raise_closed(device_);
  }
  Transit transit;
  Segment* list = nullptr;
  Block* ranges = nullptr;
  {
    Lock lock(mutex_);
    ranges = detach_free_ranges(filter);  // may throw, before anything else is done
    list = detach_free_segments(filter);
    while (Segment* segment = free_failed_segments_) {
      free_failed_segments_ = segment->next;
      segment->release = Segment::Release::Drained;
      segment->next = list;
      list = segment;
    }
    list = detach_unmapped_segments(list);  // segments whose first mem_map failed, or whose memory was released before
    if (!list && !ranges) {
      return 0;
    }
    begin(&transit);
  }
  std::exception_ptr error;
  size_t released = unmap_ranges(ranges, &error);
  if (released != 0) {
    const Lock lock(mutex_);
    ++changes_;
    list = detach_unmapped_segments(list);
  }
  released += release(list, &transit, &error);
  if (error) {
    std::rethrow_exception(error);
  }
  return released;
}

// Wait for all work that may use the free memory of a pool. Reuse within a stream is ordered, so
// that stream may still use it. Results of a graph or of another user of a private pool may be read
// on any stream, and that is recorded nowhere.
bool DeviceHeap::drain(const SizePool& pool, std::exception_ptr* out_error) noexcept {
  const bool is_private = pool.mempool != c10::MempoolId_t{0, 0} && pool.mempool != kUncachedPool;
  return parked_.drain(*pool.stream, is_private, out_error);
}

// Free a list of detached segments and end the transit. A segment whose stream could not be
// drained returns to the heap. A segment that the driver did not free is kept aside, because the
// state of its memory is unknown.
size_t DeviceHeap::release(Segment* list, Transit* transit, std::exception_ptr* out_error) noexcept {
  using Release = Segment::Release;
  const auto keep_first = [&](std::exception_ptr error) {
    if (!*out_error) {
      *out_error = std::move(error);
    }
  };
  // mem_free may be called only when no queued work uses the memory. Reuse within a
  // stream does not wait for that.
  for (Segment* segment = list; segment; segment = segment->next) {
    if (segment->release != Release::NotYet) {
      continue;
    }
    const SizePool& pool = *segment->pool;
    const Release state = drain(pool, out_error) ? Release::Drained : Release::DrainFailed;
    for (Segment* other = segment; other; other = other->next) {
      if (other->release == Release::NotYet && other->pool->stream == pool.stream &&
          other->pool->mempool == pool.mempool) {
        other->release = state;
      }
    }
  }
  for (Segment* segment = list; segment; segment = segment->next) {
    if (segment->release == Release::Drained) {
      const ob_status status = free_memory(device_, *segment);
      segment->release = status == OB_OK ? Release::Freed : Release::FreeFailed;
      if (status != OB_OK) {
        keep_first(failure_of(status, "mem_free", device_));
      }
    }
  }
  size_t released = 0;
  const Lock lock(mutex_);
  for (Segment *segment = list, *next = nullptr; segment; segment = next) {
    next = segment->next;
    if (segment->release == Release::DrainFailed) {
      attach(segment);
      continue;
    }
    if (segment->release == Release::FreeFailed) {
      segment->next = free_failed_segments_;
      free_failed_segments_ = segment;
      continue;
    }
    ++released;
    if (segment->is_counted) {
      stats_.num_device_free += !segment->is_expandable;
      if (!segment->is_expandable) {
        note(TraceEntry::SEGMENT_FREE, segment->address, segment->size, segment->pool);
      }
      decrease(stats_.segment, *segment->pool, 1);
      count_reserved(*segment->pool, -static_cast<int64_t>(segment->size));
      if (segment->is_oversize) {
        stats_.oversize_segments.decrease(1);
      }
    }
    if (segment->first) {
      segment->first->set_state(BlockState::Unused);
      blocks_.give(segment->first);
    }
    --segment->pool->owner->holders;
    drop_idle_pools(segment->pool->mempool);
    delete segment;
  }
  end(transit, released != 0);
  return released;
}

void DeviceHeap::empty_cache(c10::MempoolId_t mempool) {
  {
    const Lock lock(mutex_);
    if (is_closed_ || (!segments_ && !free_failed_segments_)) {
      return;
    }
  }
  std::exception_ptr error;
  const auto attempt = [&](auto step) {
    try {
      step();
    } catch (...) {
      error = error ? error : std::current_exception();  // the others get their turn
    }
  };
  attempt(reclaim_memory);
  if (std::exception_ptr parked = process_parked(WaitMode::Wait)) {
    error = error ? error : std::move(parked);
  }
  if (std::exception_ptr failed = poison_freed()) {
    error = error ? error : std::move(failed);
  }
  // Release segments of one private pool, or of all pools; is_releasable excludes pools in use.
  attempt([&] {
    release_cached(
        [&](const Segment& segment) { return mempool == c10::MempoolId_t{0, 0} || segment.pool->mempool == mempool; });
  });
  if (error) {
    std::rethrow_exception(error);
  }
}

// Wait for other threads' transits. Return false if there were none, and none has changed anything
// since `changes_` was `changes`.
bool DeviceHeap::wait_for_transits(uint64_t changes) {
  // Those threads may need the interpreter lock to continue.
  const TrackedWait waiting("mem_free", device_, nullptr, "other threads that are freeing memory");
  Lock lock(mutex_);
  const uint64_t end = next_transit_;
  const auto self = std::this_thread::get_id();
  const auto is_under_way = [&] {
    for (const Transit* transit = transits_; transit; transit = transit->next) {
      if (transit->number < end && transit->thread != self) {
        return true;
      }
    }
    return false;
  };
  if (!is_under_way()) {
    return changes_ != changes;
  }
  transit_ended_.wait(lock, [&] { return !is_under_way(); });
  return true;
}

void DeviceHeap::release_all() noexcept {
  Segment* list = nullptr;
  {
    Lock lock(mutex_);
    is_closed_ = true;
    list = std::exchange(segments_, nullptr);
    while (Segment* segment = free_failed_segments_) {
      free_failed_segments_ = segment->next;
      segment->next = list;
      list = segment;
    }
    unfilled_blocks_ = nullptr;
    parked_.drop_all();  // nothing is queued any more: the parked blocks go with their segments
  }
  // The segments' descriptions stay: live blocks still point to them.
  for (const Segment* segment = list; segment; segment = segment->next) {
    unmap_all(*segment);
    const ob_status status = free_memory(device_, *segment);
    if (status != OB_OK) {
      std::fprintf(stderr, "torch_outboard: mem_free on %s failed with %s while the device was closed\n",
                   device_text(device_).c_str(), status_name(status).c_str());
    }
  }
  const Lock lock(mutex_);
  stats_ = DeviceStats();
}

}  // namespace outboard::memory

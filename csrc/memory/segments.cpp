// SPDX-License-Identifier: BSD-3-Clause
// The part of DeviceHeap that asks the driver for memory; releases.cpp returns it. The lock
// is never held over a driver call: the memory concerned is taken out of the heap before
// the call, and put back after it.
#include <c10/util/Exception.h>

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

void increase(StatArray& stat, const SizePool& pool, size_t amount) {
  stat[0].increase(amount);
  stat[pool.stat_type()].increase(amount);
}

// A scope in which a thread needs a pool after the lock is released.
class Visit {
 public:
  explicit Visit(SizePool& pool, std::mutex& mutex) : pools_(*pool.owner), mutex_(mutex) { ++pools_.holders; }
  ~Visit() {
    const std::lock_guard lock(mutex_);
    --pools_.holders;
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  StreamPools& pools_;
  std::mutex& mutex_;
};

bool is_any(const Segment&) {
  return true;
}

}  // namespace

Block* DeviceHeap::allocate(Stream& stream, size_t bytes) {
  const ContextScope context(history_, RecordContext::STATE);
  if (C10_UNLIKELY(bytes > kMaxRequest)) {
    notify_out_of_memory(device_, bytes);
    raise_out_of_memory(bytes, "");
  }
  const size_t size = block_size_for(bytes);
  Lock lock(mutex_);
  if (C10_UNLIKELY(is_closed_)) {
    lock.unlock();
    raise_closed(device_);
  }
  if (C10_UNLIKELY(parked_.is_pollable() || unfilled_blocks_ != nullptr)) {
    lock.unlock();
    if (std::exception_ptr error = process_parked(WaitMode::Poll)) {
      defer_error(std::move(error));
    }
    if (std::exception_ptr error = poison_freed()) {
      defer_error(std::move(error));
    }
    lock.lock();
  }
  Block* block = nullptr;
  c10::MempoolId_t mempool{0, 0};
  if (C10_UNLIKELY(!routes_.empty())) {
    mempool = mempool_for(stream);
  }
  const bool is_common = mempool.first == 0 && mempool.second == 0;
  if (C10_LIKELY(!is_common || !is_uncached())) {
    StreamPools& pools = pools_of(stream, mempool);
    SizePool& pool = is_small_size(size) ? pools.small : pools.large;
    block = find_block(pool, size, bytes);
    if (C10_UNLIKELY(!block)) {
      const Visit visit(pool, mutex_);
      lock.unlock();
      block = allocate_slowly(pool, size, bytes);
    } else {
      lock.unlock();
    }
  } else {
    lock.unlock();
    block = allocate_uncached(stream, size, bytes);
  }
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    report_to_profiler(block->address, static_cast<int64_t>(block->size()));
  }
  return block;
}

// Allocate separate memory for a block. First, memory freed on this stream with caching
// disabled is returned to the driver.
Block* DeviceHeap::allocate_uncached(Stream& stream, size_t size, size_t requested) {
  SizePool* pool = nullptr;  // never dropped
  {
    const Lock lock(mutex_);
    has_uncached_ = true;
    StreamPools& pools = pools_of(stream, kUncachedPool);
    pool = is_small_size(size) ? &pools.small : &pools.large;
  }
  release_uncached(&stream);
  return allocate_slowly(*pool, size, requested);
}

// Release uncached memory of one stream, or of all streams for null.
void DeviceHeap::release_uncached(Stream* stream) {
  release_cached([&](const Segment& segment) {
    return segment.pool->mempool == kUncachedPool && (!stream || segment.pool->stream == stream);
  });
}

Block* DeviceHeap::allocate_slowly(SizePool& pool, size_t size, size_t requested) {
  if (driver_is_gone()) {
    raise_closed(device_);
  }
  collect_garbage();
  // Ask the driver, and make room between its refusals by more and more expensive means.
  enum { ReleaseStream, ReleaseAll, AwaitOthers, AskObservers, GiveUp };
  std::string refusal;  // in the driver's words
  for (int means = ReleaseStream;; ++means) {
    uint64_t changes = 0;
    {
      const Lock lock(mutex_);
      changes = changes_;
    }
    if (Block* block = add_segment(pool, size, requested, &refusal)) {
      return block;
    }
    if (means == ReleaseStream) {
      {
        const Lock lock(mutex_);
        ++stats_.num_alloc_retries;
      }
      const size_t released = release_for_allocation([&](const Segment& segment) {
        return segment.pool->stream == pool.stream && segment.pool->mempool == pool.mempool;
      });
      if (released == 0) {
        ++means;  // do not ask again before the next means
      }
    }
    if (means == ReleaseAll) {
      make_room();
    } else if (means == AwaitOthers && !wait_for_transits(changes)) {
      ++means;
    }
    if (means == AskObservers) {
      {
        const Lock lock(mutex_);
        if (Block* block = find_fallback_block(pool, size, requested)) {
          return block;
        }
      }
      if (!notify_out_of_memory(device_, requested)) {
        raise_out_of_memory(requested, refusal);
      }
      make_room();
    } else if (means == GiveUp) {
      raise_out_of_memory(requested, refusal);
    }
    // Blocks that were parked, or freed by other threads meanwhile, may suffice.
    const Lock lock(mutex_);
    if (Block* block = find_block(pool, size, requested)) {
      return block;
    }
  }
}

// Release cached memory for an allocation. Other streams' failures do not make it fail: the next
// wait for the device raises them.
size_t DeviceHeap::release_for_allocation(SegmentFilter filter) {
  try {
    return release_cached(filter);
  } catch (...) {
    defer_error(std::current_exception());
    return 0;
  }
}

// Wait for all freed blocks that are not known to be done, then release the cache.
void DeviceHeap::make_room() {
  try {
    reclaim_memory();
  } catch (...) {
    defer_error(std::current_exception());
  }
  if (std::exception_ptr error = process_parked(WaitMode::Wait)) {
    defer_error(std::move(error));
  }
  if (std::exception_ptr error = poison_freed()) {
    defer_error(std::move(error));
  }
  release_for_allocation(is_any);
}

// Return null if the driver has no memory, with its reason, or at the limit. Raise for every
// other failure, with nothing leaked.
Block* DeviceHeap::add_segment(SizePool& pool, size_t size, size_t requested, std::string* out_refusal) {
  out_refusal->clear();
  if (C10_UNLIKELY(Config::use_expandable_segments()) && is_expandable(pool)) {
    return grow(pool, size, requested, out_refusal);
  }
  Transit transit;
  const size_t bytes = pool.is_exact ? size : segment_size_for(size);
  {
    const Lock lock(mutex_);
    const size_t reserved = static_cast<size_t>(stats_.reserved_bytes[0].current) + in_flight_bytes_;
    if (reserved > limit_ || bytes > limit_ - reserved) {
      return nullptr;
    }
    in_flight_bytes_ += bytes;
    begin(&transit);
  }
  const auto finish = [&](bool has_changed) {  // with the lock held
    in_flight_bytes_ -= bytes;
    end(&transit, has_changed);
  };
  std::unique_ptr<Segment> segment;
  try {
    segment = query_driver(pool, bytes, out_refusal);
    const Lock lock(mutex_);
    if (!segment) {
      finish(false);
      return nullptr;
    }
    Block* block = blocks_.take();
    Block* spare = nullptr;
    if (should_split(pool, segment->size, size, false)) {
      try {
        spare = blocks_.take();
      } catch (...) {
        blocks_.give(block);
        throw;
      }
    }
    *block = Block{};
    block->segment = segment.get();
    block->pool = &pool;
    block->address = segment->address;
    block->set_size(segment->size);
    segment->first = block;
    segment->is_counted = true;
    segment->is_oversize = is_oversize(segment->size);
    ++stats_.num_device_alloc;
    increase(stats_.segment, pool, 1);
    count_reserved(pool, static_cast<int64_t>(segment->size));
    ++pool.owner->holders;
    if (segment->is_oversize) {
      stats_.oversize_segments.increase(1);
    }
    note(TraceEntry::SEGMENT_ALLOC, segment->address, segment->size, &pool);
    link(segment.release());
    finish(true);
    return allocate_block(block, size, requested, spare);
  } catch (...) {
    if (segment) {
      discard(segment.release());
    }
    const Lock lock(mutex_);
    finish(false);
    throw;
  }
}

std::unique_ptr<Segment> DeviceHeap::query_driver(SizePool& pool, size_t bytes, std::string* out_refusal) {
  auto segment = std::make_unique<Segment>();
  segment->pool = &pool;
  segment->size = bytes;
  segment->span = bytes;
  segment->source = pool.source;
  if (pool.source) {
    segment->address = reinterpret_cast<uint64_t>(pool.source->alloc(
        static_cast<ptrdiff_t>(bytes), device_, reinterpret_cast<void*>(stream_handle(*pool.stream))));
    if (segment->address == 0) {
      return nullptr;
    }
  } else {
    const TrackedCall noted("mem_alloc", device_);
    const ob_status status = driver().mem_alloc(driver().self, device_, bytes, &segment->address);
    if (status == OB_OUT_OF_MEMORY) {
      const FailedEntry failed("mem_alloc", device_);
      *out_refusal = last_driver_error();
      return nullptr;
    }
    check(status, "mem_alloc", device_);
  }
  const std::string where = (pool.source ? std::string("the pluggable allocator's alloc function")
                                         : "driver '" + driver_name() + "': mem_alloc") +
                            " on device " + std::to_string(static_cast<int>(device_));
  if (segment->address == 0) {
    raise(ErrorKind::Driver, OB_INTERNAL, where + " returned OK with a null address; it must return memory or fail");
  }
  try {
    if (segment->address % kMinBlockSize != 0) {
      char address[32];
      std::snprintf(address, sizeof(address), "0x%" PRIx64, segment->address);
      raise(ErrorKind::Driver, OB_INTERNAL,
            where + " returned the address " + address + "; it must be aligned to " + std::to_string(kMinBlockSize) +
                " bytes");
    }
    if (driver().host_address) {
      uint64_t host = 0;
      const ob_status translated = driver().host_address(driver().self, device_, segment->address, bytes, &host);
      if (!is_unimplemented(translated)) {
        check(translated, "host_address", device_);
        segment->has_host = host != 0;
        segment->host_delta = host - segment->address;
      }
    }
  } catch (...) {
    discard(segment.release());
    throw;
  }
  return segment;
}

// Free a segment that never became part of the heap.
void DeviceHeap::discard(Segment* segment) noexcept {
  segment->first = nullptr;
  const ob_status status = free_memory(device_, *segment);
  if (status == OB_OK) {
    delete segment;
    return;
  }
  defer_error(failure_of(status, "mem_free", device_));
  const Lock lock(mutex_);
  ++segment->pool->owner->holders;
  segment->next = free_failed_segments_;
  free_failed_segments_ = segment;
}

void DeviceHeap::report_to_profiler(uint64_t address, int64_t bytes) {
  size_t allocated = 0;
  size_t reserved = 0;
  {
    Lock lock(mutex_);
    allocated = static_cast<size_t>(stats_.allocated_bytes[0].current);
    reserved = static_cast<size_t>(stats_.reserved_bytes[0].current);
  }
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(address), bytes, allocated, reserved,
                                   c10::Device(kDeviceType, device_));
}
}  // namespace outboard::memory

// SPDX-License-Identifier: BSD-3-Clause
// The part of DeviceHeap that asks the driver for memory and returns it. The lock is never held over a driver call: the
// memory concerned is taken out of the heap before the call, and put back after it.
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
#include "memory/size_policy.h"

namespace outboard::memory {

namespace {

using c10::CachingAllocator::StatArray;

void increase(StatArray& stat, const SizePool& pool, size_t amount) {
  stat[0].increase(amount);
  stat[pool.stat_type()].increase(amount);
}

void decrease(StatArray& stat, const SizePool& pool, size_t amount) {
  stat[0].decrease(amount);
  stat[pool.stat_type()].decrease(amount);
}

[[noreturn]] void raise_closed(c10::DeviceIndex device) {
  raise(ErrorKind::Driver, OB_FAILED_PRECONDITION,
        "the memory of " + device_text(device) + " was released at the end of the process");
}

// Return a driver call's failure on this thread, as an exception for later.
std::exception_ptr failure_of(ob_status status, const char* entry, c10::DeviceIndex device) noexcept {
  try {
    raise_status(status, entry, device);
  } catch (...) {
    return std::current_exception();
  }
}

// Return memory to its origin: the driver, or the source of its pool.
ob_status free_memory(c10::DeviceIndex device, const Segment& segment) {
  const Waiting waiting(segment.is_expandable ? "mem_release" : "mem_free", device);
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
  if (C10_UNLIKELY(parked_.is_pollable())) {
    lock.unlock();
    if (std::exception_ptr error = settle_parked(Effort::Poll)) {
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

// Allocate separate memory for a block. First, memory freed on this stream with caching disabled is returned to the
// driver.
Block* DeviceHeap::allocate_uncached(Stream& stream, size_t size, size_t requested) {
  SizePool* pool = nullptr;  // never dropped
  {
    const Lock lock(mutex_);
    has_uncached_ = true;
    StreamPools& pools = pools_of(stream, kUncached);
    pool = is_small_size(size) ? &pools.small : &pools.large;
  }
  release_uncached(&stream);
  return allocate_slowly(*pool, size, requested);
}

// Release uncached memory of one stream, or of all streams for null.
void DeviceHeap::release_uncached(Stream* stream) {
  release_cached([&](const Segment& segment) {
    return segment.pool->mempool == kUncached && (!stream || segment.pool->stream == stream);
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

// Release cached memory for an allocation. Other streams' failures do not fail it: the next wait for the device raises
// them.
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
  if (std::exception_ptr error = settle_parked(Effort::Wait)) {
    defer_error(std::move(error));
  }
  release_for_allocation(is_any);
}

// Return null if the driver has no memory, with its reason, or at the limit. Raise for every other failure, with
// nothing leaked.
Block* DeviceHeap::add_segment(SizePool& pool, size_t size, size_t requested, std::string* out_refusal) {
  out_refusal->clear();
  if (C10_UNLIKELY(Config::use_expandable_segments()) && is_expandable(pool)) {
    return grow(pool, size, requested, out_refusal);
  }
  Transit transit;
  const size_t bytes = pool.is_exact ? size : segment_size_for(size);
  {
    const Lock lock(mutex_);
    const size_t reserved = static_cast<size_t>(stats_.reserved_bytes[0].current) + asked_bytes_;
    if (reserved > limit_ || bytes > limit_ - reserved) {
      return nullptr;
    }
    asked_bytes_ += bytes;
    begin(&transit);
  }
  const auto finish = [&](bool has_changed) {  // with the lock held
    asked_bytes_ -= bytes;
    end(&transit, has_changed);
  };
  std::unique_ptr<Segment> segment;
  try {
    segment = ask_driver(pool, bytes, out_refusal);
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
    return carve(block, size, requested, spare);
  } catch (...) {
    if (segment) {
      discard(segment.release());
    }
    const Lock lock(mutex_);
    finish(false);
    throw;
  }
}

std::unique_ptr<Segment> DeviceHeap::ask_driver(SizePool& pool, size_t bytes, std::string* out_refusal) {
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
    const NotedCall noted("mem_alloc", device_);
    const ob_status status = driver().mem_alloc(driver().self, device_, bytes, &segment->address);
    if (status == OB_OUT_OF_MEMORY) {
      const FailedEntry failed("mem_alloc");
      *out_refusal = last_driver_error();
      return nullptr;
    }
    check(status, "mem_alloc", device_);
  }
  const std::string where = (pool.source ? std::string("the pluggable allocator's alloc function")
                                         : "driver '" + driver_name() + "': mem_alloc") +
                            " on device " + std::to_string(static_cast<int>(device_));
  if (segment->address == 0) {
    raise(ErrorKind::Driver, OB_INTERNAL, where + " returned OK with a null address; it must give memory or fail");
  }
  try {
    if (segment->address % kMinBlockSize != 0) {
      char address[32];
      std::snprintf(address, sizeof(address), "0x%" PRIx64, segment->address);
      raise(ErrorKind::Driver, OB_INTERNAL,
            where + " gave the address " + address + "; it must be aligned to " + std::to_string(kMinBlockSize) +
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
  segment->next = unreleased_;
  unreleased_ = segment;
}

// Make room before the driver is asked, if this process has reserved more than a fraction of its limit.
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

// Release the free segments that pass the filter, and return how many. Raise the first failure after all were tried.
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
    while (Segment* segment = unreleased_) {
      unreleased_ = segment->next;
      segment->release = Segment::Release::Drained;
      segment->next = list;
      list = segment;
    }
    list = detach_unmapped_segments(list);  // whose first mem_map failed, or whose memory went without them
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

// Wait for all work that may use the free memory of a pool. Reuse within a stream is ordered, so that stream may still
// use it. Results of a graph or of another user of a private pool may be read on any stream, and that is recorded
// nowhere.
bool DeviceHeap::drain(const SizePool& pool, std::exception_ptr* out_error) noexcept {
  const bool is_private = pool.mempool != c10::MempoolId_t{0, 0} && pool.mempool != kUncached;
  return parked_.drain(*pool.stream, is_private, out_error);
}

// Free a list of detached segments and end the transit. A segment whose stream could not be drained returns to the
// heap. A segment that the driver did not free is kept aside, because the state of its memory is unknown.
size_t DeviceHeap::release(Segment* list, Transit* transit, std::exception_ptr* out_error) noexcept {
  using Release = Segment::Release;
  const auto keep_first = [&](std::exception_ptr error) {
    if (!*out_error) {
      *out_error = std::move(error);
    }
  };
  // mem_free may be called only when no queued work uses the memory. Reuse within a stream does not wait for that.
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
      segment->next = unreleased_;
      unreleased_ = segment;
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
    if (is_closed_ || (!segments_ && !unreleased_)) {
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
  if (std::exception_ptr parked = settle_parked(Effort::Wait)) {
    error = error ? error : std::move(parked);
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

// Wait for other threads' transits. Return false if there were none, and none has changed anything since `changes_` was
// `changes`.
bool DeviceHeap::wait_for_transits(uint64_t changes) {
  // Those threads may need the interpreter lock to continue.
  const Waiting waiting("mem_free", device_, nullptr, "other threads, which give memory back");
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

void DeviceHeap::release_all() noexcept {
  Segment* list = nullptr;
  {
    Lock lock(mutex_);
    is_closed_ = true;
    list = std::exchange(segments_, nullptr);
    while (Segment* segment = unreleased_) {
      unreleased_ = segment->next;
      segment->next = list;
      list = segment;
    }
    parked_.forget();  // nothing is queued any more: the parked blocks go with their segments
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

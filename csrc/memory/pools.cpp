// SPDX-License-Identifier: BSD-3-Clause
// The part of DeviceHeap that runs with its lock held: finding, splitting and joining
// blocks. Calls no driver entry.
#include <optional>

#include "memory/device_heap.h"
#include "memory/poison.h"
#include "memory/size_policy.h"

namespace outboard::memory {

namespace {

using c10::CachingAllocator::StatArray;

C10_ALWAYS_INLINE void increase(StatArray& stat, size_t type, size_t amount) {
  stat[0].increase(amount);
  stat[type].increase(amount);
}

C10_ALWAYS_INLINE void decrease(StatArray& stat, size_t type, size_t amount) {
  stat[0].decrease(amount);
  stat[type].decrease(amount);
}

void change(StatArray& stat, size_t type, int64_t amount) {
  if (amount > 0) {
    increase(stat, type, static_cast<size_t>(amount));
  } else if (amount < 0) {
    decrease(stat, type, static_cast<size_t>(-amount));
  }
}

}  // namespace

StreamPools& DeviceHeap::pools_of(Stream& stream, c10::MempoolId_t mempool) {
  if (C10_LIKELY(last_pools_ && last_pools_->small.stream == &stream && last_pools_->small.mempool == mempool)) {
    return *last_pools_;
  }
  std::unique_ptr<StreamPools>& pools = pools_[{&stream, mempool}];
  if (!pools) {
    pools = make_pools(stream, mempool);
  }
  last_pools_ = pools.get();
  return *pools;
}

Block* DeviceHeap::find_block(SizePool& pool, size_t size, size_t requested) {
  ++pool.searches;
  Block* block = pool.index.best_fit(size);
  if (!block || (!block->is_expandable && !may_use(block->size(), size))) {
    return nullptr;
  }
  const bool is_expandable = block->is_expandable;
  // Everything that may throw comes before the first change.
  Block* spare = should_split(pool, block->size(), size, is_expandable) ? blocks_.take() : nullptr;
  pool.index.erase(block);
  return allocate_block(block, size, requested, spare);
}

// Turn a free block that is in no index into an allocated one. With a spare, the part
// beyond `size` becomes a free block.
Block* DeviceHeap::allocate_block(Block* block, size_t size, size_t requested, Block* spare) noexcept {
  SizePool& pool = *block->pool;
  const size_t type = pool.stat_type();
  const bool was_split = block->is_split();
  if (spare) {
    spare->segment = block->segment;
    spare->pool = &pool;
    spare->is_expandable = block->is_expandable;
    spare->address = block->address + size;
    spare->set_size(block->size() - size);
    spare->prev = block;
    spare->next = block->next;
    if (spare->next) {
      spare->next->prev = spare;
    }
    block->next = spare;
    block->set_size(size);
    spare->set_state(BlockState::Free);
    pool.index.insert(spare);
    if (was_split) {
      decrease(stats_.inactive_split_bytes, type, size);
    } else {
      increase(stats_.inactive_split, type, 1);
      increase(stats_.inactive_split_bytes, type, spare->size());
    }
  } else if (was_split) {
    decrease(stats_.inactive_split, type, 1);
    decrease(stats_.inactive_split_bytes, type, block->size());
  }
  block->set_state(BlockState::Allocated);
  block->requested = requested;
  block->uses = nullptr;
  block->pending = 0;
  increase(stats_.allocation, type, 1);
  increase(stats_.active, type, 1);
  increase(stats_.allocated_bytes, type, block->size());
  increase(stats_.active_bytes, type, block->size());
  increase(stats_.requested_bytes, type, requested);
  block->is_oversize = is_oversize(block->size());
  if (C10_UNLIKELY(block->is_oversize)) {
    stats_.oversize_allocations.increase(1);
  }
  if (C10_UNLIKELY(is_recording())) {
    note_allocated(block);
  }
  return block;
}

void DeviceHeap::free(Block* block) noexcept {
  std::optional<ContextScope> context;
  if (C10_UNLIKELY(is_recording())) {
    try {
      context.emplace(history_, RecordContext::ALL);
    } catch (...) {
      defer_error(std::current_exception());  // freed anyway, without a stack
    }
  }
  int64_t size = 0;
  uint64_t address = 0;
  {
    Lock lock(mutex_);
    if (is_closed_) {
      return;
    }
    // Needed at the end of this function; the lines arrive while the statistics are updated.
    __builtin_prefetch(block->prev);
    __builtin_prefetch(block->next);
    if (C10_UNLIKELY(block->state() != BlockState::Allocated)) {
      lock.unlock();
      defer_error(std::make_exception_ptr(c10::Error(
          {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
          "device memory was freed twice: the deleter of a DataPtr was called by hand, or its context was kept")));
      return;
    }
    const size_t type = block->pool->stat_type();
    size = static_cast<int64_t>(block->size());
    address = block->address;
    decrease(stats_.allocation, type, 1);
    decrease(stats_.allocated_bytes, type, block->size());
    if (C10_UNLIKELY(block->is_oversize)) {
      stats_.oversize_allocations.decrease(1);
    }
    if (C10_UNLIKELY(is_recording())) {
      note_freed(block, TraceEntry::FREE_REQUESTED);
    }
    if (C10_LIKELY(!block->uses)) {
      free_or_poison(block);
    } else {
      block->set_state(BlockState::Parked);
      // Count first: a use may be done as soon as it is added.
      BlockUse* uses = block->uses;
      for (const StreamUse* use = uses; use; use = use->next) {
        block->pending = block->pending + 1;
      }
      while (BlockUse* use = uses) {
        uses = static_cast<BlockUse*>(use->next);
        parked_.add(use);
      }
    }
  }
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    report_to_profiler(address, -size);
  }
}

// Return a block to its pool, or keep it until poison_freed has filled it. A graph reads memory of
// its pool after the owner's free, so that is not filled.
void DeviceHeap::free_or_poison(Block* block) noexcept {
  if (C10_LIKELY(!poisons()) || block->pool->mempool != c10::MempoolId_t{0, 0}) {
    free_block(block);
    return;
  }
  block->set_state(BlockState::Parked);
  block->child[0] = unfilled_blocks_;
  unfilled_blocks_ = block;
}

// Return an allocated or parked block to its pool, joined with its free neighbours.
void DeviceHeap::free_block(Block* block) noexcept {
  if (C10_UNLIKELY(is_recording())) {
    note_freed(block, TraceEntry::FREE_COMPLETED);
  }
  SizePool& pool = *block->pool;
  const size_t type = pool.stat_type();
  decrease(stats_.active, type, 1);
  decrease(stats_.active_bytes, type, block->size());
  decrease(stats_.requested_bytes, type, block->requested);
  make_free(block);
}

// Put a block that is in no index into its pool, joined with its free
// neighbours. Return the joined block.
Block* DeviceHeap::make_free(Block* block) noexcept {
  SizePool& pool = *block->pool;
  const size_t type = pool.stat_type();
  int64_t inactive = 0;
  int64_t inactive_bytes = 0;
  // Join two blocks into the first. One of them is free, and in the index.
  const auto join = [&](Block* first, Block* second, Block* free) {
    pool.index.erase(free);
    --inactive;
    inactive_bytes -= static_cast<int64_t>(free->size());
    first->set_size(first->size() + second->size());
    first->next = second->next;
    if (first->next) {
      first->next->prev = first;
    }
    second->set_state(BlockState::Unused);
    blocks_.give(second);
  };
  if (Block* next = block->next; next && next->state() == BlockState::Free) {
    join(block, next, next);
  }
  if (Block* prev = block->prev; prev && prev->state() == BlockState::Free) {
    join(prev, block, prev);
    block = prev;
  }
  block->set_state(BlockState::Free);
  pool.index.insert(block);
  if (block->is_split()) {
    ++inactive;
    inactive_bytes += static_cast<int64_t>(block->size());
  } else {
    block->free_since = pool.searches;
  }
  change(stats_.inactive_split, type, inactive);
  change(stats_.inactive_split_bytes, type, inactive_bytes);
  return block;
}

// Take a free block out of its pool; make_free puts it back.
void DeviceHeap::take_free(Block* block) noexcept {
  SizePool& pool = *block->pool;
  pool.index.erase(block);
  if (block->is_split()) {
    decrease(stats_.inactive_split, pool.stat_type(), 1);
    decrease(stats_.inactive_split_bytes, pool.stat_type(), block->size());
  }
}

void DeviceHeap::record_stream(Block* block, Stream& stream) {
  Lock lock(mutex_);
  if (is_closed_ || &stream == block->pool->stream) {
    return;
  }
  size_t count = 0;
  for (const StreamUse* use = block->uses; use; use = use->next) {
    if (use->stream == &stream) {
      return;
    }
    ++count;
  }
  TORCH_CHECK(count < kMaxUses, "record_stream: a tensor can be recorded on at most ", kMaxUses, " streams");
  BlockUse* use = uses_.take();
  use->stream = &stream;
  use->block = block;
  use->next = block->uses;
  block->uses = use;
}

void DeviceHeap::link(Segment* segment) noexcept {
  segment->prev = nullptr;
  segment->next = segments_;
  if (segments_) {
    segments_->prev = segment;
  }
  segments_ = segment;
}

void DeviceHeap::detach(Segment* segment) noexcept {
  (segment->prev ? segment->prev->next : segments_) = segment->next;
  if (segment->next) {
    segment->next->prev = segment->prev;
  }
}

// Take the free segments that pass the filter out of the heap, as a list.
Segment* DeviceHeap::detach_free_segments(SegmentFilter filter) noexcept {
  Segment* list = nullptr;
  for (Segment *segment = segments_, *next = nullptr; segment; segment = next) {
    next = segment->next;
    if (!segment->is_free() || !filter(*segment) || !is_releasable(*segment)) {
      continue;
    }
    segment->pool->index.erase(segment->first);
    detach(segment);
    segment->release = Segment::Release::NotYet;
    segment->next = list;
    list = segment;
  }
  return list;
}

// Detach large free segments, those passed over longest first, until they have `target` bytes.
Segment* DeviceHeap::detach_old_segments(size_t target) noexcept {
  const auto is_candidate = [](const Segment& segment) {
    return !segment.pool->is_small && segment.pool->mempool == c10::MempoolId_t{0, 0} && segment.is_free();
  };
  const auto age_of = [](const Segment& segment) { return segment.pool->searches - segment.first->free_since; };
  Segment* list = nullptr;
  for (size_t detached = 0; detached < target;) {
    uint64_t total_age = 0;
    uint64_t count = 0;
    for (const Segment* segment = segments_; segment; segment = segment->next) {
      if (is_candidate(*segment)) {
        total_age += age_of(*segment);
        ++count;
      }
    }
    if (count == 0) {
      break;
    }
    // The oldest is at least as old as the mean, so each round takes some.
    const uint64_t min_age = total_age / count;
    Segment* old = detach_free_segments([&](const Segment& segment) {
      const bool is_old = detached < target && is_candidate(segment) && age_of(segment) >= min_age;
      detached += is_old ? segment.size : 0;
      return is_old;
    });
    while (old) {
      Segment* next = old->next;
      old->next = list;
      list = old;
      old = next;
    }
  }
  return list;
}

// Put a detached segment back.
void DeviceHeap::attach(Segment* segment) noexcept {
  segment->first->free_since = segment->pool->searches;
  segment->pool->index.insert(segment->first);
  link(segment);
}

void DeviceHeap::begin(Transit* transit) noexcept {
  transit->number = next_transit_++;
  transit->thread = std::this_thread::get_id();
  transit->next = transits_;
  transits_ = transit;
}

void DeviceHeap::end(Transit* transit, bool has_changed) noexcept {
  Transit** place = &transits_;
  while (*place != transit) {
    place = &(*place)->next;
  }
  *place = transit->next;
  changes_ += has_changed;
  transit_ended_.notify_all();
}

DeviceStats DeviceHeap::stats() {
  Lock lock(mutex_);
  DeviceStats stats = stats_;
  lock.unlock();
  stats.max_split_size = static_cast<int64_t>(Config::max_split_size());
  return stats;
}

namespace {

template <typename F>
void for_each_array(DeviceStats& stats, F f) {
  for (StatArray* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    for (auto& stat : *array) {
      f(stat);
    }
  }
#if OUTBOARD_TORCH_MINOR >= 13
  for (auto& entry : stats.reserved_bytes_by_private_pools) {
    for (auto& stat : entry.second) {
      f(stat);
    }
  }
#endif
  f(stats.oversize_allocations);
  f(stats.oversize_segments);
}

}  // namespace

void DeviceHeap::reset_accumulated_stats() {
  Lock lock(mutex_);
  for_each_array(stats_, [](auto& stat) { stat.reset_accumulated(); });
  stats_.num_alloc_retries = 0;
  stats_.num_ooms = 0;
  stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = 0;
  stats_.num_device_free = 0;
}

void DeviceHeap::reset_peak_stats() {
  Lock lock(mutex_);
  for_each_array(stats_, [](auto& stat) { stat.reset_peak(); });
}

void DeviceHeap::set_limit(double fraction, size_t bytes) {
  const Lock lock(mutex_);
  fraction_ = fraction;
  limit_ = fraction < 1 ? bytes : std::numeric_limits<size_t>::max();
}

double DeviceHeap::fraction() {
  const Lock lock(mutex_);
  return fraction_;
}

size_t DeviceHeap::reserved_bytes() {
  Lock lock(mutex_);
  return static_cast<size_t>(stats_.reserved_bytes[0].current);
}

bool DeviceHeap::owns(uint64_t address) {
  Lock lock(mutex_);
  for (const Segment* segment = segments_; segment; segment = segment->next) {
    if (address - segment->address < segment->span) {
      return true;
    }
  }
  return false;
}

std::vector<SegmentInfo> DeviceHeap::snapshot() {
  std::vector<SegmentInfo> result;
  const auto begin = [&](const Segment& segment, uint64_t address) {
    SegmentInfo& info = result.emplace_back();
    info.device = device_;
    info.address = address;
    info.total_size = segment.is_expandable ? 0 : segment.size;
    info.stream = segment.pool->stream;
    info.is_large = !segment.pool->is_small;
    info.is_expandable = segment.is_expandable;
    info.owner_private_pool_id = segment.pool->mempool;
  };
  // An expandable segment is listed as one segment for each range that has memory.
  const auto add = [&](const Segment& segment) {
    bool is_begun = false;
    for (const Block* block = segment.first; block; block = block->next) {
      if (block->state() == BlockState::Unmapped || block->state() == BlockState::Transit) {
        is_begun = false;
        continue;
      }
      if (!is_begun) {
        begin(segment, block->address);
        is_begun = true;
      }
      SegmentInfo& info = result.back();
      if (segment.is_expandable) {
        info.total_size += block->size();
      }
      auto& entry = info.blocks.emplace_back();
      entry.size = block->size();
      entry.allocated = block->state() == BlockState::Allocated;
      entry.active = block->state() != BlockState::Free;
      if (entry.active) {
        if (const auto it = history_.contexts.find(block); it != history_.contexts.end()) {
          entry.context_when_allocated = it->second;
        }
        entry.requested_size = block->requested;
        info.active_size += block->size();
        info.requested_size += block->requested;
      } else if (!block->is_split()) {
        entry.gc_counter = static_cast<int32_t>(segment.pool->searches - block->free_since);
      }
      if (entry.allocated) {
        info.allocated_size += block->size();
      }
    }
  };
  const Lock lock(mutex_);
  for (const Segment* segment = segments_; segment; segment = segment->next) {
    add(*segment);
  }
  for (const Segment* segment = free_failed_segments_; segment; segment = segment->next) {
    if (segment->is_counted) {
      add(*segment);
    }
  }
  // Memory that the driver did not unmap is still reserved and belongs to no segment:
  // each range is listed as a segment.
  for (const Block* block = unmap_failed_ranges_; block; block = block->ring_next) {
    begin(*block->segment, block->address);
    SegmentInfo& info = result.back();
    info.is_expandable = false;
    info.total_size = block->size();
    info.blocks.emplace_back().size = block->size();
  }
  return result;
}

}  // namespace outboard::memory

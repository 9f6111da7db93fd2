// SPDX-License-Identifier: BSD-3-Clause
// Expandable segments: ranges of addresses that get memory where it is needed, and lose it a page
// at a time. Their blocks cover the whole range. A block without memory is Unmapped, and in
// Transit while the driver is called.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>

#include "core/blocking.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/lost_device.h"
#include "memory/device_heap.h"
#include "memory/size_policy.h"

namespace outboard::memory {

namespace {

ob_status unmap(c10::DeviceIndex device, uint64_t address, uint64_t bytes) {
  return is_lost(device) ? OB_OK : driver().mem_unmap(driver().self, device, address, bytes);
}

}  // namespace

bool DeviceHeap::is_expandable(const SizePool& pool) {
  if (pool.source || pool.is_whole) {
    return false;
  }
  if (!driver().mem_reserve || device_properties(device_).mem_granularity == 0) {
    TORCH_WARN_ONCE("PYTORCH_ALLOC_CONF enables expandable_segments, but driver '", driver_name(),
                    "' has no memory mapping (mem_reserve, mem_granularity), so segments have a fixed size");
    return false;
  }
  return true;
}

void DeviceHeap::add_unmapped(Block* block) noexcept {
  block->set_state(BlockState::Unmapped);
  block->ring_prev = nullptr;
  block->ring_next = block->pool->unmapped;
  if (block->ring_next) {
    block->ring_next->ring_prev = block;
  }
  block->pool->unmapped = block;
}

void DeviceHeap::remove_unmapped(Block* block) noexcept {
  (block->ring_prev ? block->ring_prev->ring_next : block->pool->unmapped) = block->ring_next;
  if (block->ring_next) {
    block->ring_next->ring_prev = block->ring_prev;
  }
}

// Cut the part beyond `size` off a block. `rest` becomes a block that is in no list yet.
void DeviceHeap::split(Block* block, size_t size, Block* rest) noexcept {
  *rest = Block{};
  rest->segment = block->segment;
  rest->pool = block->pool;
  rest->address = block->address + size;
  rest->set_size(block->size() - size);
  rest->prev = block;
  rest->next = block->next;
  if (rest->next) {
    rest->next->prev = rest;
  }
  block->next = rest;
  block->set_size(size);
  rest->set_state(BlockState::Transit);
  rest->is_expandable = true;
}

// Make a block in transit unmapped, and join it with its unmapped neighbours.
void DeviceHeap::make_unmapped(Block* block) noexcept {
  const auto absorb_next = [&](Block* into) {
    Block* next = into->next;
    into->set_size(into->size() + next->size());
    into->next = next->next;
    if (into->next) {
      into->next->prev = into;
    }
    next->set_state(BlockState::Unused);
    blocks_.give(next);
  };
  if (block->next && block->next->state() == BlockState::Unmapped) {
    remove_unmapped(block->next);
    absorb_next(block);
  }
  if (Block* prev = block->prev; prev && prev->state() == BlockState::Unmapped) {
    remove_unmapped(prev);
    absorb_next(prev);
    block = prev;
  }
  add_unmapped(block);
}

// Return the unmapped range of the lowest address that serves the size together with its free
// neighbours, and how many bytes of it to map.
Block* DeviceHeap::find_unmapped(const SizePool& pool, size_t size, size_t granularity, size_t* out_bytes) noexcept {
  const auto free_size = [](const Block* block) {
    return block && block->state() == BlockState::Free ? block->size() : 0;
  };
  Block* best = nullptr;
  for (Block* block = pool.unmapped; block; block = block->ring_next) {
    const size_t before = free_size(block->prev);
    if (best && best->address < block->address) {
      continue;
    }
    const size_t lacking = size > before ? size - before : 1;
    if (const size_t bytes = map_size_for(pool.is_small, lacking, granularity); bytes <= block->size()) {
      best = block;
      *out_bytes = bytes;
    } else if (lacking <= block->size() + free_size(block->next)) {
      best = block;
      *out_bytes = block->size();
    }
  }
  return best;
}

// Return null if the driver has no memory, or at the limit. Raise for every other
// failure, with nothing changed.
Block* DeviceHeap::grow(SizePool& pool, size_t size, size_t requested, std::string* out_refusal) {
  const size_t granularity = device_properties(device_).mem_granularity;
  Transit transit;
  Block* block = nullptr;
  Block* head = nullptr;
  Block* spare = nullptr;
  size_t bytes = 0;
  // Retry, because another thread may release the range that was just
  // reserved, which has no memory yet.
  for (;;) {
    {
      const Lock lock(mutex_);
      block = find_unmapped(pool, size, granularity, &bytes);
      if (block) {
        const size_t reserved = static_cast<size_t>(stats_.reserved_bytes[0].current) + in_flight_bytes_;
        if (reserved > limit_ || bytes > limit_ - reserved) {
          return nullptr;
        }
        spare = blocks_.take();  // for the remainder of the range, then of the free block
        in_flight_bytes_ += bytes;
        begin(&transit);
        remove_unmapped(block);
        block->set_state(BlockState::Transit);
        if (bytes < block->size()) {
          split(block, bytes, spare);
          add_unmapped(spare);
          spare = nullptr;
        }
        if (block->prev && block->prev->state() == BlockState::Free) {
          head = block->prev;
          take_free(head);
          head->set_state(BlockState::Transit);
        }
        break;
      }
    }
    if (!reserve(pool, size)) {
      return nullptr;
    }
  }

  std::exception_ptr error;
  const uint64_t address = block->address;
  bool is_mapped = false;
  bool has_host = false;
  uint64_t host = 0;
  try {
    const TrackedCall noted("mem_map", device_);
    const ob_status status = driver().mem_map(driver().self, device_, address, bytes);
    if (status == OB_OUT_OF_MEMORY) {
      const FailedEntry failed("mem_map", device_);
      *out_refusal = last_driver_error();
    } else {
      check(status, "mem_map", device_);
      is_mapped = true;
      if (driver().host_address) {
        const ob_status translated = driver().host_address(driver().self, device_, address, bytes, &host);
        if (!is_unimplemented(translated)) {
          check(translated, "host_address", device_);
          has_host = host != 0;
        }
      }
    }
  } catch (...) {
    error = std::current_exception();
  }

  Lock lock(mutex_);
  Segment& segment = *block->segment;
  if (is_mapped && !error) {
    // Blocks lie across mapped ranges, so one translation must hold for all of them.
    if (segment.size == 0) {
      segment.has_host = has_host;
      segment.host_delta = host - address;
    } else if (segment.has_host != has_host || (has_host && segment.host_delta != host - address)) {
      lock.unlock();
      try {
        raise(ErrorKind::Driver, OB_INTERNAL,
              "driver '" + driver_name() +
                  "': host_address must be the address plus one constant throughout a reserved range. Run without"
                  " PYTORCH_ALLOC_CONF=expandable_segments:True");
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
    }
  }
  if (is_mapped && error) {
    lock.unlock();
    const ob_status status = unmap(device_, address, bytes);
    lock.lock();
    if (status != OB_OK) {  // the first error is raised; the range stays aside
      block->ring_next = unmap_failed_ranges_;
      unmap_failed_ranges_ = block;
      block = nullptr;
      count_reserved(pool, static_cast<int64_t>(bytes));
      segment.size += bytes;
    }
  }
  in_flight_bytes_ -= bytes;
  if (head) {
    make_free(head);
  }
  if (!is_mapped || error) {
    if (block) {
      make_unmapped(block);
    }
    if (spare) {
      blocks_.give(spare);
    }
    end(&transit, false);
    lock.unlock();
    if (error) {
      std::rethrow_exception(error);
    }
    return nullptr;
  }
  segment.size += bytes;
  ++stats_.num_device_alloc;
  count_reserved(pool, static_cast<int64_t>(bytes));
  note(TraceEntry::SEGMENT_MAP, address, bytes, &pool);
  Block* whole = make_free(block);
  if (spare) {
    blocks_.give(spare);
  }
  end(&transit, true);
  if (whole->size() >= size) {
    return find_block(pool, size, requested);
  }
  // The neighbour behind, which the size relied on, was taken meanwhile.
  lock.unlock();
  return grow(pool, size, requested, out_refusal);
}

// Make a new expandable segment for the pool. Return false if the driver has no addresses left.
bool DeviceHeap::reserve(SizePool& pool, size_t size) {
  const ob_device_properties& properties = device_properties(device_);
  const size_t granularity = properties.mem_granularity;
  const size_t least = map_size_for(pool.is_small, size, granularity);
  // Reserve an eighth more than the memory, so that holes do not fill the range first.
  size_t span = std::max(least, round_up(properties.total_memory / 8 * 9, granularity));
  auto segment = std::make_unique<Segment>();
  ob_status status = OB_OUT_OF_MEMORY;
  for (;; span = std::max(least, round_up(span / 4, granularity))) {
    status = driver().mem_reserve(driver().self, device_, span, &segment->address);
    if (status != OB_OUT_OF_MEMORY || span == least) {
      break;
    }
  }
  if (status == OB_OUT_OF_MEMORY) {
    return false;
  }
  check(status, "mem_reserve", device_);
  Lock lock(mutex_);
  Block* block = nullptr;
  try {
    block = blocks_.take();
  } catch (...) {
    lock.unlock();
    check(driver().mem_release(driver().self, device_, segment->address, span), "mem_release", device_);
    throw;
  }
  segment->pool = &pool;
  segment->span = span;
  segment->is_expandable = true;
  segment->is_counted = true;
  *block = Block{};
  block->segment = segment.get();
  block->pool = &pool;
  block->address = segment->address;
  block->set_size(span);
  block->is_expandable = true;
  segment->first = block;
  stats_.segment[0].increase(1);
  stats_.segment[pool.stat_type()].increase(1);
  ++pool.owner->holders;
  add_unmapped(block);
  link(segment.release());
  return true;
}

// Take the whole free pages of the expandable segments that pass the
// filter out of the heap, as a list.
Block* DeviceHeap::detach_free_ranges(SegmentFilter filter) {
  Block* list = std::exchange(unmap_failed_ranges_, nullptr);
  const auto add = [&](Block* block) {
    block->ring_next = list;
    list = block;
  };
  for (Segment* segment = segments_; segment; segment = segment->next) {
    if (!segment->is_expandable || !filter(*segment) || !is_releasable(*segment)) {
      continue;
    }
    const size_t granularity = device_properties(device_).mem_granularity;
    for (Block* block = segment->first; block; block = block->next) {
      if (block->state() != BlockState::Free) {
        continue;
      }
      const uint64_t begin = round_up(block->address, granularity);
      const uint64_t end = (block->address + block->size()) / granularity * granularity;
      if (begin >= end) {
        continue;
      }
      const size_t before = begin - block->address;
      const size_t after = block->address + block->size() - end;
      Block* middle = nullptr;
      Block* tail = nullptr;
      try {
        middle = before ? blocks_.take() : nullptr;
        tail = after ? blocks_.take() : nullptr;
      } catch (const std::bad_alloc&) {
        // There is no memory to split with: this range stays cached, and so do the others.
        if (middle) {
          blocks_.give(middle);
        }
        return list;
      }
      take_free(block);
      block->set_state(BlockState::Transit);
      Block* range = block;
      if (middle) {
        split(block, before, middle);
        range = middle;
      }
      if (tail) {
        split(range, end - begin, tail);
        make_free(tail);
      }
      if (middle) {
        make_free(block);
      }
      add(range);
      block = range;
    }
  }
  return list;
}

// Take the expandable segments without memory out of the heap, and put them
// before a list of detached segments.
Segment* DeviceHeap::detach_unmapped_segments(Segment* list) noexcept {
  for (Segment *segment = segments_, *next = nullptr; segment; segment = next) {
    next = segment->next;
    if (segment->is_expandable && segment->is_unmapped()) {
      remove_unmapped(segment->first);
      detach(segment);
      segment->release = Segment::Release::Drained;
      segment->next = list;
      list = segment;
    }
  }
  return list;
}

// Unmap the memory of detached ranges, and return how many. Call it without the lock.
size_t DeviceHeap::unmap_ranges(Block* list, std::exception_ptr* out_error) noexcept {
  size_t released = 0;
  const SizePool* last = nullptr;  // ranges of one pool are adjacent
  bool is_drained = false;
  while (Block* block = list) {
    list = block->ring_next;
    if (block->pool != last) {
      last = block->pool;
      is_drained = drain(*last, out_error);
    }
    ob_status status = OB_OK;
    try {
      if (is_drained) {
        const TrackedWait waiting("mem_unmap", device_);
        status = unmap(device_, block->address, block->size());
        check(status, "mem_unmap", device_);
      }
    } catch (...) {
      *out_error = *out_error ? *out_error : std::current_exception();
    }
    const Lock lock(mutex_);
    if (!is_drained) {
      make_free(block);
    } else if (status != OB_OK) {
      block->ring_next = unmap_failed_ranges_;
      unmap_failed_ranges_ = block;
    } else {
      ++released;
      ++stats_.num_device_free;
      block->segment->size -= block->size();
      count_reserved(*block->pool, -static_cast<int64_t>(block->size()));
      note(TraceEntry::SEGMENT_UNMAP, block->address, block->size(), block->pool);
      make_unmapped(block);
    }
  }
  return released;
}

// Unmap everything when the device closes.
void DeviceHeap::unmap_all(const Segment& segment) noexcept {
  for (const Block* block = segment.is_expandable ? segment.first : nullptr; block;) {
    if (block->state() == BlockState::Unmapped) {
      block = block->next;
      continue;
    }
    const uint64_t begin = block->address;
    uint64_t end = begin;
    for (; block && block->state() != BlockState::Unmapped; block = block->next) {
      end = block->address + block->size();
    }
    const ob_status status = unmap(device_, begin, end - begin);
    if (status != OB_OK) {
      std::fprintf(stderr, "torch_outboard: mem_unmap on %s failed with %s while the device was closed\n",
                   device_text(device_).c_str(), status_name(status).c_str());
    }
  }
}

}  // namespace outboard::memory

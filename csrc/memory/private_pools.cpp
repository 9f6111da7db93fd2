// SPDX-License-Identifier: BSD-3-Clause
// Memory pools beside the common one. Calls no driver entry. The lock is held, except in the first
// lines of the public functions.
#include <algorithm>

#include "core/device.h"
#include "core/error.h"
#include "memory/device_heap.h"
#include "memory/management.h"

namespace outboard::memory {

namespace {

constexpr c10::MempoolId_t kCommonPool{0, 0};

std::string text_of(c10::MempoolId_t mempool) {
  return "(" + std::to_string(mempool.first) + ", " + std::to_string(mempool.second) + ")";
}

}  // namespace

void DeviceHeap::use_pool(c10::MempoolId_t mempool, const PrivatePool& options) {
  if (mempool == kCommonPool || mempool == kUncachedPool) {
    raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT, text_of(mempool) + " is not a private memory pool");
  }
  const Lock lock(mutex_);
  ++private_pools_.try_emplace(mempool, options).first->second.use_count;
}

void DeviceHeap::release_pool(c10::MempoolId_t mempool) {
  Lock lock(mutex_);
  const auto it = private_pools_.find(mempool);
  if (it == private_pools_.end()) {
    lock.unlock();
    raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT,
          "memory pool " + text_of(mempool) + " is not in use on " + device_text(device_));
  }
  if (--it->second.use_count == 0) {
    private_pools_.erase(it);
    drop_idle_pools(mempool);
  }
}

int DeviceHeap::pool_use_count(c10::MempoolId_t mempool) {
  const Lock lock(mutex_);
  const auto it = private_pools_.find(mempool);
  return it == private_pools_.end() ? 0 : it->second.use_count;
}

uint64_t DeviceHeap::begin_route(c10::MempoolId_t mempool, std::thread::id tag, std::function<bool(Stream&)> filter) {
  const Lock lock(mutex_);
  routes_.push_back({next_route_, mempool, tag, std::move(filter)});
  return next_route_++;
}

void DeviceHeap::end_route(uint64_t route) noexcept {
  std::function<bool(Stream&)> filter;  // destroyed after the lock is released
  const Lock lock(mutex_);
  const auto it =
      std::find_if(routes_.begin(), routes_.end(), [&](const Route& known_route) { return known_route.id == route; });
  if (it != routes_.end()) {
    filter = std::move(it->filter);
    routes_.erase(it);
  }
}

void DeviceHeap::end_route(c10::MempoolId_t mempool, std::thread::id tag) {
  std::function<bool(Stream&)> filter;  // destroyed after the lock is released
  Lock lock(mutex_);
  const auto it = std::find_if(routes_.rbegin(), routes_.rend(),
                               [&](const Route& route) { return route.mempool == mempool && route.tag == tag; });
  if (it == routes_.rend()) {
    lock.unlock();
    raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT,
          "allocations on " + device_text(device_) + " do not go to memory pool " + text_of(mempool));
  }
  filter = std::move(it->filter);
  routes_.erase(std::next(it).base());
  lock.unlock();
}

bool DeviceHeap::was_used() {
  const Lock lock(mutex_);
  return !pools_.empty();
}

c10::MempoolId_t DeviceHeap::mempool_for(Stream& stream) const {
  for (auto route = routes_.rbegin(); route != routes_.rend(); ++route) {
    if (route->filter(stream)) {
      return route->mempool;
    }
  }
  return kCommonPool;
}

std::unique_ptr<StreamPools> DeviceHeap::make_pools(Stream& stream, c10::MempoolId_t mempool) {
  std::unique_ptr<StreamPools> pools(idle_pools_);
  if (pools) {
    idle_pools_ = pools->next_idle;
    pools->next_idle = nullptr;
  } else {
    pools = std::make_unique<StreamPools>();
  }
  PrivatePool options;
  if (const auto it = private_pools_.find(mempool); it != private_pools_.end()) {
    options = it->second;
  }
  for (SizePool* pool : {&pools->small, &pools->large}) {
    pool->heap = this;
    pool->stream = &stream;
    pool->mempool = mempool;
    pool->is_small = pool == &pools->small;
    pool->owner = pools.get();
    pool->source = mempool == kUncachedPool ? current_source() : options.source;
    pool->is_exact = mempool == kUncachedPool;
    pool->is_whole = mempool == kUncachedPool || options.is_whole;
    pool->searches = 0;
  }
  return pools;
}

bool DeviceHeap::is_releasable(const Segment& segment) const noexcept {
  const c10::MempoolId_t mempool = segment.pool->mempool;
  return C10_LIKELY(mempool == kCommonPool) || !private_pools_.contains(mempool);
}

Block* DeviceHeap::find_fallback_block(const SizePool& pool, size_t size, size_t requested) {
  if (pool.mempool != kCommonPool) {
    return nullptr;
  }
  for (const auto& [mempool, options] : private_pools_) {
    if (options.is_fallback) {
      StreamPools& pools = pools_of(*pool.stream, mempool);
      if (Block* block = find_block(pool.is_small ? pools.small : pools.large, size, requested)) {
        return block;
      }
    }
  }
  return nullptr;
}

void DeviceHeap::count_reserved(const SizePool& pool, int64_t bytes) {
  const auto add = [&](c10::CachingAllocator::StatArray& stat) {
    for (const size_t type : {size_t{0}, pool.stat_type()}) {
      bytes > 0 ? stat[type].increase(static_cast<size_t>(bytes)) : stat[type].decrease(static_cast<size_t>(-bytes));
    }
  };
  add(stats_.reserved_bytes);
#if OUTBOARD_TORCH_MINOR >= 13
  if (pool.mempool != kCommonPool && pool.mempool != kUncachedPool) {
    add(stats_.reserved_bytes_by_private_pools[pool.mempool]);
  }
#endif
}

// Set aside the size pools of a memory pool that is not in use and has no memory left.
void DeviceHeap::drop_idle_pools(c10::MempoolId_t mempool) noexcept {
  if (mempool == kCommonPool || mempool == kUncachedPool || private_pools_.contains(mempool)) {
    return;
  }
  [[maybe_unused]] bool is_left = false;
  for (auto it = pools_.begin(); it != pools_.end();) {
    if (it->first.mempool == mempool && it->second->holders == 0) {
      StreamPools* pools = it->second.release();
      pools->next_idle = idle_pools_;
      idle_pools_ = pools;
      last_pools_ = nullptr;
      it = pools_.erase(it);
    } else {
      is_left = is_left || it->first.mempool == mempool;
      ++it;
    }
  }
#if OUTBOARD_TORCH_MINOR >= 13
  if (!is_left) {
    stats_.reserved_bytes_by_private_pools.erase(mempool);  // every caller of stats() copies the whole table
  }
#endif
}

}  // namespace outboard::memory

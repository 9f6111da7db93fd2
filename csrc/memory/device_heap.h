// SPDX-License-Identifier: BSD-3-Clause
// The memory of one device: its pools, its segments, its lock. DESIGN.md in this folder states the
// invariants.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/FunctionRef.h>

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/stream.h"
#include "memory/block.h"
#include "memory/history.h"

namespace outboard::memory {

using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::SegmentInfo;
using SegmentFilter = c10::function_ref<bool(const Segment&)>;

// A memory pool besides the common one. While the pool is in use, its free memory is not returned
// to the driver, because a graph may write there.
struct PrivatePool {
  int use_count = 0;
  bool is_fallback = false;  // serves requests to the common pool when no other memory is left
  bool is_whole = false;     // its segments are never split
  const SegmentSource* source = nullptr;
};

class DeviceHeap {
 public:
  explicit DeviceHeap(c10::DeviceIndex device) : device_(device) {}
  DeviceHeap(const DeviceHeap&) = delete;
  DeviceHeap& operator=(const DeviceHeap&) = delete;

  // Allocate `bytes` > 0. The device must be open.
  Block* allocate(Stream& stream, size_t bytes);
  // Free a block. Calls no driver entry.
  void free(Block* block) noexcept;
  void record_stream(Block* block, Stream& stream);

  // Wait for the work on parked blocks, then return every free segment of
  // the memory pool to the driver.
  void empty_cache(c10::MempoolId_t mempool);
  // Record and poll the events of parked blocks, and raise failures since the last call. Never
  // waits.
  void process_deferred();
  // Store a failure from a code path that must not throw; process_deferred raises it. Later
  // failures are dropped.
  void defer_error(std::exception_ptr error) noexcept { deferred_error_.set(std::move(error)); }

  // In private_pools.cpp. Uses are counted. The first use makes the pool; later uses
  // ignore the options. After the last release its free memory may be returned. Raise
  // ValueError for a release without a use.
  void use_pool(c10::MempoolId_t mempool, const PrivatePool& options);
  void release_pool(c10::MempoolId_t mempool);
  int pool_use_count(c10::MempoolId_t mempool);
  // Route allocations that pass the filter to a pool in use, and return the route's id. A route is
  // ended by its id, or as the latest route with its tag. The latest route wins. The filter runs
  // under the lock.
  uint64_t begin_route(c10::MempoolId_t mempool, std::thread::id tag, std::function<bool(Stream&)> filter);
  void end_route(uint64_t route) noexcept;
  void end_route(c10::MempoolId_t mempool, std::thread::id tag);
  // In history.cpp.
  void record_history(const HistorySettings& settings);
  MemorySnapshot history_snapshot(bool with_trace);

  bool was_used();  // true if memory was ever requested from the driver

  DeviceStats stats();
  void reset_accumulated_stats();
  void reset_peak_stats();
  std::vector<SegmentInfo> snapshot();
  size_t reserved_bytes();  // bytes allocated from the driver and not returned
  // Limit the bytes that may be requested from the driver, and store the corresponding fraction of
  // the device's memory. A fraction of 1 means no limit.
  void set_limit(double fraction, size_t bytes);
  double fraction();
  // Return true if one of the segments holds the address.
  bool owns(uint64_t address);

  // Free every segment, even with live blocks, which are dead from then on.
  void release_all() noexcept;

 private:
  using Lock = std::unique_lock<std::mutex>;

  struct PoolKey {
    Stream* stream;
    c10::MempoolId_t mempool;
    bool operator==(const PoolKey&) const = default;
  };
  struct PoolKeyHash {
    size_t operator()(const PoolKey& key) const noexcept {
      return std::hash<Stream*>()(key.stream) * 31 + c10::MempoolIdHash()(key.mempool);
    }
  };

  // Memory that a thread is about to receive from the driver, or has taken out of the heap for a
  // driver call. Lives on that thread's stack. An allocation that fails waits for earlier transits.
  struct Transit {
    uint64_t number = 0;
    std::thread::id thread;
    Transit* next = nullptr;
  };

  // In pools.cpp, with the lock held. Call no driver entry.
  StreamPools& pools_of(Stream& stream, c10::MempoolId_t mempool);
  std::unique_ptr<StreamPools> make_pools(Stream& stream, c10::MempoolId_t mempool);
  c10::MempoolId_t mempool_for(Stream& stream) const;
  bool is_releasable(const Segment& segment) const noexcept;
  Block* find_fallback_block(const SizePool& pool, size_t size, size_t requested);
  void count_reserved(const SizePool& pool, int64_t bytes);
  void drop_idle_pools(c10::MempoolId_t mempool) noexcept;
  Block* find_block(SizePool& pool, size_t size, size_t requested);
  Block* allocate_block(Block* block, size_t size, size_t requested, Block* spare) noexcept;
  void free_block(Block* block) noexcept;
  void free_or_poison(Block* block) noexcept;
  Segment* detach_free_segments(SegmentFilter filter) noexcept;
  Segment* detach_old_segments(size_t target) noexcept;
  void link(Segment* segment) noexcept;
  void attach(Segment* segment) noexcept;
  void begin(Transit* transit) noexcept;
  void end(Transit* transit, bool has_changed) noexcept;

  void note(TraceEntry::Action action, uint64_t address, size_t size, const SizePool* pool,
            const Context& context = ContextScope::current()) noexcept;
  void note_allocated(const Block* block) noexcept;
  void note_freed(const Block* block, TraceEntry::Action action) noexcept;
  bool is_recording() const noexcept { return history_.is_on.load(std::memory_order_relaxed); }
  Block* make_free(Block* block) noexcept;
  void take_free(Block* block) noexcept;
  void detach(Segment* segment) noexcept;

  // In expandable.cpp, with the lock held.
  void add_unmapped(Block* block) noexcept;
  void remove_unmapped(Block* block) noexcept;
  void split(Block* block, size_t size, Block* rest) noexcept;
  void make_unmapped(Block* block) noexcept;
  Block* find_unmapped(const SizePool& pool, size_t size, size_t granularity, size_t* out_bytes) noexcept;
  Block* detach_free_ranges(SegmentFilter filter);
  Segment* detach_unmapped_segments(Segment* list) noexcept;

  // In expandable.cpp, without the lock: these call the driver.
  bool is_expandable(const SizePool& pool);
  Block* grow(SizePool& pool, size_t size, size_t requested, std::string* out_refusal);
  bool reserve(SizePool& pool, size_t size);
  size_t unmap_ranges(Block* list, std::exception_ptr* out_error) noexcept;
  void unmap_all(const Segment& segment) noexcept;

  // In segments.cpp, releases.cpp and deferred.cpp, without the lock: these call the driver.
  Block* allocate_uncached(Stream& stream, size_t size, size_t requested);
  Block* allocate_slowly(SizePool& pool, size_t size, size_t requested);
  Block* add_segment(SizePool& pool, size_t size, size_t requested, std::string* out_refusal);
  std::unique_ptr<Segment> query_driver(SizePool& pool, size_t bytes, std::string* out_refusal);
  void discard(Segment* segment) noexcept;
  void release_uncached(Stream* stream);
  void collect_garbage();
  size_t release(Segment* list, Transit* transit, std::exception_ptr* out_error) noexcept;
  size_t release_cached(SegmentFilter filter);
  size_t release_for_allocation(SegmentFilter filter);
  void make_room();
  bool drain(const SizePool& pool, std::exception_ptr* out_error) noexcept;
  void report_to_profiler(uint64_t address, int64_t bytes);
  bool wait_for_transits(uint64_t changes);
  // In pressure.cpp.
  [[noreturn]] void raise_out_of_memory(size_t requested, const std::string& refusal);
  std::exception_ptr process_parked(WaitMode wait_mode);
  std::exception_ptr poison_freed();

  const c10::DeviceIndex device_;
  std::mutex mutex_;

  // Guarded by mutex_.
  std::unordered_map<PoolKey, std::unique_ptr<StreamPools>, PoolKeyHash> pools_;
  StreamPools* last_pools_ = nullptr;  // used by the last allocation, and mostly by the next
  StreamPools* idle_pools_ = nullptr;  // pools to reuse; never destroyed, because dead blocks may point to them
  std::unordered_map<c10::MempoolId_t, PrivatePool, c10::MempoolIdHash> private_pools_;
  struct Route {
    uint64_t id;
    c10::MempoolId_t mempool;
    std::thread::id tag;
    std::function<bool(Stream&)> filter;
  };
  std::vector<Route> routes_;
  uint64_t next_route_ = 1;
  Segment* segments_ = nullptr;
  Segment* free_failed_segments_ = nullptr;  // mem_free failed: not reused, freed again at the next release
  double fraction_ = 1;
  size_t limit_ = std::numeric_limits<size_t>::max();
  size_t in_flight_bytes_ = 0;  // requested from the driver by threads that still wait for it
  Block* unfilled_blocks_ = nullptr;  // freed, and not yet filled
  Block* unmap_failed_ranges_ = nullptr;  // mem_unmap failed: unmapped again at the next release
  bool has_uncached_ = false;  // memory was allocated with caching disabled
  Slab<Block> blocks_;
  Slab<BlockUse> uses_;
  bool is_closed_ = false;
  uint64_t next_transit_ = 1;
  uint64_t changes_ = 0;  // transits that ended with memory freed or returned
  Transit* transits_ = nullptr;
  std::condition_variable transit_ended_;
  DeviceStats stats_;

  StreamUses parked_;  // BlockUses of parked blocks; locks itself

  History history_;
  ErrorSlot deferred_error_;
};

// Return the heap for any index below kMaxDevices. Opens nothing.
DeviceHeap& heap_of(c10::DeviceIndex device);

// Return the block that a DataPtr owns, or null for memory that is not the allocator's.
Block* block_of(const c10::DataPtr& ptr) noexcept;

}  // namespace outboard::memory

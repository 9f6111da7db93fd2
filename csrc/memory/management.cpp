// SPDX-License-Identifier: BSD-3-Clause
#include "memory/management.h"

#include <c10/core/Allocator.h>

#include <atomic>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/error.h"
#include "memory/caching_allocator.h"
#include "memory/device_heap.h"

namespace outboard {

namespace {

std::atomic<bool> caching_enabled{true};
std::atomic<bool> is_direct{false};  // caching is disabled, or the allocator was changed
std::atomic<const memory::SegmentSource*> changed_source{nullptr};
std::atomic<c10::CaptureId_t> next_mempool{1};
std::atomic<MemoryReclaimer> reclaimer{nullptr};

// Never destroyed, like everything that deleters and threads may reach at the end of the process.
struct Observers {
  std::mutex mutex;
  uint64_t next_id = 1;
  std::vector<std::pair<uint64_t, std::shared_ptr<const OutOfMemoryObserver>>> list;
};
Observers& observers() {
  static auto* const instance = new Observers();
  return *instance;
}
thread_local bool is_in_observer = false;

struct RawAllocations {
  std::mutex mutex;
  std::unordered_map<uint64_t, c10::DataPtr> live;
};
RawAllocations& raw_allocations() {
  static auto* const instance = new RawAllocations();
  return *instance;
}

}  // namespace

void set_memory_fraction(c10::DeviceIndex device, double fraction) {
  check_device_index(device);
  if (!(fraction >= 0 && fraction <= 1)) {
    raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT,
          "a memory fraction must be between 0 and 1, got " + std::to_string(fraction));
  }
  const uint64_t total = fraction < 1 ? device_properties(device).total_memory : 0;
  if (fraction < 1 && total == 0) {
    raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT,
          "driver '" + driver_name() + "' does not report how much memory device " +
              std::to_string(static_cast<int>(device)) + " has, so a process cannot be limited to a fraction of it");
  }
  memory::heap_of(device).set_limit(fraction, static_cast<size_t>(fraction * static_cast<double>(total)));
}

double memory_fraction(c10::DeviceIndex device) {
  check_device_index(device);
  return memory::heap_of(device).fraction();
}

uint64_t attach_out_of_memory_observer(OutOfMemoryObserver observer) {
  auto shared = std::make_shared<const OutOfMemoryObserver>(std::move(observer));
  const std::lock_guard lock(observers().mutex);
  const uint64_t id = observers().next_id++;
  observers().list.emplace_back(id, std::move(shared));
  return id;
}

bool detach_out_of_memory_observer(uint64_t id) {
  std::shared_ptr<const OutOfMemoryObserver> removed;  // destroyed after the lock: it may hold a Python object
  const std::lock_guard lock(observers().mutex);
  auto& list = observers().list;
  for (auto it = list.begin(); it != list.end(); ++it) {
    if (it->first == id) {
      removed = std::move(it->second);
      list.erase(it);
      return true;
    }
  }
  return false;
}

void set_memory_reclaimer(MemoryReclaimer function) {
  reclaimer.store(function);
}

namespace memory {

void reclaim_memory() {
  if (const MemoryReclaimer function = reclaimer.load()) {
    function();
  }
}

bool notify_out_of_memory(c10::DeviceIndex device, size_t requested) {
  if (is_in_observer) {
    return false;
  }
  std::vector<std::shared_ptr<const OutOfMemoryObserver>> list;
  {
    const std::lock_guard lock(observers().mutex);
    for (const auto& [id, observer] : observers().list) {
      list.push_back(observer);
    }
  }
  if (list.empty()) {
    return false;
  }
  uint64_t free = 0;
  uint64_t total = 0;
  try {
    memory_info(device, &free, &total);
  } catch (const std::exception&) {
    free = total = 0;  // unknown: an observer may still free memory, and otherwise the error says why
  }
  struct ObserverScope {
    ObserverScope() { is_in_observer = true; }
    ~ObserverScope() { is_in_observer = false; }
  } const inside;
  for (const auto& observer : list) {
    (*observer)(device, requested, total, free);
  }
  return true;
}

}  // namespace memory

uint64_t raw_allocate(Stream& stream, size_t bytes) {
  c10::DataPtr data = allocate(stream, bytes);
  const auto address = reinterpret_cast<uint64_t>(data.get());
  if (address != 0) {
    const std::lock_guard lock(raw_allocations().mutex);
    raw_allocations().live.emplace(address, std::move(data));
  }
  return address;
}

void raw_free(uint64_t address) {
  if (address == 0) {
    return;
  }
  c10::DataPtr data;  // freed after the lock
  {
    const std::lock_guard lock(raw_allocations().mutex);
    if (auto node = raw_allocations().live.extract(address)) {
      data = std::move(node.mapped());
    }
  }
  if (!data) {
    char text[32];
    std::snprintf(text, sizeof(text), "0x%" PRIx64, address);
    raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT,
          std::string("there is no raw allocation at ") + text +
              ": call caching_allocator_delete once, with an address from caching_allocator_alloc");
  }
}

void enable_caching(bool is_enabled) noexcept {
  caching_enabled.store(is_enabled, std::memory_order_relaxed);
  is_direct.store(!is_enabled || changed_source.load() != nullptr, std::memory_order_relaxed);
}

bool is_caching_enabled() noexcept {
  return caching_enabled.load(std::memory_order_relaxed);
}

const memory::SegmentSource* make_segment_source(const memory::SegmentSource& functions) {
  return new memory::SegmentSource(functions);  // blocks may outlive the caller
}

void change_current_allocator(const memory::SegmentSource* source) {
  for (int i = 0; i < device_count(); ++i) {
    if (memory::heap_of(static_cast<c10::DeviceIndex>(i)).was_used()) {
      raise(ErrorKind::InvalidArgument, OB_FAILED_PRECONDITION,
            "the allocator can only be changed before the first allocation, but " +
                device_text(static_cast<c10::DeviceIndex>(i)) + " has been used");
    }
  }
  changed_source.store(source);
  is_direct.store(true, std::memory_order_relaxed);
}

c10::MempoolId_t new_mempool_id() noexcept {
  return {0, next_mempool.fetch_add(1)};
}

void use_pool(c10::DeviceIndex device, c10::MempoolId_t mempool, const MemoryPoolOptions& options) {
  check_device_index(device);
  memory::heap_of(device).use_pool(mempool, {0, options.is_fallback, options.is_whole, options.source});
}

void release_pool(c10::DeviceIndex device, c10::MempoolId_t mempool) {
  check_device_index(device);
  memory::heap_of(device).release_pool(mempool);
}

int pool_use_count(c10::DeviceIndex device, c10::MempoolId_t mempool) {
  check_device_index(device);
  return memory::heap_of(device).pool_use_count(mempool);
}

namespace {

RouteId begin(c10::DeviceIndex device, c10::MempoolId_t mempool, std::thread::id tag,
              std::function<bool(Stream&)> filter) {
  check_device_index(device);
  memory::DeviceHeap& heap = memory::heap_of(device);
  heap.use_pool(mempool, {});
  try {
    return heap.begin_route(mempool, tag, std::move(filter));
  } catch (...) {
    heap.release_pool(mempool);
    throw;
  }
}

}  // namespace

RouteId begin_allocate_to_pool(c10::DeviceIndex device, c10::MempoolId_t mempool, std::function<bool(Stream&)> filter) {
  return begin(device, mempool, {}, std::move(filter));
}

void end_allocate_to_pool(c10::DeviceIndex device, RouteId route) noexcept {
  memory::heap_of(device).end_route(route);
}

void begin_allocate_thread_to_pool(c10::DeviceIndex device, c10::MempoolId_t mempool) {
  const std::thread::id self = std::this_thread::get_id();
  begin(device, mempool, self, [self](Stream&) { return std::this_thread::get_id() == self; });
}

void end_allocate_thread_to_pool(c10::DeviceIndex device, c10::MempoolId_t mempool) {
  check_device_index(device);
  memory::heap_of(device).end_route(mempool, std::this_thread::get_id());
}

namespace memory {

bool is_uncached() noexcept {
  return is_direct.load(std::memory_order_relaxed);
}

const SegmentSource* current_source() noexcept {
  return changed_source.load();
}

}  // namespace memory

}  // namespace outboard

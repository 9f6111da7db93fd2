// SPDX-License-Identifier: BSD-3-Clause
// The interfaces of the device allocator: torch's
// c10::DeviceAllocator and the core's own functions.
#include "memory/caching_allocator.h"

#include <algorithm>
#include <array>
#include <exception>
#include <memory>

#include "core/capture.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/observer.h"
#include "core/process.h"
#include "core/queue.h"
#include "memory/device_heap.h"
#include "memory/host_allocator.h"
#include "memory/sharing.h"

namespace outboard {

namespace memory {

DeviceHeap& heap_of(c10::DeviceIndex device) {
  // Never destroyed: deleters run until the end of the process.
  static auto* const heaps = [] {
    auto* all = new std::array<std::unique_ptr<DeviceHeap>, kMaxDevices>();
    for (int i = 0; i < kMaxDevices; ++i) {
      (*all)[static_cast<size_t>(i)] = std::make_unique<DeviceHeap>(static_cast<c10::DeviceIndex>(i));
    }
    return all;
  }();
  return *(*heaps)[static_cast<size_t>(device)];
}

}  // namespace memory

namespace {

using memory::Block;
using memory::block_of;
using memory::heap_of;

// The deleter of all our DataPtrs. It also identifies them.
void free_block(void* context) {
  // In a forked child the heap's lock may be held by a thread that does not exist there.
  if (C10_LIKELY(!driver_is_gone())) {
    auto* block = static_cast<Block*>(context);
    block->pool->heap->free(block);
  }
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return outboard::allocate(current_stream(current_device()), bytes); }

  // The context is the block, not the address, so memory cannot be freed by address alone.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  // Waits, because c10::Allocator::clone returns the copy as finished.
  void copy_data(void* dest, const void* src, size_t count) const override {
    if (count == 0) {
      return;
    }
    ob_copy copy{};
    copy.struct_size = sizeof(copy);
    copy.dst = reinterpret_cast<uint64_t>(dest);
    copy.src = reinterpret_cast<uint64_t>(src);
    copy.bytes = count;
    copy.dst_device = device_of(copy.dst);
    copy.src_device = device_of(copy.src);
    const auto device = static_cast<c10::DeviceIndex>(copy.dst_device);
    Stream& stream = current_stream(device);
    refuse_in_capture(stream, "the allocator's clone of a block, which waits for the copy,");
    queue_copy(stream, copy);
    synchronize_stream(stream);
  }

  bool initialized() override { return is_attached(); }

  void emptyCache(c10::MempoolId_t mempool) override {
    std::exception_ptr error;
    for (int i = 0; i < device_count(); ++i) {
      try {
        heap_of(static_cast<c10::DeviceIndex>(i)).empty_cache(mempool);
      } catch (...) {
        error = error ? error : std::current_exception();  // the other devices still get their turn
      }
    }
    if (error) {
      std::rethrow_exception(error);
    }
  }

  void recordStream(const c10::DataPtr& ptr, c10::Stream stream) override { record_stream(ptr, from_c10(stream)); }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return checked(device).stats();
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { checked(device).reset_accumulated_stats(); }
  void resetPeakStats(c10::DeviceIndex device) override { checked(device).reset_peak_stats(); }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    uint64_t free = 0;
    uint64_t total = 0;
    memory_info(device, &free, &total);
    return {free, total};
  }

 private:
  static memory::DeviceHeap& checked(c10::DeviceIndex device) {
    check_device_index(device);
    return heap_of(device);
  }

  // Return the device of an address; the current device if no device has it.
  static int32_t device_of(uint64_t address) {
    const c10::DeviceIndex current = current_device();
    const c10::DeviceIndex owner = heap_of(current).owns(address) ? current : device_of_address(address);
    return owner >= 0 ? owner : current;
  }
};

}  // namespace

memory::Block* memory::block_of(const c10::DataPtr& ptr) noexcept {
  return ptr.get_deleter() == &free_block ? static_cast<Block*>(ptr.get_context()) : nullptr;
}

c10::DeviceAllocator& device_allocator() {
  static auto* const allocator = new Allocator();
  return *allocator;
}

c10::DataPtr allocate(Stream& stream, size_t bytes) {
  const c10::Device device(kDeviceType, stream.device);
  if (bytes == 0) {
    return {nullptr, nullptr, &free_block, device};
  }
  ensure_open(stream.device);
  Block* block = heap_of(stream.device).allocate(stream, bytes);
  c10::DataPtr data(reinterpret_cast<void*>(block->address), block, &free_block, device);
  if (Observer* active = observer_of_all(); C10_UNLIKELY(active != nullptr)) {
    active->allocate(stream.device, block->address, block->size(), stream.id);
  }
  return data;
}

bool host_address(const c10::DataPtr& ptr, size_t bytes, void** out_address) {
  *out_address = nullptr;
  if (ptr.get() == nullptr) {
    return bytes == 0;
  }
  const auto address = reinterpret_cast<uint64_t>(ptr.get());
  if (const Block* block = block_of(ptr)) {
    const memory::Segment& segment = *block->segment;
    *out_address = segment.has_host ? reinterpret_cast<void*>(address + segment.host_delta) : nullptr;
    return segment.has_host;
  }
  if (!driver().host_address) {
    return false;
  }
  const c10::DeviceIndex device = ptr.device().index();
  ensure_open(device);
  uint64_t host = 0;
  const ob_status status = driver().host_address(driver().self, device, address, bytes, &host);
  if (is_unimplemented(status)) {
    return false;
  }
  check(status, "host_address", device);
  *out_address = reinterpret_cast<void*>(host);
  return host != 0;
}

void record_stream(const c10::DataPtr& ptr, Stream& stream) {
  // The block's own stream needs no record, and no lock of the heap: compiled
  // kernels call this for each argument.
  if (Block* block = block_of(ptr); block != nullptr && block->pool->stream != &stream) {
    block->pool->heap->record_stream(block, stream);
    if (Observer* active = observer_of_all(); C10_UNLIKELY(active != nullptr)) {
      active->record(stream.device, block->address, stream.id);
    }
  }
}

void process_deferred(c10::DeviceIndex device) {
  if (driver_is_gone()) {
    return;
  }
  process_host_blocks();
  heap_of(device).process_deferred();
}

void memory_info(c10::DeviceIndex device, uint64_t* out_free, uint64_t* out_total) {
  mem_info(device, out_free, out_total);
  // The driver reports all of it free although we have some: it does not know.
  if (*out_free == *out_total) {
    *out_free -= std::min<uint64_t>(*out_total, heap_of(device).reserved_bytes());
  }
}

std::vector<c10::CachingDeviceAllocator::SegmentInfo> memory_snapshot(c10::DeviceIndex device) {
  check_device_index(device);
  return heap_of(device).snapshot();
}

void release_device_memory(c10::DeviceIndex device) noexcept {
  if (!in_bad_fork()) {
    heap_of(device).release_all();
  }
}

}  // namespace outboard

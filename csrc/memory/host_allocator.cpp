// SPDX-License-Identifier: BSD-3-Clause
// Torch's template calls its runtime functions from deleters, which must not throw, and under its
// mutexes. No driver entry may be called from either. So a block that streams still use is kept
// from the template until they are done, and memory to be freed is noted. Both are processed in
// allocate, in empty_cache and after a wait.
#include "memory/host_allocator.h"

#include <ATen/core/CachingHostAllocator.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/observer.h"
#include "core/process.h"
#include "memory/device_heap.h"
#include "memory/host_ranges.h"
#include "memory/poison.h"
#include "memory/stream_uses.h"

namespace outboard {

namespace {

using memory::host_ranges;
using memory::HostRange;
using memory::WaitMode;

constexpr size_t kHostAlignment = 64;

struct PinnedBlock : at::HostBlock<c10::Stream> {
  using at::HostBlock<c10::Stream>::HostBlock;
  std::atomic<size_t> pending{0};  // once freed: streams that may still use it
};

// Of a pinned block that was freed, or of other memory after a failed wait.
struct HostUse : memory::StreamUse {
  PinnedBlock* block = nullptr;
  c10::Storage storage;
};

// The template's own events are not used.
using Base = at::CachingHostAllocatorImpl<c10::Stream, Event, PinnedBlock>;

class HostAllocatorImpl final : public Base {
 public:
  std::pair<void*, void*> allocate(size_t size) override {
    if (uses_.is_pollable()) {
      process_uses(WaitMode::Poll);
    }
    defer(free_noted(), current_device());
    const std::pair<void*, void*> allocation = Base::allocate(size);
    if (Observer* active = observer_of_all(); C10_UNLIKELY(active != nullptr) && allocation.second != nullptr) {
      const auto* block = static_cast<PinnedBlock*>(allocation.second);
      active->host_allocate(reinterpret_cast<uint64_t>(block->ptr_), block->size_);
    }
    return allocation;
  }

  void free(void* context) override {
    // In a forked child torch's mutexes may be held by threads that do not exist there.
    if (context == nullptr || driver_is_gone()) {
      return;
    }
    auto* block = static_cast<PinnedBlock*>(context);
    decltype(block->streams_) streams;
    {
      const std::lock_guard lock(block->mutex_);
      std::swap(streams, block->streams_);
    }
    if (streams.empty()) {
      release(block);
      return;
    }
    block->pending.store(streams.size());
    for (const c10::Stream& stream : streams) {
      auto use = std::make_unique<HostUse>();
      use->stream = &from_c10(stream);
      use->block = block;
      uses_.add(use.release());
    }
  }

  void empty_cache() override {
    process_uses(WaitMode::Wait);
    Base::empty_cache();
    {
      const std::lock_guard lock(noted_mutex_);
      noted_.insert(noted_.end(), failed_.begin(), failed_.end());
      failed_.clear();
    }
    if (std::exception_ptr error = free_noted()) {
      std::rethrow_exception(error);
    }
  }

  // Return false if the memory had to be kept.
  bool keep_while_queued(const c10::Storage& storage, Stream& stream) noexcept {
    std::exception_ptr again;  // the caller raises the first failure
    if (driver_is_gone() || uses_.drain(stream, false, &again)) {
      return true;
    }
    if (auto* const use = new (std::nothrow) HostUse) {
      use->stream = &stream;
      use->storage = storage;
      uses_.add(use);
    } else {
      static_cast<void>(c10::Storage(storage).unsafeReleaseStorageImpl());
    }
    return false;
  }

  void copy_data(void* dest, const void* src, size_t count) const override { std::memcpy(dest, src, count); }

  // Return blocks to the template once their streams are done. The next process_deferred
  // of a device raises its failure.
  void process_uses(WaitMode wait_mode) {
    if (driver_is_gone()) {
      return;
    }
    memory::ProcessedUses processed = uses_.process(wait_mode);
    while (processed.done.head) {
      const std::unique_ptr<HostUse> use(static_cast<HostUse*>(processed.done.pop()));
      if (use->block != nullptr && use->block->pending.fetch_sub(1) == 1) {
        release(use->block);
      }
    }
    defer(std::move(processed.error), processed.failed ? processed.failed->device : current_device());
  }

 private:
  // Return a block that no stream uses any more to the template.
  void release(PinnedBlock* block) {
    if (C10_UNLIKELY(memory::poisons())) {
      memory::poison_host_memory(block->ptr_, block->size_, memory::next_poison());
    }
#if OUTBOARD_TORCH_MINOR < 13
    // Before torch 2.13 the template counts such a block as active forever.
    const size_t index = size_index(block->size_);
    {
      const std::lock_guard lock(pool_.load()->free_list_[index].mutex_);
      stats_.active_bucket_stats[index].decrease(1);
      stats_.active_bytes_bucket_stats[index].decrease(block->size_);
    }
#endif
    Base::free(block);
  }

  // Called with no lock held.
  void allocate_host_memory(size_t size, void** out) override {
    *out = nullptr;
    HostRange range{0, size};
    if (driver().host_alloc) {
      range.is_pinned = pin(size, out);
    }
    if (!range.is_pinned) {
      *out = std::aligned_alloc(kHostAlignment, (size + kHostAlignment - 1) / kHostAlignment * kHostAlignment);
      if (!*out) {
        raise(ErrorKind::OutOfMemory, OB_OUT_OF_MEMORY,
              "the system could not allocate " + c10::CachingAllocator::format_size(size) +
                  " of host memory. Release pinned memory that is no longer needed, or allocate less at a time");
      }
    }
    range.start = reinterpret_cast<uintptr_t>(*out);
    if (C10_UNLIKELY(memory::poisons())) {
      memory::poison_host_memory(*out, size, 0);
    }
    try {
      if (!host_ranges().add(range)) {
        raise(ErrorKind::Driver, OB_INTERNAL,
              "driver '" + driver_name() + "': host_alloc returned memory that is already pinned or registered");
      }
    } catch (...) {
      free_range(range);
      throw;
    }
  }

  // Return false if the driver pins no memory.
  bool pin(size_t size, void** out) {
    check_device_index(current_device());
    ensure_open(current_device());
    const TrackedCall noted("host_alloc", OB_HOST);
    ob_status status = driver().host_alloc(driver().self, size, out);
    if (status == OB_OUT_OF_MEMORY) {
      empty_cache();
      status = driver().host_alloc(driver().self, size, out);
    }
    if (status == OB_OUT_OF_MEMORY) {
      const std::string reason = last_driver_error();
      raise(ErrorKind::OutOfMemory, status,
            driver_name() + " could not pin " + c10::CachingAllocator::format_size(size) +
                " of host memory. Pin less at a time (fewer DataLoader workers, a smaller prefetch_factor), or raise"
                " the limit on locked memory (ulimit -l)." +
                (reason.empty() ? "" : " The driver reported: " + reason));
    }
    if (is_unimplemented(status)) {
      return false;
    }
    check(status, "host_alloc", OB_HOST);
    const auto address = reinterpret_cast<uintptr_t>(*out);
    if (address == 0 || address % kHostAlignment != 0) {
      if (address != 0) {
        check(free_range({address, 0, true}), "host_free", OB_HOST);
      }
      raise(ErrorKind::Driver, OB_INTERNAL,
            "driver '" + driver_name() + "': host_alloc returned OK with " +
                (address == 0 ? "a null pointer" : "a pointer that is not aligned to 64 bytes"));
    }
    return true;
  }

  static ob_status free_range(const HostRange& range) {
    if (range.is_pinned) {
      const TrackedCall noted("host_free", OB_HOST);
      return driver().host_free(driver().self, reinterpret_cast<void*>(range.start));
    }
    std::free(reinterpret_cast<void*>(range.start));
    return OB_OK;
  }

  // Called under two of torch's mutexes, also from deleters.
  void free_block(PinnedBlock* block) override {
    const HostRange range = host_ranges().find(block->ptr_);
    TORCH_INTERNAL_ASSERT(range.size != 0, "a host block without a range");
    host_ranges().remove(range.start);
    const std::lock_guard lock(noted_mutex_);
    noted_.push_back(range);
  }

  c10::Stream get_current_stream() const override { return to_c10(current_stream(current_device())); }
  bool stream_is_capturing(c10::Stream) const override { return false; }  // captures have no host pools

#if OUTBOARD_TORCH_MINOR <= 13
  // With pinned_max_round_threshold_mb set, torch 2.13 puts blocks of different sizes into one
  // list, and returns the last one although it may be too small. Later versions search for a block
  // that is large enough, as this does. For older versions this notes the pool for `release`.
  PinnedBlock* get_free_block(size_t size, BlockPool& pool) override {
    pool_.store(&pool);
    const size_t index = size_index(size);
    const std::lock_guard lock(pool.free_list_[index].mutex_);
    auto& list = pool.free_list_[index].list_;
    for (auto it = list.end(); it != list.begin();) {
      PinnedBlock* block = *--it;
      if (block->size_ >= size) {
        list.erase(it);
        block->allocated_ = true;
        stats_.active_bucket_stats[index].increase(1);
        stats_.active_bytes_bucket_stats[index].increase(block->size_);
        return block;
      }
    }
    return nullptr;
  }
#endif

  // Free the blocks that free_block noted, and return the first failure. empty_cache tries
  // again what the driver did not free.
  std::exception_ptr free_noted() {
    std::vector<HostRange> ranges;
    if (driver_is_gone()) {
      return nullptr;
    }
    {
      const std::lock_guard lock(noted_mutex_);
      ranges.swap(noted_);
    }
    std::exception_ptr first;
    for (const HostRange& range : ranges) {
      try {
        check(free_range(range), "host_free", OB_HOST);
      } catch (...) {
        first = first ? first : std::current_exception();
        const std::lock_guard lock(noted_mutex_);
        failed_.push_back(range);
      }
    }
    return first;
  }

  static void defer(std::exception_ptr error, c10::DeviceIndex device) {
    if (error) {
      memory::heap_of(device).defer_error(std::move(error));
    }
  }

  memory::StreamUses uses_;

  std::mutex noted_mutex_;
  std::vector<HostRange> noted_;
  std::vector<HostRange> failed_;
#if OUTBOARD_TORCH_MINOR <= 13
  std::atomic<BlockPool*> pool_{nullptr};
#endif
};

void free_host_block(void* context);

struct PinnedAllocator final : at::CachingHostAllocatorInterface<HostAllocatorImpl, free_host_block> {};

// Never destroyed: deleters run until the end of the process.
PinnedAllocator& pinned_allocator() {
  static auto* const instance = new PinnedAllocator();
  return *instance;
}

void free_host_block(void* context) {
  pinned_allocator().free(context);
}

}  // namespace

at::HostAllocator& host_allocator() {
  return pinned_allocator();
}

bool record_host_block(const void* pointer, const c10::DataPtr& ptr, Stream& stream) {
  const HostRange range = host_ranges().find(pointer);
  return range.is_pinned &&
         (range.is_registered ||
          pinned_allocator().record_event(reinterpret_cast<void*>(range.start), ptr.get_context(), to_c10(stream)));
}

void keep_while_queued(const c10::Storage& storage, Stream& stream) {
  if (pinned_allocator().impl_->keep_while_queued(storage, stream)) {
    return;
  }
  const bool is_owned = storage.data_ptr().get_context() != nullptr;
  TORCH_WARN("A wait for device ", static_cast<int>(stream.device), " failed, so a copy between it and ",
             c10::CachingAllocator::format_size(storage.nbytes()), " of host memory may still be running. ",
             is_owned ? "The memory stays allocated until a later wait shows that the device has finished."
                      : "PyTorch does not own that memory: keep it until the process ends.");
}

void process_host_blocks() {
  pinned_allocator().impl_->process_uses(WaitMode::Retry);
}

void release_host_memory() noexcept {
  try {
    pinned_allocator().impl_->empty_cache();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torch_outboard: some pinned memory was not released at exit: %s\n", error.what());
  }
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// torch's template calls its runtime functions from deleters, which must not throw, and under its mutexes. No driver
// entry may be called from either, so here those functions only take notes: which marks to record on which stream, and
// which memory to free. The notes are worked off in `settle` and `drain`, which allocate, empty_cache and the
// synchronising functions call with no lock held.
#include "memory/host_allocator.h"

#include <ATen/core/CachingHostAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "core/capture.h"
#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/event.h"
#include "core/process.h"
#include "memory/device_heap.h"

namespace outboard {

namespace {

constexpr size_t kHostAlignment = 64;

// The end of the work that used a freed block on one stream.
struct Mark {
  explicit Mark(Stream& on) : stream(&on) {}
  Stream* stream;
  Event event;               // of the settling thread
  bool is_recorded = false;  // likewise
  std::atomic<bool> is_done{false};
};
using MarkPtr = std::shared_ptr<Mark>;

using Block = at::HostBlock<c10::Stream>;
using Base = at::CachingHostAllocatorImpl<c10::Stream, MarkPtr, Block>;

class HostAllocatorImpl final : public Base {
 public:
  std::pair<void*, void*> allocate(size_t size) override {
    settle();
    defer(drain());
    return Base::allocate(size);
  }

  void free(void* context) override {
    // In a forked child torch's mutexes may be held by threads that aren't there.
    if (!driver_is_gone()) {
      Base::free(context);
    }
  }

  void empty_cache() override {
    settle();
    Base::empty_cache();
    {
      const std::lock_guard lock(notes_mutex_);
      unfreed_.insert(unfreed_.end(), failed_.begin(), failed_.end());
      failed_.clear();
    }
    if (std::exception_ptr error = drain()) {
      std::rethrow_exception(error);
    }
  }

  void copy_data(void* dest, const void* src, size_t count) const override { std::memcpy(dest, src, count); }

  // Records and polls marks. One thread at a time: the others need not wait, the blocks just stay away a little longer.
  void settle() {
    if (driver_is_gone()) {
      return;
    }
    std::list<MarkPtr> marks;
    {
      const std::lock_guard lock(notes_mutex_);
      if (is_settling_ || marks_.empty()) {
        return;
      }
      is_settling_ = true;
      marks.swap(marks_);
    }
    for (auto it = marks.begin(); it != marks.end();) {
      Mark& mark = **it;
      // A stream reaches its marks in their order: don't ask behind one that is not done.
      const bool is_behind =
          std::any_of(marks.begin(), it, [&](const MarkPtr& earlier) { return earlier->stream == mark.stream; });
      if (C10_UNLIKELY(!mark.is_recorded && capture_of(*mark.stream) != nullptr)) {
        ++it;  // recorded at the end of the capture
        continue;
      }
      try {
        if (!mark.is_recorded) {
          mark.event.record(*mark.stream);
          mark.is_recorded = true;
        }
        if (!is_behind && mark.event.query()) {
          mark.is_done.store(true, std::memory_order_release);
          it = marks.erase(it);
          continue;
        }
      } catch (...) {
        memory::heap_of(mark.stream->device).defer_error(std::current_exception());
      }
      ++it;
    }
    const std::lock_guard lock(notes_mutex_);
    marks_.splice(marks_.begin(), marks);
    is_settling_ = false;
  }

  struct Range {
    uintptr_t start = 0;
    size_t size = 0;
    bool is_pinned = false;      // by the driver
    bool is_registered = false;  // not ours: it was there before
    bool is_busy = false;        // registered, while the driver is asked
  };

  void register_memory(void* pointer, size_t bytes) {
    if (!driver().host_register) {
      raise_not_supported("host_register", "pinning memory that exists; pin_memory() gives a pinned copy");
    }
    const auto start = reinterpret_cast<uintptr_t>(pointer);
    if (pointer == nullptr || bytes == 0 || start + bytes < start) {
      raise(ErrorKind::InvalidArgument, OB_INVALID_ARGUMENT, "there is no memory to be pinned: 0 bytes were given");
    }
    check_device_index(current_device());
    ensure_open(current_device());
    bool is_free = false;
    {
      // Before the driver is asked, so that of two that overlap one is refused.
      const std::unique_lock lock(ranges_mutex_);
      const auto next = ranges_.lower_bound(start);
      const bool meets_next = next != ranges_.end() && next->first - start < bytes;
      const bool meets_last = next != ranges_.begin() && start - std::prev(next)->first < std::prev(next)->second.size;
      is_free = !meets_next && !meets_last;
      if (is_free) {
        ranges_.emplace(start, Range{start, bytes, false, true, true});
      }
    }
    const ob_status status =
        is_free ? driver().host_register(driver().self, pointer, bytes) : ob_status{OB_ALREADY_EXISTS};
    if (is_free) {
      const std::unique_lock lock(ranges_mutex_);
      if (status == OB_OK) {
        ranges_[start].is_pinned = true;
        ranges_[start].is_busy = false;
      } else {
        ranges_.erase(start);
      }
    }
    // By us, or by another user of the device in this process, whom only the driver knows.
    if (status == OB_ALREADY_EXISTS) {
      raise(ErrorKind::InvalidArgument, OB_ALREADY_EXISTS,
            "part of that memory is pinned already: each byte can be registered once");
    }
    if (is_unimplemented(status)) {
      raise_not_supported("host_register", "pinning memory that exists; pin_memory() gives a pinned copy");
    }
    check(status, "host_register", OB_HOST);
  }

  void unregister_memory(void* pointer) {
    if (driver_is_gone()) {
      return;
    }
    const auto start = reinterpret_cast<uintptr_t>(pointer);
    bool is_known = false;
    {
      const std::unique_lock lock(ranges_mutex_);
      const auto it = ranges_.find(start);
      is_known = it != ranges_.end() && it->second.is_registered && !it->second.is_busy;
      if (is_known) {
        it->second.is_busy = true;
      }
    }
    if (!is_known) {
      raise(ErrorKind::InvalidArgument, OB_NOT_FOUND,
            "that memory is not registered: host_unregister takes what host_register was given, once");
    }
    const auto restore = [&] {
      const std::unique_lock lock(ranges_mutex_);
      ranges_[start].is_busy = false;
    };
    try {
      for (int i = 0; i < device_count(); ++i) {
        if (is_open(static_cast<c10::DeviceIndex>(i))) {
          synchronize_device(static_cast<c10::DeviceIndex>(i));
        }
      }
      check(driver().host_unregister(driver().self, pointer), "host_unregister", OB_HOST);
    } catch (...) {
      restore();
      throw;
    }
    const std::unique_lock lock(ranges_mutex_);
    ranges_.erase(start);
  }

  // Size 0 if the address is in none.
  Range find_range(const void* pointer) const {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const std::shared_lock lock(ranges_mutex_);
    auto it = ranges_.upper_bound(address);
    if (it == ranges_.begin()) {
      return {};
    }
    const Range& range = std::prev(it)->second;
    return address - range.start < range.size ? range : Range{};
  }

  void release_cached() noexcept {
    try {
      empty_cache();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "torch_outboard: pinned memory was not all released at the end: %s\n", error.what());
    }
  }

 private:
  // Called with no lock held.
  void allocate_host_memory(size_t size, void** out) override {
    *out = nullptr;
    bool is_pinned = false;
    if (driver().host_alloc) {
      check_device_index(current_device());
      ensure_open(current_device());
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
                  (reason.empty() ? "" : " The driver says: " + reason));
      }
      is_pinned = !is_unimplemented(status);
      if (is_pinned) {
        check(status, "host_alloc", OB_HOST);
        check_address(*out);
      }
    }
    if (!is_pinned) {
      *out = std::aligned_alloc(kHostAlignment, (size + kHostAlignment - 1) / kHostAlignment * kHostAlignment);
      if (!*out) {
        raise(ErrorKind::OutOfMemory, OB_OUT_OF_MEMORY,
              "the system has no " + c10::CachingAllocator::format_size(size) + " of host memory left");
      }
    }
    const Range range{reinterpret_cast<uintptr_t>(*out), size, is_pinned, false, false};
    try {
      const std::unique_lock lock(ranges_mutex_);
      ranges_.emplace(range.start, range);
    } catch (...) {
      free_range(range);
      throw;
    }
  }

  static void check_address(void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (address != 0 && address % kHostAlignment == 0) {
      return;
    }
    if (address != 0) {
      check(free_range({address, 0, true, false, false}), "host_free", OB_HOST);
    }
    raise(ErrorKind::Driver, OB_INTERNAL,
          "driver '" + driver_name() + "': host_alloc returned OK with " +
              (address == 0 ? "a null pointer" : "a pointer that is not aligned to 64 bytes"));
  }

  static ob_status free_range(const Range& range) {
    if (range.is_pinned) {
      return driver().host_free(driver().self, reinterpret_cast<void*>(range.start));
    }
    std::free(reinterpret_cast<void*>(range.start));
    return OB_OK;
  }

  // Called under two of torch's mutexes, from deleters too.
  void free_block(Block* block) override {
    Range range;
    {
      const std::unique_lock lock(ranges_mutex_);
      const auto it = ranges_.find(reinterpret_cast<uintptr_t>(block->ptr_));
      TORCH_INTERNAL_ASSERT(it != ranges_.end(), "a host block without a range");
      range = it->second;
      ranges_.erase(it);
    }
    const std::lock_guard lock(notes_mutex_);
    unfreed_.push_back(range);
  }

  // Called from deleters.
  void record_stream(std::optional<std::vector<MarkPtr>>& events, c10::Stream stream) override {
    auto mark = std::make_shared<Mark>(from_c10(stream));
    events->push_back(mark);
    const std::lock_guard lock(notes_mutex_);
    marks_.push_back(std::move(mark));
  }

  // Called under a mutex by empty_cache, for private pools.
  bool query_event(MarkPtr& mark) override { return mark->is_done.load(std::memory_order_acquire); }

  c10::Stream get_current_stream() const override { return to_c10(current_stream(current_device())); }
  bool stream_is_capturing(c10::Stream) const override { return false; }  // no stream captures yet

#if OUTBOARD_TORCH_MINOR == 13
  // With pinned_max_round_threshold_mb set, torch 2.13 puts blocks of different sizes into one list, and hands out its
  // last one although it may be too small. Later versions look for one that is large enough, as is done here.
  Block* get_free_block(size_t size, BlockPool& pool) override {
    const size_t index = size_index(size);
    const std::lock_guard lock(pool.free_list_[index].mutex_);
    auto& list = pool.free_list_[index].list_;
    for (auto it = list.end(); it != list.begin();) {
      Block* block = *--it;
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

  // Frees what free_block noted; gives the first failure. What the driver would not free is tried again by empty_cache.
  std::exception_ptr drain() {
    std::vector<Range> ranges;
    if (driver_is_gone()) {
      return nullptr;
    }
    {
      const std::lock_guard lock(notes_mutex_);
      ranges.swap(unfreed_);
    }
    std::exception_ptr first;
    for (const Range& range : ranges) {
      try {
        check(free_range(range), "host_free", OB_HOST);
      } catch (...) {
        first = first ? first : std::current_exception();
        const std::lock_guard lock(notes_mutex_);
        failed_.push_back(range);
      }
    }
    return first;
  }

  static void defer(std::exception_ptr error) {
    if (error) {
      memory::heap_of(current_device()).defer_error(std::move(error));
    }
  }

  mutable std::shared_mutex ranges_mutex_;
  std::map<uintptr_t, Range> ranges_;  // by start: of every block, in use or cached

  std::mutex notes_mutex_;
  std::list<MarkPtr> marks_;
  std::vector<Range> unfreed_;
  std::vector<Range> failed_;
  bool is_settling_ = false;
};

void free_host_block(void* context);

struct Allocator final : at::CachingHostAllocatorInterface<HostAllocatorImpl, free_host_block> {};

// Never destroyed: deleters run until the very end of the process.
Allocator& allocator() {
  static auto* const made = new Allocator();
  return *made;
}

void free_host_block(void* context) {
  allocator().free(context);
}

}  // namespace

at::HostAllocator& host_allocator() {
  return allocator();
}

bool is_pinned(const void* pointer) {
  return allocator().impl_->find_range(pointer).is_pinned;
}

bool is_host_block(const void* pointer) {
  return allocator().impl_->find_range(pointer).size != 0;
}

bool record_host_block(const void* pointer, const c10::DataPtr& ptr, Stream& stream) {
  const HostAllocatorImpl::Range range = allocator().impl_->find_range(pointer);
  return range.is_pinned && (range.is_registered || allocator().record_event(reinterpret_cast<void*>(range.start),
                                                                             ptr.get_context(), to_c10(stream)));
}

void register_host_memory(void* pointer, size_t bytes) {
  allocator().impl_->register_memory(pointer, bytes);
}

void unregister_host_memory(void* pointer) {
  allocator().impl_->unregister_memory(pointer);
}

void settle_host_blocks() {
  allocator().impl_->settle();
}

void release_host_memory() noexcept {
  allocator().impl_->release_cached();
}

}  // namespace outboard

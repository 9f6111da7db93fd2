// SPDX-License-Identifier: BSD-3-Clause
// The allocator's history, for snapshots: trace entries, and the stacks of live blocks.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/export.h"
#include "memory/block.h"

namespace outboard {

using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::TraceEntry;

struct HistorySettings {
  bool is_on = false;
  bool is_traced = false;  // keeps entries, not only the stacks of live blocks
  RecordContext when = RecordContext::NEVER;
  // Collect the calling thread's stack. Called with no lock held; may take the interpreter lock.
  c10::CachingDeviceAllocator::CreateContextFn gather = nullptr;
  size_t max_entries = SIZE_MAX;  // older ones are dropped
  uint32_t skipped = 0;           // bit i: no entries of TraceEntry::Action i
  bool is_cleared = false;        // drops the existing entries
};

// Record the history of all devices.
OUTBOARD_API void record_memory_history(const HistorySettings& settings);

// The segments with the stacks of live blocks, and the trace entries of a device, oldest first.
// Times are microseconds since 1970; `stream` holds the outboard::Stream's address. Without the
// trace, nothing is copied, and the snapshot itself is not recorded.
struct MemorySnapshot {
  std::vector<SegmentInfo> segments;
  std::vector<TraceEntry> trace;
};
OUTBOARD_API MemorySnapshot memory_history_snapshot(c10::DeviceIndex device, bool with_trace = true);

namespace memory {

using Context = std::shared_ptr<c10::GatheredContext>;

// The history of one heap, guarded by its lock, except the atomic members.
struct History {
  std::atomic<bool> is_on{false};
  std::atomic<RecordContext> when{RecordContext::NEVER};
  std::atomic<c10::CachingDeviceAllocator::CreateContextFn> gather{nullptr};
  bool is_traced = false;
  size_t max_entries = SIZE_MAX;
  uint32_t skipped = 0;
  std::vector<TraceEntry> entries;
  size_t oldest = 0;  // index in `entries`, once the maximum is reached
  std::unordered_map<const Block*, Context> contexts;
};

// The calling thread's stack for the events of this scope, collected if the history is
// on. Create it with no lock held.
class ContextScope {
 public:
  ContextScope(const History& history, RecordContext least) {
    if (C10_UNLIKELY(history.is_on.load(std::memory_order_relaxed)) && history.when.load() >= least) {
      enter(history);
    }
  }
  ~ContextScope() {
    if (C10_UNLIKELY(is_entered_)) {
      leave();
    }
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  static const Context& current() noexcept;

 private:
  void enter(const History& history);
  void leave() noexcept;
  bool is_entered_ = false;
  Context outer_;  // for nested allocations, by an observer or a pluggable allocator
};

}  // namespace memory

}  // namespace outboard

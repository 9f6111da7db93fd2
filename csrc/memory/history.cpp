// SPDX-License-Identifier: BSD-3-Clause
#include "memory/history.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/device.h"
#include "memory/device_heap.h"

namespace outboard {

namespace memory {

namespace {
thread_local Context current_context;
}

const Context& ContextScope::current() noexcept {
  return current_context;
}

void ContextScope::enter(const History& history) {
  const auto gather = history.gather.load();
  Context context = gather ? gather() : nullptr;
  outer_ = std::exchange(current_context, std::move(context));
  is_entered_ = true;
}

void ContextScope::leave() noexcept {
  current_context = std::move(outer_);
}

void DeviceHeap::record_history(const HistorySettings& settings) {
  std::unordered_map<const Block*, Context> dropped_contexts;  // destroyed after the lock
  const Lock lock(mutex_);
  history_.is_traced = settings.is_on && settings.is_traced;
  history_.gather = settings.gather;
  history_.when = settings.is_on ? settings.when : RecordContext::NEVER;
  history_.skipped = settings.skipped;
  if (settings.is_cleared || history_.entries.size() > settings.max_entries ||
      history_.max_entries != settings.max_entries) {
    // Restore the order, so that a new limit holds and the newest are kept.
    std::rotate(history_.entries.begin(), history_.entries.begin() + static_cast<ptrdiff_t>(history_.oldest),
                history_.entries.end());
    history_.oldest = 0;
    const size_t kept = settings.is_cleared ? 0 : std::min(history_.entries.size(), settings.max_entries);
    history_.entries.erase(history_.entries.begin(), history_.entries.end() - static_cast<ptrdiff_t>(kept));
  }
  history_.max_entries = settings.max_entries;
  if (!settings.is_on) {
    dropped_contexts.swap(history_.contexts);
  }
  history_.is_on = settings.is_on;
}

// Note an event, with the lock held. Without memory for it the entry is
// lost, and that is raised later.
void DeviceHeap::note(TraceEntry::Action action, uint64_t address, size_t size, const SizePool* pool,
                      const Context& context) noexcept {
  if (!history_.is_traced || history_.max_entries == 0 ||
      (history_.skipped >> static_cast<unsigned>(action) & 1u) != 0) {
    return;
  }
  try {
    TraceEntry entry(action, device_, address, size, pool ? pool->stream : nullptr,
                     pool ? pool->mempool : c10::MempoolId_t{0, 0}, 0, context);
    entry.time_.t_ =
        std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
            .count();
    if (history_.entries.size() < history_.max_entries) {
      history_.entries.push_back(std::move(entry));
    } else {
      history_.entries[history_.oldest] = std::move(entry);
      history_.oldest = (history_.oldest + 1) % history_.max_entries;
    }
  } catch (...) {
    defer_error(std::current_exception());
  }
}

void DeviceHeap::note_allocated(const Block* block) noexcept {
  const Context& context = ContextScope::current();
  if (context && history_.when.load() >= RecordContext::STATE) {
    try {
      history_.contexts.insert_or_assign(block, context);
    } catch (...) {
      defer_error(std::current_exception());
    }
  }
  note(TraceEntry::ALLOC, block->address, block->requested, block->pool,
       history_.when.load() >= RecordContext::ALLOC ? context : nullptr);
}

void DeviceHeap::note_freed(const Block* block, TraceEntry::Action action) noexcept {
  const auto it = history_.contexts.find(block);
  const Context& own = ContextScope::current();
  note(action, block->address, block->requested, block->pool,
       own                             ? own
       : it != history_.contexts.end() ? it->second
                                       : nullptr);
  if (action == TraceEntry::FREE_COMPLETED && it != history_.contexts.end()) {
    history_.contexts.erase(it);
  }
}

MemorySnapshot DeviceHeap::history_snapshot(bool with_trace) {
  MemorySnapshot result;
  if (with_trace) {
    const ContextScope context(history_, RecordContext::ALL);
    const Lock lock(mutex_);
    note(TraceEntry::SNAPSHOT, 0, static_cast<size_t>(stats_.reserved_bytes[0].current), nullptr,
         ContextScope::current());
    result.trace.reserve(history_.entries.size());
    for (size_t i = 0; i < history_.entries.size(); ++i) {
      result.trace.push_back(history_.entries[(history_.oldest + i) % history_.entries.size()]);
    }
  }
  result.segments = snapshot();
  return result;
}

}  // namespace memory

void record_memory_history(const HistorySettings& settings) {
  for (int i = 0; i < device_count(); ++i) {
    memory::heap_of(static_cast<c10::DeviceIndex>(i)).record_history(settings);
  }
}

MemorySnapshot memory_history_snapshot(c10::DeviceIndex device, bool with_trace) {
  check_device_index(device);
  return memory::heap_of(device).history_snapshot(with_trace);
}

}  // namespace outboard

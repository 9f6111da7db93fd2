// SPDX-License-Identifier: BSD-3-Clause
#include "core/failure.h"

#include <c10/macros/Macros.h>

#include <algorithm>
#include <limits>

#include "core/capture.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/kernel_failure.h"
#include "core/stream.h"

namespace outboard {

namespace {

// Guards the failures of all streams. It is taken only if there is a failure, so other work does
// not pay for it. Lock it before a stream's own mutex.
std::mutex failures_mutex;
std::atomic<size_t> kept_count{0};

thread_local const StreamState* failed_stream = nullptr;

using detail::store_max;
using Lock = std::lock_guard<std::mutex>;

Dependency* find(std::vector<Dependency>& entries, const StreamState& stream) {
  const auto it = std::ranges::find(entries, &stream, &Dependency::stream);
  return it == entries.end() ? nullptr : &*it;
}

// Return the dependency's first unraised failure. This and the next functions need failures_mutex.
Failure* first_unraised(const Dependency& on) {
  for (Failure& failure : on.stream->failures.kept) {
    if (failure.number > on.last_raised && failure.mark <= on.mark) {
      return &failure;
    }
  }
  return nullptr;
}

// Take that failure, together with later failures that no wait could have seen yet.
std::exception_ptr take(Dependency& on) {
  std::exception_ptr first;
  uint64_t last = on.last_raised;
  for (Failure& failure : on.stream->failures.kept) {
    if (failure.number > on.last_raised && failure.mark <= on.mark) {
      first = first ? first : failure.error;
      last = failure.number;
      failure.is_raised = true;
    }
  }
  on.last_raised = last;
  return first;
}

Dependency own(StreamState& stream, uint64_t mark) {
  return {&stream, mark, stream.failures.last_raised.load(std::memory_order_relaxed)};
}

template <class Visit>
void visit_streams(int device, Visit visit) {
  detail::for_each_created_stream(
      static_cast<c10::DeviceIndex>(device), [](Stream& stream, void* user) { (*static_cast<Visit*>(user))(stream); },
      &visit);
}

template <class Visit>
void visit_all_streams(Visit visit) {
  for (int device = 0; device < device_count(); ++device) {
    visit_streams(device, visit);
  }
}

// Return the streams whose failures are kept.
std::vector<StreamState*>& failing_streams() {
  static auto* const list = new std::vector<StreamState*>();
  return *list;
}

// Mark the failures that `on` must still raise, now or, if the stream has not raised
// them itself, after a later wait.
void mark_needed(const Dependency& on, std::vector<bool>& needed) {
  const StreamFailures& failures = on.stream->failures;
  const uint64_t last_raised = failures.last_raised.load(std::memory_order_relaxed);
  for (size_t i = 0; i < failures.kept.size(); ++i) {
    const Failure& failure = failures.kept[i];
    if (failure.number > on.last_raised && (failure.mark <= on.mark || failure.number > last_raised)) {
      needed[i] = true;
      return;
    }
  }
}

// Drop the failures that no stream will raise any more. They go to `out_dropped`,
// to be destroyed without a lock.
void drop_unneeded(std::vector<Failure>& out_dropped) {
  std::erase_if(failing_streams(), [&](StreamState* stream) {
    std::vector<Failure>& kept = stream->failures.kept;
    std::vector<bool> needed(kept.size(), false);
    mark_needed(own(*stream, std::numeric_limits<uint64_t>::max()), needed);
    visit_all_streams([&](StreamState& other) {
      const Lock lock(other.failures.mutex);
      for (const Dependency& on : other.failures.dependencies) {
        if (on.stream == stream) {
          mark_needed(on, needed);
        }
      }
    });
    size_t left = 0;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (needed[i]) {
        std::swap(kept[left++], kept[i]);
      } else {
        out_dropped.push_back(std::move(kept[i]));
      }
    }
    kept_count.fetch_sub(kept.size() - left);
    kept.resize(left);
    return kept.empty();
  });
}

// Return true if the work has run and none of its stream's failures is kept. `is_exact`:
// failures_mutex is held, because there are failures.
bool is_settled(const Dependency& on, bool is_exact) {
  const StreamFailures& failures = on.stream->failures;
  return on.mark < failures.done.load(std::memory_order_acquire) &&
         !failures.has_driver_work.load(std::memory_order_relaxed) && (!is_exact || failures.kept.empty());
}

// Note one dependency. Past dependencies are dropped, so the list stays
// as short as the work under way.
void merge(StreamState& stream, const Dependency& on, bool is_exact) {
  if (on.stream == &stream || is_settled(on, is_exact)) {
    return;
  }
  std::vector<Dependency>& entries = stream.failures.dependencies.edit();
  Dependency* known = find(entries, *on.stream);
  if (!known) {
    std::erase_if(entries, [&](const Dependency& entry) { return is_settled(entry, is_exact); });
    entries.push_back(on);
    return;
  }
  if (is_exact && on.last_raised > known->last_raised && !first_unraised(*known)) {
    known->last_raised = on.last_raised;
  }
  known->mark = std::max(known->mark, on.mark);
}

void merge_all(StreamState& stream, const StreamPosition& before, bool is_exact) {
  const Lock lock(stream.failures.mutex);
  merge(stream, own(*before.stream, before.mark), is_exact);
  for (const Dependency& on : before.dependencies) {
    merge(stream, on, is_exact);
  }
  stream.failures.has_dependencies.store(true, std::memory_order_release);
}

// Note that everything before `before` has run.
void note_done(const StreamPosition& before) {
  store_max(before.stream->failures.done, before.mark + 1);
  for (const Dependency& on : before.dependencies) {
    store_max(on.stream->failures.done, on.mark + 1);
  }
}

// Drop the dependencies of `before`, which are settled.
void drop_dependencies(const StreamPosition& before) {
  StreamFailures& failures = before.stream->failures;
  const Lock lock(failures.mutex);
  if (failures.dependencies.is_same(before.dependencies)) {
    failures.dependencies = {};
    failures.has_dependencies.store(false, std::memory_order_release);
  }
}

std::exception_ptr take_dependency_failure(const StreamPosition& before) {
  StreamFailures& failures = before.stream->failures;
  const Lock lock(failures.mutex);
  for (Dependency on : before.dependencies) {
    std::vector<Dependency>& entries = failures.dependencies.edit();
    Dependency* known = find(entries, *on.stream);
    on.last_raised = known ? std::max(known->last_raised, on.last_raised) : on.last_raised;
    if (std::exception_ptr error = take(on)) {
      if (known) {
        known->last_raised = on.last_raised;
      } else {
        entries.push_back(on);
        failures.has_dependencies.store(true, std::memory_order_release);
      }
      return error;
    }
  }
  return nullptr;
}

// Call visit(dependency, stream) for all that the streams of a device depend on, themselves
// included, and store its changes.
template <class Visit>
void visit_dependencies(int device, Visit visit) {
  visit_streams(device, [&](StreamState& stream) {
    Dependency self = own(stream, std::numeric_limits<uint64_t>::max());
    visit(self);
    stream.failures.last_raised.store(self.last_raised, std::memory_order_relaxed);
    const Lock lock(stream.failures.mutex);
    if (stream.failures.has_dependencies.load(std::memory_order_relaxed)) {
      for (Dependency& on : stream.failures.dependencies.edit()) {
        visit(on);
      }
    }
  });
}

}  // namespace

std::vector<Dependency>& Dependencies::edit() {
  if (!list_) {
    list_ = new List();
  } else if (list_->holders.load(std::memory_order_acquire) != 1) {
    auto* copy = new List();
    const Dependencies shared = std::move(*this);
    list_ = copy;
    copy->entries = shared.list_->entries;
  }
  return list_->entries;
}

WorkPosition next_position(StreamState& stream) noexcept {
  return {&stream, stream.failures.mark.load(std::memory_order_relaxed)};
}

WorkPosition next_unique_position(StreamState& stream) noexcept {
  return {&stream, stream.failures.mark.fetch_add(1, std::memory_order_acq_rel)};
}

void report_failure(const WorkPosition& position, std::exception_ptr error) noexcept {
  failed_stream = position.stream;
  StreamFailures& failures = position.stream->failures;
  const Lock lock(failures_mutex);
  if (!failures.kept.empty() && !failures.kept.back().is_raised) {
    return;
  }
  if (failures.kept.empty()) {
    failing_streams().push_back(position.stream);
  }
  failures.kept.push_back({++failures.count, position.mark, std::move(error)});
  kept_count.fetch_add(1, std::memory_order_release);
}

StreamPosition advance_position(StreamState& stream) {
  StreamFailures& failures = stream.failures;
  StreamPosition position{&stream, failures.mark.fetch_add(1, std::memory_order_acq_rel), {}};
  if (C10_UNLIKELY(failures.has_dependencies.load(std::memory_order_acquire))) {
    const Lock lock(failures.mutex);
    position.dependencies = failures.dependencies;
  }
  return position;
}

void depend_on(StreamState& stream, const StreamPosition& before) {
  if (before.stream == &stream) {
    return;
  }
  if (kept_count.load(std::memory_order_acquire) == 0) {
    merge_all(stream, before, /*is_exact=*/false);
    // A failure is kept before its work counts as done. So while none is stored, no failed work was
    // mistaken for finished work.
    if (C10_LIKELY(kept_count.load(std::memory_order_acquire) == 0)) {
      return;
    }
  }
  const Lock exact(failures_mutex);
  merge_all(stream, before, /*is_exact=*/true);
}

namespace {

// Keep the failure of the driver's own work on a stream that lies before a point that was waited
// for. The stream has nothing left to do, so the driver reports the failure at once. If later work
// is under way, the stream's own next wait raises it.
void keep_driver_failure(Stream& stream) {
  if (!stream.failures.has_driver_work.load(std::memory_order_relaxed) || !driver().stream_query ||
      !stream.is_created.load(std::memory_order_acquire) || is_captured_by_driver(stream)) {
    return;
  }
  stream.failures.has_driver_work.store(false, std::memory_order_relaxed);
  const ob_status state = driver().stream_query(driver().self, stream.device, stream.handle);
  if (state != OB_OK) {
    stream.failures.has_driver_work.store(true, std::memory_order_relaxed);
    if (state == OB_DEVICE_LOST) {
      raise_status(state, "stream_query", stream.device);
    }
    return;
  }
  const ob_status status = driver().stream_synchronize(driver().self, stream.device, stream.handle);
  if (C10_LIKELY(status == OB_OK)) {
    return;
  }
  try {
    raise_status(status, "stream_synchronize", stream.device);
  } catch (...) {
    if (status == OB_DEVICE_LOST) {
      throw;
    }
    report_failure({&stream, 0}, std::current_exception());
  }
}

}  // namespace

void raise_failures(const StreamPosition& before, QueryDriver query) {
  if (query == QueryDriver::Yes) {
    keep_driver_failure(*before.stream);
    for (const Dependency& on : before.dependencies) {
      keep_driver_failure(*on.stream);
    }
  }
  if (C10_UNLIKELY(detail::has_records())) {  // before a caller can see the work as done
    detail::read_record(*before.stream);
    for (const Dependency& on : before.dependencies) {
      detail::read_record(*on.stream);
    }
  }
  note_done(before);
  if (C10_LIKELY(kept_count.load(std::memory_order_acquire) == 0)) {
    if (!before.dependencies.is_null()) {
      drop_dependencies(before);
    }
    return;
  }
  std::vector<Failure> dropped;
  std::exception_ptr error;
  {
    const Lock lock(failures_mutex);
    Dependency self = own(*before.stream, before.mark);
    error = take(self);
    before.stream->failures.last_raised.store(self.last_raised, std::memory_order_relaxed);
    error = error ? error : take_dependency_failure(before);
    if (error) {
      drop_unneeded(dropped);
    }
  }
  if (error) {
    raise_copy(error);
  }
}

void raise_device_failures(int device) {
  if (C10_UNLIKELY(detail::has_records())) {
    detail::read_records();
  }
  if (C10_LIKELY(kept_count.load(std::memory_order_acquire) == 0)) {
    return;
  }
  std::vector<Failure> dropped;
  std::exception_ptr error;
  {
    const Lock lock(failures_mutex);
    const StreamState* stream = nullptr;
    uint64_t number = 0;
    const auto find_first = [&](Dependency& on) {
      const Failure* failure = error ? nullptr : first_unraised(on);
      if (failure) {
        error = failure->error;
        stream = on.stream;
        number = failure->number;
      }
    };
    const auto take_it = [&](Dependency& on) {
      if (on.stream == stream) {
        const Failure* failure = first_unraised(on);
        if (failure && failure->number == number) {
          static_cast<void>(take(on));
        }
      }
    };
    visit_dependencies(device, find_first);
    if (error) {
      visit_dependencies(device, take_it);
      drop_unneeded(dropped);
    }
  }
  if (error) {
    raise_copy(error);
  }
}

void detail::note_done(const WorkPosition& position) noexcept {
  store_max(position.stream->failures.done, position.mark + 1);
}

void detail::begin_failure_watch() noexcept {
  failed_stream = nullptr;
}

bool detail::has_failed_here(const StreamState& stream) noexcept {
  return failed_stream == &stream;
}

}  // namespace outboard

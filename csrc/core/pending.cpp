// SPDX-License-Identifier: BSD-3-Clause
#include "core/pending.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "core/activity.h"
#include "core/blocking.h"
#include "core/device.h"
#include "core/failure.h"
#include "core/wait.h"

namespace outboard {

namespace {

// Bounds the memory of the list. A training step has some thousand launches.
constexpr size_t kMaxPendingEntries = 8192;
constexpr std::chrono::milliseconds kSignalCheckInterval{100};  // between checks for signals, in a wait for a program

}  // namespace

struct PendingList {
  struct Entry {
    std::unique_ptr<DriverCommand> work;
    std::shared_ptr<const Awaited> awaited;
    const char* name;
    WorkPosition position;  // in the stream's order, when it was added
  };

  std::mutex mutex;  // never held during a driver call, nor while Python's lock is waited for
  std::condition_variable submission_ended;
  std::deque<Entry> entries;
  bool is_submitting = false;  // a thread is passing an entry to the driver
};

namespace {

struct EndSignal {
  std::mutex mutex;
  std::condition_variable ended;
};

EndSignal& end_signal() {
  static auto* const instance = new EndSignal;  // threads may outlive static destruction
  return *instance;
}

// The stream whose list this thread is passing to the driver.
thread_local const Stream* submitting_stream = nullptr;

PendingList& list_of(Stream& stream) {
  PendingList* known = stream.pending.load(std::memory_order_acquire);
  if (known == nullptr) {
    auto list = std::make_unique<PendingList>();
    if (stream.pending.compare_exchange_strong(known, list.get(), std::memory_order_acq_rel)) {
      return *list.release();  // lives as long as the stream
    }
  }
  return *known;
}

// Pass an entry to the driver. The stream stores a failure, as for all queued work.
void submit(Stream& stream, PendingList::Entry entry) {
  const Stream* const before = std::exchange(submitting_stream, &stream);
  try {
    entry.work->queue(stream);
  } catch (...) {
    report_failure(entry.position, std::current_exception());
  }
  submitting_stream = before;
}

// Wait for another thread that is passing an entry to the driver.
void wait_for_submission(PendingList& list, const Stream& stream, Interruptible interruptible) {
  const TrackedWait waiting("kernel_launch", stream.device, &stream);
  std::unique_lock lock(list.mutex);
  const auto is_submitted = [&list] { return !list.is_submitting; };
  if (interruptible == Interruptible::Yes) {
    wait_for_thread(waiting, list.submission_ended, lock, is_submitted);
  } else {
    list.submission_ended.wait(lock, is_submitted);
  }
}

// A wait that the terminal shows. The line disappears even if a signal ends the wait.
class WaitDisplay {
 public:
  explicit WaitDisplay(const Awaited& awaited) : awaited_(awaited) {}
  ~WaitDisplay() { awaited_.show_wait(/*is_at_end=*/true); }
  WaitDisplay(const WaitDisplay&) = delete;
  WaitDisplay& operator=(const WaitDisplay&) = delete;

 private:
  const Awaited& awaited_;
};

enum class WaitMode : bool { Poll, Wait };

// Return false if work is left, which happens with WaitMode::Poll only.
bool submit_entries(Stream& stream, WaitMode wait_mode, Interruptible interruptible) {
  PendingList& list = list_of(stream);
  for (;;) {
    std::unique_lock lock(list.mutex);
    if (list.is_submitting) {
      lock.unlock();
      if (wait_mode == WaitMode::Poll) {
        return false;
      }
      wait_for_submission(list, stream, interruptible);
      continue;
    }
    if (list.entries.empty()) {
      stream.has_pending.store(false, std::memory_order_release);
      return true;
    }
    const std::shared_ptr<const Awaited> awaited = list.entries.front().awaited;
    if (awaited != nullptr && !awaited->is_ready()) {
      if (wait_mode == WaitMode::Poll) {
        return false;
      }
      const char* const name = list.entries.front().name;
      lock.unlock();
      wait_until_ready(*awaited, stream, name, interruptible);
      continue;
    }
    list.is_submitting = true;
    PendingList::Entry entry = std::move(list.entries.front());
    list.entries.pop_front();
    lock.unlock();
    submit(stream, std::move(entry));
    lock.lock();
    list.is_submitting = false;
    list.submission_ended.notify_all();
  }
}

template <typename Visit>
void for_each_with_pending(c10::DeviceIndex device, Visit visit) {
  detail::for_each_created_stream(
      device,
      [](Stream& stream, void* user) {
        if (has_pending(stream)) {
          (*static_cast<Visit*>(user))(stream);
        }
      },
      &visit);
}

}  // namespace

void notify_ready() {
  {
    const std::lock_guard lock(end_signal().mutex);
  }  // a waiter has read is_ready(), or will
  end_signal().ended.notify_all();
}

void wait_until_ready(const Awaited& awaited, const Stream& stream, const char* name, Interruptible interruptible) {
  if (awaited.is_ready()) {
    return;
  }
  const TrackedWait waiting("program_build", stream.device, &stream, name);
  std::unique_lock lock(end_signal().mutex);
  const bool may_interrupt = interruptible == Interruptible::Yes && detail::can_interrupt("");
  const auto is_ready = [&awaited] { return awaited.is_ready(); };
  const WaitDisplay display(awaited);
  while (!end_signal().ended.wait_for(lock, kSignalCheckInterval, is_ready)) {
    lock.unlock();
    awaited.show_wait(/*is_at_end=*/false);
    if (may_interrupt) {
      detail::handle_signals();
    }
    lock.lock();
  }
}

bool may_add_pending(const Stream& stream) noexcept {
  return capture_of(stream) == nullptr && !stream.is_external &&
         !stream.is_handle_exposed.load(std::memory_order_relaxed) && !waits_for_calls() && !is_recording_activities();
}

void add_pending(Stream& stream, std::unique_ptr<DriverCommand> work, std::shared_ptr<const Awaited> awaited,
                 const char* name) {
  if (C10_UNLIKELY(!stream.is_created.load(std::memory_order_acquire))) {
    static_cast<void>(make_stream(stream));  // so that waits and the device's list of streams include it
  }
  PendingList& list = list_of(stream);
  bool is_full = false;
  {
    const std::lock_guard lock(list.mutex);
    list.entries.push_back({std::move(work), std::move(awaited), name, next_position(stream)});
    stream.has_pending.store(true, std::memory_order_release);
    is_full = list.entries.size() > kMaxPendingEntries;
  }
  if (C10_UNLIKELY(is_full)) {
    flush_pending(stream);
  } else {
    static_cast<void>(submit_ready(stream));
  }
}

bool submit_ready(Stream& stream) {
  return submitting_stream == &stream || submit_entries(stream, WaitMode::Poll, Interruptible::No);
}

void flush_pending(Stream& stream, Interruptible interruptible) {
  if (has_pending(stream) && submitting_stream != &stream) {
    static_cast<void>(submit_entries(stream, WaitMode::Wait, interruptible));
  }
}

void flush_pending(c10::DeviceIndex device, Interruptible interruptible) {
  for_each_with_pending(device, [interruptible](Stream& stream) { flush_pending(stream, interruptible); });
}

void flush_all_pending(Interruptible interruptible) {
  if (!is_attached() || !any_device_opened()) {
    return;
  }
  for (int device = 0; device < device_count(); ++device) {
    flush_pending(static_cast<c10::DeviceIndex>(device), interruptible);
  }
}

void drop_pending() noexcept {
  for (int device = 0; device < kMaxDevices; ++device) {
    for_each_with_pending(static_cast<c10::DeviceIndex>(device), [](Stream& stream) {
      PendingList& list = list_of(stream);
      std::deque<PendingList::Entry> dropped;
      const std::lock_guard lock(list.mutex);
      std::swap(dropped, list.entries);
      stream.has_pending.store(false, std::memory_order_release);
    });
  }
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// The watcher of a group's native calls: a thread that polls them.
#include <c10/util/Exception.h>

#include <algorithm>

#include "core/blocking.h"
#include "core/collectives.h"
#include "core/error.h"
#include "core/observer.h"
#include "distributed/native.h"
#include "distributed/waiters.h"

namespace outboard {

namespace {
constexpr std::chrono::milliseconds kPollInterval{5};  // between two polls of the calls under way
}  // namespace

std::string describe_entry(const char* entry, ob_status status) {
  const std::string reason = last_collectives_error();
  return std::string(entry) + " failed with " + status_name(status) + (reason.empty() ? "" : ": " + reason);
}

void raise_entry(const char* entry, ob_status status) {
  C10_THROW_ERROR(DistBackendError, describe_entry(entry, status));
}

void NativeGroup::watch(c10::intrusive_ptr<DistributedWork> work, std::shared_ptr<Staging> staging,
                        std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  pending_.push_back({std::move(work), std::move(staging), timeout, Clock::now() + timeout});
  wake_watcher();
}

// Wake the watcher. mutex_ is held.
void NativeGroup::wake_watcher() {
  if (!watcher_.joinable()) {
    watcher_ = start_group_thread("outboard-watch", [this] { loop(); });
  } else if (is_asleep_) {  // to wake it for every call would cost more than a short call
    changed_.notify_all();
  }
}

void NativeGroup::loop() {
  const DisableObserver unobserved;
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    if (pending_.empty() && queueing_.empty()) {
      is_asleep_ = true;
      changed_.wait(lock, [&] { return !pending_.empty() || !queueing_.empty() || is_stopping_; });
      is_asleep_ = false;
    } else {
      changed_.wait_for(lock, kPollInterval, [&] { return is_stopping_; });
      poll_pending(lock);
    }
  }
}

// Return a communicator's error; "" if it has none.
std::string NativeGroup::find_error() {
  const ob_collectives& table = *collectives();
  std::vector<uint64_t> handles;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, communicator] : communicators_) {
      handles.push_back(communicator->handle);
    }
  }
  for (const uint64_t handle : handles) {
    const ob_status status = table.comm_status(table.self, handle);
    if (status != OB_OK && status != OB_NOT_READY) {
      return describe_entry("comm_status", status);
    }
  }
  return "";
}

// Fail the calls that wait in the driver beyond their timeout, and return why; "" if none does. An
// abort makes the driver return. mutex_ is held.
std::string NativeGroup::end_overdue_queueing() {
  const Clock::time_point now = Clock::now();
  std::string first;
  for (Queueing& entry : queueing_) {
    if (now > entry.deadline && !entry.error) {
      const std::string why = c10::str("it was not queued within ", entry.timeout.count(), " ms");
      entry.error = failure_.fail(entry.kind->name, entry.sequence, make_group_error(why));
      first = first.empty() ? why : first;
    }
  }
  return first;
}

void NativeGroup::poll_pending(std::unique_lock<std::mutex>& lock) {
  std::vector<Pending> all(pending_.begin(), pending_.end());
  std::string why = end_overdue_queueing();
  const bool is_overdue = !why.empty();
  lock.unlock();
  std::vector<Pending> over, under_way;
  try {
    for (const Pending& pending : all) {
      (pending.staging->is_done() ? over : under_way).push_back(pending);
    }
    if (!is_overdue && !under_way.empty()) {  // a peer may leave after its last call
      why = find_error();
    }
  } catch (const std::exception& error) {  // a lost device
    why = error.what();
    over.clear();
    under_way = all;
  }
  for (const Pending& pending : under_way) {
    if (why.empty() && Clock::now() > pending.deadline) {
      why = c10::str("it did not complete within ", pending.timeout.count(), " ms");
    }
  }
  for (const Pending& pending : over) {
    pending.work->complete(nullptr);
  }
  if (!why.empty()) {
    for (const Pending& pending : under_way) {
      fail(pending, why);
      over.push_back(pending);
    }
    abort();
  }
  lock.lock();
  std::erase_if(pending_, [&](const Pending& pending) {
    return std::any_of(over.begin(), over.end(), [&](const Pending& other) { return other.work == pending.work; });
  });
  changed_.notify_all();
  lock.unlock();
  for (std::vector<Pending>* list : {&all, &over, &under_way}) {
    list->clear();  // tensors' last references
  }
  lock.lock();
}

// The first failure causes the others.
void NativeGroup::fail(const Pending& pending, const std::string& why) {
  const char* const name = pending.work->kind().name;
  pending.work->complete(failure_.fail(name, pending.work->getSequencenumber(), make_group_error(why)));
}

}  // namespace outboard

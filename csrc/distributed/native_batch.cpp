// SPDX-License-Identifier: BSD-3-Clause
// Native calls that are queued as one.
#include <set>

#include "core/blocking.h"
#include "core/collectives.h"
#include "distributed/native.h"

namespace outboard {

namespace {

// The scopes of several streams, within one another.
class ActivityScopes {
 public:
  ActivityScopes() = default;
  ActivityScopes(const ActivityScopes&) = delete;
  ActivityScopes& operator=(const ActivityScopes&) = delete;
  ~ActivityScopes() {
    while (!scopes_.empty()) {
      scopes_.pop_back();
    }
  }
  void add(const NativeDeferred& deferred) {
    Stream* const stream = deferred.staging->out_stream();
    if (is_recording_activities() && streams_.insert(stream).second) {
      scopes_.push_back(std::make_unique<ActivityScope>(
          *stream,
          ActivityInfo{ActivityKind::Kernel, "group_end", deferred.work->kind().title, deferred.staging->bytes()}));
    }
  }
  void finish() {
    for (; !scopes_.empty(); scopes_.pop_back()) {
      scopes_.back()->finish();
    }
  }

 private:
  std::set<Stream*> streams_;
  std::vector<std::unique_ptr<ActivityScope>> scopes_;
};

}  // namespace

ob_status end_native_group() {
  const ob_collectives& table = *collectives();
  const BlockingRegion without_interpreter;
  return table.group_end(table.self);
}

void NativeGroup::post_together(const std::vector<NativeDeferred>& all, std::chrono::milliseconds timeout) {
  const ob_collectives& table = *collectives();
  const Kind& kind = all.front().work->kind();
  std::set<Communicator*> communicators;  // in one order, which is every thread's
  for (const NativeDeferred& deferred : all) {
    communicators.insert(deferred.communicator);
  }
  std::vector<std::unique_lock<std::mutex>> queueing;
  for (Communicator* const communicator : communicators) {
    queueing.emplace_back(communicator->mutex);
  }
  guarded(kind, all.front().work->getSequencenumber(), timeout, [&] {
    if (const ob_status status = table.group_begin(table.self); status != OB_OK) {
      raise_entry("group_begin", status);
    }
    const auto check_timeout = make_timeout_check(kind, timeout);
    std::exception_ptr error;
    ActivityScopes activities;
    for (const NativeDeferred& deferred : all) {
      activities.add(deferred);
    }
    const auto info_of = [&](const NativeDeferred& deferred) {
      return NativeCallInfo{deferred.work->kind(), deferred.work->getSequencenumber(), timeout,
                            deferred.staging->bytes()};
    };
    for (const NativeDeferred& deferred : all) {
      try {
        NativeCall call(*deferred.communicator, *deferred.staging->out_stream(), info_of(deferred), check_timeout,
                        /*is_grouped=*/true);
        static_cast<void>(deferred.post(call, deferred.staging->in(), deferred.staging->out()));
      } catch (...) {
        error = error ? error : std::current_exception();
      }
    }
    ob_status status = end_native_group();
    if (error) {
      std::rethrow_exception(error);
    }
    for (const NativeDeferred& deferred : all) {
      NativeCall(*deferred.communicator, *deferred.staging->out_stream(), info_of(deferred), check_timeout)
          .wait_until_ready(status, "group_end");
      status = status == OB_OK ? OB_OK : OB_NOT_READY;  // the next one is asked for
    }
    activities.finish();
    for (const NativeDeferred& deferred : all) {
      deferred.staging->queue_results(deferred.work->kind().title);
    }
  });
  for (const NativeDeferred& deferred : all) {
    watch(deferred.work, deferred.staging, timeout);
  }
}

}  // namespace outboard

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
  void add(const NativeDeferred& one) {
    Stream* const stream = one.staging->out_stream();
    if (is_recording_activities() && streams_.insert(stream).second) {
      scopes_.push_back(std::make_unique<ActivityScope>(
          *stream, ActivityInfo{ActivityKind::Kernel, "group_end", one.work->kind().title, one.staging->bytes()}));
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
  for (const NativeDeferred& one : all) {
    communicators.insert(one.communicator);
  }
  std::vector<std::unique_lock<std::mutex>> queueing;
  for (Communicator* const communicator : communicators) {
    queueing.emplace_back(communicator->mutex);
  }
  guarded(kind, all.front().work->getSequencenumber(), timeout, [&] {
    if (const ob_status status = table.group_begin(table.self); status != OB_OK) {
      raise_entry("group_begin", status);
    }
    const auto check_patience = patience(kind, timeout);
    std::exception_ptr error;
    ActivityScopes activities;
    for (const NativeDeferred& one : all) {
      activities.add(one);
    }
    const auto info_of = [&](const NativeDeferred& one) {
      return NativeCallInfo{one.work->kind(), one.work->getSequencenumber(), timeout, one.staging->bytes()};
    };
    for (const NativeDeferred& one : all) {
      try {
        NativeCall call(*one.communicator, *one.staging->out_stream(), info_of(one), check_patience,
                        /*is_grouped=*/true);
        static_cast<void>(one.post(call, one.staging->in(), one.staging->out()));
      } catch (...) {
        error = error ? error : std::current_exception();
      }
    }
    ob_status status = end_native_group();
    if (error) {
      std::rethrow_exception(error);
    }
    for (const NativeDeferred& one : all) {
      NativeCall(*one.communicator, *one.staging->out_stream(), info_of(one), check_patience)
          .settle(status, "group_end");
      status = status == OB_OK ? OB_OK : OB_NOT_READY;  // the next one is asked for
    }
    activities.finish();
    for (const NativeDeferred& one : all) {
      one.staging->queue_results(one.work->kind().title);
    }
  });
  for (const NativeDeferred& one : all) {
    watch(one.work, one.staging, timeout);
  }
}

}  // namespace outboard

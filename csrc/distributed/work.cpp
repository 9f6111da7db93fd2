// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/work.h"

#include <c10/core/StreamGuard.h>

#include <system_error>
#include <utility>

#include "core/capture.h"
#include "core/error.h"
#include "core/wait.h"

namespace outboard {

DistributedWork::DistributedWork(int rank, const Kind& kind, uint64_t sequence, std::shared_ptr<Staging> staging,
                                 Tensors results, std::shared_ptr<Waiters> waiters)
    : Work(rank, kind.type, kind.title),
      kind_(kind),
      sequence_(sequence),
      staging_(std::move(staging)),
      results_(std::move(results)),
      waiters_(std::move(waiters)) {
  // An exchange of device tensors has its own place in a profile: the stream's lane.
  if (staging_->transport() != Transport::Cpu) {
    end_recording();
  }
}

// The last reference may be dropped by the group's thread. Torch's counts order it after the
// other threads' uses, but ThreadSanitizer does not see them.
DistributedWork::~DistributedWork() {
  const std::lock_guard lock(mutex_);
}

// End the operator that the base class has begun in a profile. Ending it after the profile has
// ended would write to freed memory.
void DistributedWork::end_recording() {
  std::function<void()> end;
  {
    const std::lock_guard lock(mutex_);
    end = std::exchange(recordFunctionEndCallback_, nullptr);
  }
  if (end) {
    end();
  }
}

bool DistributedWork::isCompleted() {
  {
    const std::lock_guard lock(mutex_);
    if (exception_ || (!completed_ && !staging_->is_streamed())) {
      return completed_;
    }
  }
  staging_->observe_wait();
  return staging_->is_done();
}

bool DistributedWork::wait(std::chrono::milliseconds timeout) {
  if (staging_->is_captured() && timeout != kNoTimeout) {
    refuse_in_capture(*staging_->out_stream(), "wait() with a timeout");
  }
  std::exception_ptr error;
  if (staging_->is_streamed() && !staging_->blocks_caller() && timeout == kNoTimeout) {
    const std::lock_guard lock(mutex_);
    error = exception_;
  } else {
    const TrackedWait waiting(kind_.title, OB_HOST, nullptr, "the other ranks of the group");
    std::unique_lock lock(mutex_);
    const auto is_over = [this] { return completed_; };
    if (timeout == kNoTimeout) {
      wait_for_thread(waiting, cv_, lock, is_over);
    } else if (!cv_.wait_for(lock, timeout, is_over)) {
      C10_THROW_ERROR(DistBackendError,
                      c10::str(kind_.name, ", sequence number ", sequence_, ", did not complete within ",
                               timeout.count(), " ms, the timeout of this wait(). The collective is still running."));
    }
    error = exception_;
  }
  if (error) {
    if (staging_->is_streamed()) {
      staging_->raise_failure();  // a wait for the stream does not raise this failure again
    }
    raise_copy(error);
  }
  staging_->observe_wait();
  synchronize();
  return true;
}

void DistributedWork::synchronize() {
  {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(completed_ || staging_->is_streamed(), kind_.name,
                ".synchronize() was called before the work completed: call wait()");
    if (exception_) {
      return;
    }
  }
  staging_->join();
}

int DistributedWork::sourceRank() const {
  TORCH_CHECK(kind_.type == c10d::OpType::RECVANYSOURCE, "only a recv from any rank has a sourceRank(), not ",
              kind_.name);
  // A wait() for a stream does not block, and the sender is known once its message has come.
  std::exception_ptr error;
  {
    const TrackedWait waiting(kind_.title, OB_HOST, nullptr, "the other ranks of the group");
    std::unique_lock lock(mutex_);
    auto& changed = const_cast<std::condition_variable&>(cv_);
    wait_for_thread(waiting, changed, lock, [this] { return completed_; });
    error = exception_;
  }
  if (error) {
    raise_copy(error);
  }
  return source_.load();
}

c10::intrusive_ptr<c10::ivalue::Future> DistributedWork::getFuture() {
  std::unique_lock lock(mutex_);
  if (!future_) {
    std::vector<c10::Device> devices;
    if (!results_.empty() && !results_[0].is_cpu()) {
      devices.push_back(results_[0].device());
    }
    future_ =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), std::move(devices));
    if (completed_ || staging_->is_streamed()) {
      const std::exception_ptr error = exception_;
      const auto future = future_;
      lock.unlock();
      complete_future(*future, error);
      lock.lock();  // after which the destructor may run, on any thread
    }
  }
  return future_;
}

void DistributedWork::complete_future(c10::ivalue::Future& future, const std::exception_ptr& error) const {
  if (error) {
    future.setError(error);
  } else if (Stream* const stream = staging_->out_stream(); stream != nullptr && !results_.empty()) {
    const c10::StreamGuard guard(to_c10(*stream));  // the future's events are recorded on it
    future.markCompleted(c10::IValue(results_));
  } else {
    future.markCompleted(c10::IValue(results_));
  }
}

void DistributedWork::complete(std::exception_ptr error) {
  if (is_ending_.exchange(true)) {
    return;
  }
  end_recording();  // before a waiting caller, who may end the profile, continues
  if (staging_->is_streamed()) {
    // A caller that has seen the failure in the stream finds it here too.
    const std::lock_guard lock(mutex_);
    exception_ = error;
  }
  try {
    staging_->release(error);
  } catch (...) {
    error = error ? error : std::current_exception();
  }
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    completed_ = true;
    exception_ = error;
    if (!staging_->is_streamed()) {
      future = future_;
    }
  }
  cv_.notify_all();
  if (future) {
    // Callbacks may start collectives and wait for them, so they never run on
    // a thread that collectives need.
    auto self = c10::intrusive_ptr<DistributedWork>::unsafe_reclaim_from_nonowning(this);
    try {
      waiters_->run([self, future, error] { self->complete_future(*future, error); });
    } catch (const std::system_error&) {  // no thread can be started
      complete_future(*future, error);
    }
  }
}

}  // namespace outboard

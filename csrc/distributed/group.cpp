// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/group.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/graph_task.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "core/blocking.h"
#include "core/observer.h"
#include "distributed/api.h"

namespace outboard {

namespace {
constexpr std::chrono::seconds kExitTimeout{2};
}  // namespace

// ---- RequestThread ----

void RequestThread::push(std::shared_ptr<Request> request) {
  const std::lock_guard lock(state_->mutex);
  state_->requests.push_back(std::move(request));
  if (!thread_.joinable()) {
    thread_ = start_group_thread(name_, [state = state_] { loop(*state); });
  }
  state_->changed.notify_one();
}

void RequestThread::loop(State& state) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const DisableObserver unobserved;
  std::unique_lock lock(state.mutex);
  for (;;) {
    state.changed.wait(lock, [&] { return !state.requests.empty() || state.is_ending; });
    if (state.requests.empty()) {
      return;
    }
    std::shared_ptr<Request> request = std::move(state.requests.front());
    state.requests.pop_front();
    state.is_busy = true;
    lock.unlock();
    state.run(*request);
    lock.lock();
    state.is_busy = false;
    state.changed.notify_all();
    if (state.keeps_requests) {
      static_cast<void>(new std::shared_ptr<Request>(std::move(request)));
      continue;
    }
    lock.unlock();
    request = nullptr;  // it may hold a tensor's last reference
    lock.lock();
  }
}

void RequestThread::end(EndMode ending) {
  const BlockingRegion without_interpreter;  // the thread may need it to finish
  std::thread thread;
  bool is_busy = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->is_ending = true;
    state_->keeps_requests = ending == EndMode::DetachAtExit;
    state_->changed.notify_all();
    thread = std::move(thread_);
    if (ending == EndMode::DetachAtExit) {
      // An exchange whose peers have joined ends soon. A thread that is left behind would end with
      // the interpreter, in the middle of a destructor.
      state_->changed.wait_for(lock, kExitTimeout, [&] { return !state_->is_busy; });
    }
    is_busy = state_->is_busy;
  }
  if (!thread.joinable()) {
    return;
  }
  if (thread.get_id() == std::this_thread::get_id() || (is_busy && ending != EndMode::Wait)) {
    thread.detach();
  } else {
    thread.join();
  }
}

void RequestThread::release_after_fork() noexcept {
  if (thread_.joinable()) {
    thread_.detach();
  }
}

// ---- Group ----

namespace {

// The groups of the process, for the end of the process.
struct Groups {
  std::mutex mutex;
  std::vector<std::weak_ptr<Group>> list;
  size_t count = 0;
  std::atomic<std::thread::id> maker{};  // of the first
};
Groups& groups() {
  static auto* const all = new Groups;
  return *all;
}

}  // namespace

Group::Group(c10::intrusive_ptr<c10d::Backend> gloo, std::string name, int rank)
    : gloo_(std::move(gloo)), failure_(std::move(name), rank), process_(getpid()) {
  const std::lock_guard lock(groups().mutex);
  if (groups().count++ == 0) {
    groups().maker.store(std::this_thread::get_id());
  }
}

Group::~Group() {
  if (!is_forked()) {  // there the lock may be held by a thread that does not exist
    const std::lock_guard lock(groups().mutex);
    --groups().count;
  }
}

bool may_wait_in_streams() noexcept {
  return groups().maker.load() == std::this_thread::get_id() || torch::autograd::get_current_graph_task_id() != -1;
}

bool Group::is_forked() const noexcept {
  return getpid() != process_;
}

// The threads hold the group, so it outlives an exchange that an abort leaves behind.
void Group::start_threads() {
  auto self = shared_from_this();
  collectives_ =
      std::make_unique<RequestThread>("outboard-group", [self](Request& request) { self->run_collective(request); });
  point_to_point_ = std::make_unique<RequestThread>("outboard-p2p", [self](Request& request) {
    self->run_point_to_point(std::make_shared<Request>(std::move(request)));
  });
  register_group();
}

void Group::register_group() {
  const std::lock_guard lock(groups().mutex);
  std::erase_if(groups().list, [](const std::weak_ptr<Group>& group) { return group.expired(); });
  groups().list.push_back(weak_from_this());
}

void Group::set_native(std::unique_ptr<NativeGroup> native) {
  native_ = std::move(native);
  register_group();
}

void Group::submit(std::shared_ptr<Request> request, bool is_point_to_point) {
  const std::lock_guard lock(mutex_);
  failure_.check(request->work->kind().name);
  if (is_closed_) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str(request->work->kind().name, " was called on a group that is being destroyed"));
  }
  if (!collectives_) {
    start_threads();
  }
  pending_[request->work.get()] = request->work;
  (is_point_to_point ? point_to_point_ : collectives_)->push(std::move(request));
}

void Group::complete(Request& request, const std::exception_ptr& error) {
  {
    const std::lock_guard lock(mutex_);
    pending_.erase(request.work.get());
    exchanges_.erase(request.work.get());
  }
  request.timer.finish();  // a profile may end once the work is complete
  request.work->complete(error);
}

// Return false if the request has failed.
bool Group::make_ready(Request& request) {
  const char* const name = request.work->kind().name;
  const uint64_t sequence = request.work->getSequencenumber();
  if (failure_.has_failed()) {
    complete(request, failure_.ended(name, sequence));
    return false;
  }
  try {
    request.staging->wait_until_ready();
  } catch (...) {
    // Earlier work of the device has failed. The caller gets that error, whatever its type. The
    // peers wait for a rank that never comes, so the group ends.
    const std::exception_ptr error = std::current_exception();
    static_cast<void>(failure_.fail(name, sequence, error));
    complete(request, error);
    return false;
  }
  request.timer.begin();
  return true;
}

Works Group::post(Request& request) {
  const std::lock_guard lock(gloo_mutex_);
  return request.post(*gloo_, request.staging->in(), request.staging->out());
}

void Group::finish(Request& request, const Works& works, bool is_point_to_point) {
  for (const WorkPtr& work : works) {
    if (is_point_to_point) {
      TORCH_CHECK(work->wait(request.timeout), "the exchange was aborted");
    } else {
      work->wait();
    }
  }
  if (request.work->kind().type == c10d::OpType::RECVANYSOURCE) {
    request.work->set_source(works.front()->sourceRank());
  }
  if (request.adjust) {
    request.adjust(request.staging->out());
  }
  request.staging->finish();
}

void Group::run_collective(Request& request) {
  if (!make_ready(request)) {
    return;
  }
  std::exception_ptr error;
  try {
    if (request.fingerprint) {
      check_agreement(*gloo_, gloo_mutex_, *request.fingerprint, request.timeout);
    }
    finish(request, post(request), false);
  } catch (...) {
    error = failure_.fail(request.work->kind().name, request.work->getSequencenumber(), std::current_exception());
  }
  complete(request, error);
}

void Group::run_point_to_point(const std::shared_ptr<Request>& request) {
  const auto begin = std::chrono::steady_clock::now();
  const auto fail = [this, request, begin] {
    std::exception_ptr cause = std::current_exception();
    if (std::chrono::steady_clock::now() - begin >= request->timeout) {
      cause = make_group_error(
          c10::str(text_of(cause), ". The peer did not make the matching call, or its tensor's size differs from the ",
                   request->staging->bytes(), " bytes of this rank. A send and its recv must have equal sizes."));
    }
    complete(*request, failure_.fail(request->work->kind().name, request->work->getSequencenumber(), cause));
  };
  if (!make_ready(*request)) {
    return;
  }
  try {
    const Works works = post(*request);
    {
      const std::lock_guard lock(mutex_);
      exchanges_[request->work.get()] = works.front();
    }
    if (failure_.has_failed()) {
      works.front()->abort();  // the group was aborted meanwhile
    }
    waiters_->run([self = shared_from_this(), request, works, fail] {
      const DisableObserver unobserved;
      try {
        self->finish(*request, works, true);
      } catch (...) {
        fail();
        return;
      }
      self->complete(*request, nullptr);
    });
  } catch (...) {
    fail();
  }
}

void Group::abort_receives() {
  std::vector<WorkPtr> exchanges;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [work, exchange] : exchanges_) {
      if (work->kind().type != c10d::OpType::SEND) {
        exchanges.push_back(exchange);
      }
    }
  }
  for (const WorkPtr& exchange : exchanges) {
    exchange->abort();
  }
}

void Group::shut_down() {
  std::unique_ptr<RequestThread> collectives, point_to_point;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_closed_, true)) {
      return;
    }
    collectives = std::move(collectives_);
    point_to_point = std::move(point_to_point_);
  }
  for (const auto& thread : {point_to_point.get(), collectives.get()}) {
    if (thread) {
      thread->end(EndMode::Wait);
    }
  }
  if (native_) {
    native_->shut_down();
  }
  failure_.end("it was destroyed (destroy_process_group).");
  abort_receives();
  const BlockingRegion without_interpreter;
  waiters_->stop();
}

void Group::abort(const std::string& reason, EndMode ending) {
  failure_.end(reason);
  std::unique_ptr<RequestThread> collectives, point_to_point;
  std::vector<c10::intrusive_ptr<DistributedWork>> pending;
  std::vector<WorkPtr> exchanges;
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    collectives = std::move(collectives_);
    point_to_point = std::move(point_to_point_);
    for (const auto& [key, work] : pending_) {
      pending.push_back(work);
    }
    for (const auto& [key, exchange] : exchanges_) {
      exchanges.push_back(exchange);
    }
  }
  if (native_) {
    native_->abort();
  }
  for (const auto& work : pending) {
    work->complete(failure_.ended(work->kind().name, work->getSequencenumber()));
  }
  for (const WorkPtr& exchange : exchanges) {
    exchange->abort();
  }
  for (const auto& thread : {collectives.get(), point_to_point.get()}) {
    if (thread) {
      thread->end(ending);
    }
  }
  if (native_) {
    native_->stop();
  }
  const BlockingRegion without_interpreter;
  waiters_->stop();
}

void Group::release_after_fork() noexcept {
  for (const auto& thread : {collectives_.get(), point_to_point_.get()}) {
    if (thread) {
      thread->release_after_fork();
    }
  }
  waiters_->release_after_fork();
  if (native_) {
    native_->release_after_fork();
  }
}

void abort_all_groups() noexcept {
  std::vector<std::shared_ptr<Group>> live;
  {
    const std::lock_guard lock(groups().mutex);
    for (const auto& group : groups().list) {
      if (auto locked = group.lock(); locked && !locked->is_forked()) {
        live.push_back(std::move(locked));
      }
    }
  }
  for (const auto& group : live) {
    try {
      group->abort("the process is about to end.", EndMode::DetachAtExit);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "torch_outboard: a process group could not be shut down: %s\n", error.what());
    }
  }
}

}  // namespace outboard

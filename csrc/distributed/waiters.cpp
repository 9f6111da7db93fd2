// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/waiters.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <pthread.h>

#include "core/wait.h"

namespace outboard {

std::thread start_group_thread(const char* name, std::function<void()> body) {
  std::thread thread = detail::new_thread(std::move(body));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

Waiters::~Waiters() {
  stop();
}

void Waiters::run(std::function<void()> task) {
  const std::lock_guard lock(state_->mutex);
  state_->tasks.push_back(std::move(task));
  if (state_->tasks.size() > state_->idle || state_->is_stopping) {
    threads_.push_back(start_group_thread("outboard-waiter", [state = state_] { loop(*state); }));
  } else {
    state_->changed.notify_one();
  }
}

void Waiters::loop(State& state) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::unique_lock lock(state.mutex);
  for (;;) {
    ++state.idle;
    state.changed.wait(lock, [&] { return !state.tasks.empty() || state.is_stopping; });
    --state.idle;
    if (state.tasks.empty()) {
      return;
    }
    std::function<void()> task = std::move(state.tasks.front());
    state.tasks.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // it may hold a tensor's last reference
    lock.lock();
  }
}

void Waiters::stop() {
  std::unique_lock lock(state_->mutex);
  state_->is_stopping = true;
  state_->changed.notify_all();
  while (!threads_.empty()) {
    std::thread thread = std::move(threads_.back());
    threads_.pop_back();
    lock.unlock();
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
    lock.lock();
  }
}

void Waiters::release_after_fork() noexcept {
  for (std::thread& thread : threads_) {
    thread.detach();
  }
  threads_.clear();
}

}  // namespace outboard

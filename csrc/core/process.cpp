// SPDX-License-Identifier: BSD-3-Clause
#include "core/process.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "core/device.h"
#include "core/stream.h"
#include "core/touched.h"

namespace outboard {

namespace {

std::atomic<bool> is_forked{false};
std::atomic<bool> is_exiting{false};
std::atomic<bool> runtime_opened{false};
std::mutex forbidden_mutex;  // held for a copy, never during a call
std::string forbidden;

// The child has one thread, and locks may be held by threads that it lacks.
// Everything else that it reads is atomic.
void before_fork() {
  detail::lock_devices();
  forbidden_mutex.lock();
}

void after_fork_in_parent() {
  forbidden_mutex.unlock();
  detail::unlock_devices();
}

void after_fork_in_child() {
  const bool is_opening = detail::any_device_opening();  // by a thread that the child lacks
  after_fork_in_parent();
  if (!any_device_opened() && !runtime_opened.load() && !is_opening) {
    return;
  }
  is_forked.store(true);
  for (auto& state : detail::device_state) {
    state.store(DeviceState::Forked);
  }
  for (int device = 0; device < kMaxDevices; ++device) {
    detail::forget_streams(static_cast<c10::DeviceIndex>(device));
  }
}

}  // namespace

void forbid_opening(std::string reason) {
  std::lock_guard lock(forbidden_mutex);
  forbidden = std::move(reason);
}

std::string opening_refusal() {
  std::lock_guard lock(forbidden_mutex);
  return forbidden;
}

bool in_bad_fork() noexcept {
  return is_forked.load(std::memory_order_acquire);
}

bool driver_is_gone() noexcept {
  return is_exiting.load(std::memory_order_acquire) || in_bad_fork();
}

bool has_runtime_opened() noexcept {
  return runtime_opened.load();
}

void install_fork_handler() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); });
}

namespace detail {
void begin_exit() noexcept {
  is_exiting.store(true);
}
void mark_runtime_opened() noexcept {
  runtime_opened.store(true);
}
}  // namespace detail

}  // namespace outboard

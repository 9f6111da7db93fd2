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
std::atomic<bool> probe_opened{false};
std::mutex forbidden_mutex;  // held for a copy, never while anything is called
std::string forbidden;

// Only atomics here: the child has one thread, and locks may be held by threads that it lacks.
void after_fork_in_child() {
  if (!any_device_opened() && !probe_opened.load()) {
    return;
  }
  is_forked.store(true);
  for (auto& state : detail::device_state) {
    state.store(DeviceState::Forked);
  }
  detail::forget_streams();
}

}  // namespace

void forbid_opening(std::string reason) {
  std::lock_guard lock(forbidden_mutex);
  forbidden = std::move(reason);
}

std::string opening_forbidden() {
  std::lock_guard lock(forbidden_mutex);
  return forbidden;
}

bool in_bad_fork() noexcept {
  return is_forked.load(std::memory_order_acquire);
}

bool driver_is_gone() noexcept {
  return is_exiting.load(std::memory_order_acquire) || in_bad_fork();
}

bool probe_has_opened() noexcept {
  return probe_opened.load();
}

void install_fork_handler() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, after_fork_in_child); });
}

namespace detail {
void begin_exit() noexcept {
  is_exiting.store(true);
}
void mark_probe_opened() noexcept {
  probe_opened.store(true);
}
}  // namespace detail

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "core/blocking.h"

#include <atomic>

namespace outboard {

namespace {
std::atomic<void* (*)()> enter_hook{nullptr};
std::atomic<void (*)(void*)> leave_hook{nullptr};
}  // namespace

namespace detail {
std::atomic<bool> waits_for_calls_{false};
}

void set_waits_for_calls(bool waits) noexcept {
  detail::waits_for_calls_.store(waits);
}

void set_blocking_hooks(BlockingHooks hooks) {
  leave_hook.store(hooks.leave);
  enter_hook.store(hooks.enter);
}

BlockingRegion::BlockingRegion() : state_(nullptr) {
  if (auto enter = enter_hook.load(std::memory_order_acquire)) {
    state_ = enter();
  }
}

BlockingRegion::~BlockingRegion() {
  if (state_) {
    leave_hook.load(std::memory_order_acquire)(state_);
  }
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "core/observer.h"

namespace outboard {

namespace {
thread_local bool is_untraced = false;
}  // namespace

namespace detail {

std::atomic<Observer*> active_observer{nullptr};

bool is_unobserved_thread() noexcept {
  return is_untraced;
}

}  // namespace detail

DisableObserver::DisableObserver() noexcept : was_disabled_(is_untraced) {
  is_untraced = true;
}

DisableObserver::~DisableObserver() {
  is_untraced = was_disabled_;
}

}  // namespace outboard

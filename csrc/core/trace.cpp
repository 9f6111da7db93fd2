// SPDX-License-Identifier: BSD-3-Clause
#include "core/trace.h"

namespace outboard {

namespace {
thread_local bool is_untraced = false;
}  // namespace

namespace detail {

std::atomic<Trace*> active_trace{nullptr};

bool is_untraced_thread() noexcept {
  return is_untraced;
}

}  // namespace detail

Untraced::Untraced() noexcept : was_untraced_(is_untraced) {
  is_untraced = true;
}

Untraced::~Untraced() {
  is_untraced = was_untraced_;
}

}  // namespace outboard

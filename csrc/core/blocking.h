// SPDX-License-Identifier: BSD-3-Clause
// Long waits go through a BlockingRegion. The bindings install the function that releases Python's
// interpreter lock. No other code below the bindings uses the lock.
#pragma once

#include <atomic>

#include "core/export.h"

namespace outboard {

struct BlockingHooks {
  void* (*enter)();          // null if there is nothing to restore
  void (*leave)(void* state);
};
OUTBOARD_API void set_blocking_hooks(BlockingHooks hooks);

// Make every call that queues work wait for it (OUTBOARD_BLOCKING=1). The call
// itself then raises the failure.
OUTBOARD_API void set_waits_for_calls(bool waits) noexcept;
namespace detail {
OUTBOARD_API extern std::atomic<bool> waits_for_calls_;
}
inline bool waits_for_calls() noexcept {
  return detail::waits_for_calls_.load(std::memory_order_relaxed);
}

class OUTBOARD_API BlockingRegion {
 public:
  BlockingRegion();
  ~BlockingRegion();
  BlockingRegion(const BlockingRegion&) = delete;
  BlockingRegion& operator=(const BlockingRegion&) = delete;

 private:
  void* state_;
};

}  // namespace outboard

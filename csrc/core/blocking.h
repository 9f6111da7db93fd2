// SPDX-License-Identifier: BSD-3-Clause
// Long waits go through a BlockingRegion, for which the bindings install the release of Python's interpreter lock;
// nothing else below the bindings knows that there is one.
#pragma once

#include "core/export.h"

namespace outboard {

struct BlockingHooks {
  void* (*enter)();          // null when there is nothing to give back
  void (*leave)(void* state);
};
OUTBOARD_API void set_blocking_hooks(BlockingHooks hooks);

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

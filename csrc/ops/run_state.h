// SPDX-License-Identifier: BSD-3-Clause
// The thread state in which a CPU kernel runs for the device: below autograd, with no modes, and with the caller's
// thread count and floating-point mode, which are per thread.
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace outboard {

inline c10::impl::LocalDispatchKeySet below_autograd_keys() {
  static const c10::impl::LocalDispatchKeySet keys = [] {
    c10::impl::PODLocalDispatchKeySet pod{};
    pod.set_included(c10::DispatchKeySet(c10::DispatchKey::BackendSelect));
    pod.set_excluded(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
                     c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                                          c10::DispatchKey::PythonDispatcher, c10::DispatchKey::Functionalize}));
    return c10::impl::LocalDispatchKeySet(pod);
  }();
  return keys;
}

struct ThreadSettings {
  int num_threads;
  uint32_t float_mode;  // MXCSR where there is one: flush-to-zero is set per thread

  static ThreadSettings capture() {
    ThreadSettings settings{at::get_num_threads(), 0};
#if defined(__SSE__)
    settings.float_mode = _mm_getcsr() & kFloatModeMask;
#endif
    return settings;
  }

  // Applied on a driver's thread, which has no settings of its own to give back.
  void apply() const {
    if (at::get_num_threads() != num_threads) {
      at::set_num_threads(num_threads);
    }
#if defined(__SSE__)
    const uint32_t now = _mm_getcsr();
    if ((now & kFloatModeMask) != float_mode) {
      _mm_setcsr((now & ~kFloatModeMask) | float_mode);
    }
#endif
  }

 private:
  static constexpr uint32_t kFloatModeMask = 0xFFC0u;  // masks, rounding, flush to zero, denormals are zero
};

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// The state that a CPU kernel reads besides its arguments, and the source
// of that state for a queued call.
//
// | state                                        | source for a queued call                                         |
// |----------------------------------------------|------------------------------------------------------------------|
// | dispatch keys, modes                         | below autograd, with no modes                                    |
// | threads, floating-point mode, grad mode      | CallContext: per thread, captured at the call and applied        |
// | the default dtype                            | part of the signature, as it decides dtypes; and as the next     |
// | determinism, precision, at::Context's flags  | of the process: torch's setters first wait for queued calls      |
// |                                              | (_compat), so each call runs under its caller's settings         |
// | generators                                   | ops/call/random.h                                                |
// | the handler of warnings                      | core/late_warnings.h: kept, and issued at the next wait          |
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
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

struct CallContext {
  int num_threads = 1;
  uint32_t float_mode = 0;  // MXCSR if the CPU has one: flush-to-zero is set per thread
  bool has_gradients = false;  // grad mode: some kernels keep tensors only for a backward pass

  static CallContext capture() {
    CallContext context{at::get_num_threads(), 0, c10::GradMode::is_enabled()};
#if defined(__SSE__)
    context.float_mode = _mm_getcsr() & kFloatModeMask;
#endif
    return context;
  }

  // Apply the context to the thread until the scope ends. The number of threads is not restored,
  // because a driver's thread has no setting of its own and the change is expensive.
  class Scope {
   public:
    explicit Scope(const CallContext& context) : had_gradients_(c10::GradMode::is_enabled()) {
      if (at::get_num_threads() != context.num_threads) {
        at::set_num_threads(context.num_threads);
      }
      c10::GradMode::set_enabled(context.has_gradients);
      float_mode_ = exchange_float_mode(context.float_mode);
    }
    ~Scope() {
      c10::GradMode::set_enabled(had_gradients_);
      exchange_float_mode(float_mode_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    bool had_gradients_;
    uint32_t float_mode_;
  };

 private:
  static constexpr uint32_t kFloatModeMask = 0xFFC0u;  // masks, rounding, flush to zero, denormals are zero

  static uint32_t exchange_float_mode(uint32_t wanted) {
#if defined(__SSE__)
    const uint32_t now = _mm_getcsr();
    if ((now & kFloatModeMask) != wanted) {
      _mm_setcsr((now & ~kFloatModeMask) | wanted);
    }
    return now & kFloatModeMask;
#else
    return wanted;
#endif
  }
};

}  // namespace outboard

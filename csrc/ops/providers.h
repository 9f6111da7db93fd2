// SPDX-License-Identifier: BSD-3-Clause
// Which providers of the chain may run, by OUTBOARD_PROVIDERS, the driver and the device. Copies to
// the CPU, the last resort, are set by the fallback itself (ops/host/fallback.h).
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>

#include "core/export.h"

namespace outboard {

// Whether kernels are generated for a device's operators (ops/planned/generated_provider.h).
enum class GeneratedMode : uint8_t {
  Off,
  On,
  WhereUnreachable  // on devices whose memory the host cannot reach; on others the CPU's own kernels are faster
};

struct Providers {
  bool native = true;
  GeneratedMode generated = GeneratedMode::Off;
  bool host = true;
};

// Set the providers. Call it before the first call; later, other threads may see either setting.
OUTBOARD_API void set_providers(const Providers& providers);

namespace detail {
OUTBOARD_API extern std::atomic<bool> allows_native_;
OUTBOARD_API extern std::atomic<bool> allows_host_;
OUTBOARD_API extern std::atomic<GeneratedMode> generated_mode_;
}  // namespace detail

inline bool allows_native() {
  return detail::allows_native_.load(std::memory_order_relaxed);
}
inline bool allows_host() {
  return detail::allows_host_.load(std::memory_order_relaxed);
}
// Return true if kernels are generated for some device.
inline bool allows_generated() {
  return detail::generated_mode_.load(std::memory_order_relaxed) != GeneratedMode::Off;
}

// Return true if kernels are generated for the device. The first call opens the device, to find out
// whether the host reaches its memory.
bool generates_for(c10::DeviceIndex device);

}  // namespace outboard

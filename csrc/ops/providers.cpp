// SPDX-License-Identifier: BSD-3-Clause
#include "ops/providers.h"

#include <array>

#include "core/device.h"
#include "core/driver.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace detail {
std::atomic<bool> allows_native_{true};
std::atomic<bool> allows_host_{true};
std::atomic<CompiledMode> compiled_mode_{CompiledMode::Off};
}  // namespace detail

namespace {

enum class Compiles : uint8_t { Unknown, No, Yes };
std::array<std::atomic<Compiles>, kMaxDevices> answers{};

bool ask(c10::DeviceIndex device) {
  if (driver().program_build == nullptr) {
    return false;
  }
  ensure_open(device);
  return detail::compiled_mode_.load(std::memory_order_relaxed) == CompiledMode::On || !reaches_memory(device);
}

}  // namespace

void set_providers(const Providers& providers) {
  detail::allows_native_.store(providers.native);
  detail::allows_host_.store(providers.host);
  detail::compiled_mode_.store(providers.compiled);
  for (std::atomic<Compiles>& answer : answers) {
    answer.store(Compiles::Unknown);
  }
}

bool compiles_for(c10::DeviceIndex device) {
  std::atomic<Compiles>& answer = answers[static_cast<size_t>(device)];
  const Compiles known = answer.load(std::memory_order_relaxed);
  if (C10_LIKELY(known != Compiles::Unknown)) {
    return known == Compiles::Yes;
  }
  const bool compiles = ask(device);
  answer.store(compiles ? Compiles::Yes : Compiles::No, std::memory_order_relaxed);
  return compiles;
}

}  // namespace outboard

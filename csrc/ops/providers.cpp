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
std::atomic<GeneratedMode> generated_mode_{GeneratedMode::Off};
}  // namespace detail

namespace {

enum class Generates : uint8_t { Unknown, No, Yes };
std::array<std::atomic<Generates>, kMaxDevices> generation_states{};

bool should_generate(c10::DeviceIndex device) {
  if (driver().program_build == nullptr) {
    return false;
  }
  ensure_open(device);
  return detail::generated_mode_.load(std::memory_order_relaxed) == GeneratedMode::On || !reaches_memory(device);
}

}  // namespace

void set_providers(const Providers& providers) {
  detail::allows_native_.store(providers.native);
  detail::allows_host_.store(providers.host);
  detail::generated_mode_.store(providers.generated);
  for (std::atomic<Generates>& answer : generation_states) {
    answer.store(Generates::Unknown);
  }
}

bool generates_for(c10::DeviceIndex device) {
  std::atomic<Generates>& answer = generation_states[static_cast<size_t>(device)];
  const Generates known = answer.load(std::memory_order_relaxed);
  if (C10_LIKELY(known != Generates::Unknown)) {
    return known == Generates::Yes;
  }
  const bool generates = should_generate(device);
  answer.store(generates ? Generates::Yes : Generates::No, std::memory_order_relaxed);
  return generates;
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
#include "memory/poison.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace outboard::memory {

uint64_t next_poison() noexcept {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

PoisonPattern poison_pattern(uint64_t number) noexcept {
  PoisonPattern pattern{};
  for (uint16_t& word : pattern) {
    word = static_cast<uint16_t>(0x7FF0u | (number & 0xFu));
    number >>= 4;
  }
  return pattern;
}

void poison_host_memory(void* memory, size_t bytes, uint64_t number) noexcept {
  const PoisonPattern pattern = poison_pattern(number);
  auto* const start = static_cast<char*>(memory);
  for (size_t at = 0; at < bytes; at += sizeof(pattern)) {
    std::memcpy(start + at, pattern.data(), std::min(sizeof(pattern), bytes - at));
  }
}

}  // namespace outboard::memory

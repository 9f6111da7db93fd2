// SPDX-License-Identifier: BSD-3-Clause
// Numbers in bfloat16, for libraries that stand in for NVIDIA's.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

inline float from_bfloat16(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

inline uint16_t to_bfloat16(float value) {
  uint32_t word = 0;
  std::memcpy(&word, &value, sizeof word);
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

// Return a number rounded to TF32's 10 bits, a half away from zero.
inline double to_tf32(double value) {
  const auto single = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &single, sizeof bits);
  bits = (bits + 0x1000u) & ~0x1fffu;
  float rounded;
  std::memcpy(&rounded, &bits, sizeof rounded);
  return rounded;
}

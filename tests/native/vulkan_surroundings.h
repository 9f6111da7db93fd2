// SPDX-License-Identifier: BSD-3-Clause
// What the tests of the Vulkan driver share: a loader with faults, the compiler, a program.
#pragma once

#include <cstdlib>
#include <ctime>

#include "apart.h"

inline const char* fake() {
  return std::getenv("OB_FAKE");
}

// Set the faults. Without a fake loader, report that and return false.
inline bool has_faults(const char* test, const char* faults) {
  if (fake() == nullptr) skip(test, "OB_FAKE is not set");
  setenv("FAKE_VULKAN", faults, 1);
  return fake() != nullptr;
}

inline const char* slang(const char* test) {
  const char* found = std::getenv("OB_SLANG");
  if (found == nullptr) skip(test, "OB_SLANG is not set");
  return found;
}

inline int64_t now() {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

inline constexpr const char* kProgram = R"(
[vk::constant_id(0)] const int ob_block = 64;
[vk::constant_id(1)] const int ob_local_1 = 64;
struct Arguments { int64_t ob_first_group; float* x; float factor; };
[[vk::push_constant]] Arguments given;
groupshared float scratch[ob_local_1 / 4];
[shader("compute")] [numthreads(ob_block, 1, 1)]
void scale(uint3 group : SV_GroupID, uint3 item : SV_GroupThreadID) {
  const int64_t i = (given.ob_first_group + group.x) * ob_block + item.x;
  scratch[item.x] = given.x[i];
  GroupMemoryBarrierWithGroupSync();
  given.x[i] = given.factor * scratch[item.x];
}
)";

// SPDX-License-Identifier: BSD-3-Clause
#include "ops/random.h"

#include <ATen/CPUGeneratorImpl.h>

#include "torch/generator.h"

namespace outboard {

at::Generator cpu_generator_for(const Call& call) {
  at::Generator given;
  for (size_t i = 0; i < call.plan().args.size(); ++i) {
    if (call.plan().args[i].kind == ArgKind::Generator && call.arg(i).isGenerator()) {
      given = call.arg(i).toGenerator();
    }
  }
  const PhiloxState state = reserve_philox(given, call.device(), 4);
  // Each (seed, offset) is a stream of numbers of its own: mix the two (the finaliser of SplitMix64, Steele, Lea and
  // Flood 2014).
  uint64_t mixed = state.seed + (state.offset + 1) * 0x9E3779B97F4A7C15ull;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
  return at::make_generator<at::CPUGeneratorImpl>(mixed ^ (mixed >> 31));
}

}  // namespace outboard

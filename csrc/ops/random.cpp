// SPDX-License-Identifier: BSD-3-Clause
#include "ops/random.h"

#include <ATen/CPUGeneratorImpl.h>

#include "torch/generator.h"

namespace outboard {

namespace {

constexpr uint64_t kDrawIncrement = 4;  // of the offset, for one call

at::Generator given_generator(const Call& call) {
  for (size_t i = 0; i < call.plan().args.size(); ++i) {
    if (call.plan().args[i].kind == ArgKind::Generator && call.arg(i).isGenerator()) {
      return call.arg(i).toGenerator();
    }
  }
  return {};
}

at::Generator make_cpu_generator(uint64_t seed, uint64_t offset) {
  // Each (seed, offset) is a stream of numbers of its own: mix the two (the finaliser of SplitMix64, Steele, Lea and
  // Flood 2014).
  uint64_t mixed = seed + (offset + 1) * 0x9E3779B97F4A7C15ull;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
  return at::make_generator<at::CPUGeneratorImpl>(mixed ^ (mixed >> 31));
}

}  // namespace

at::Generator cpu_generator_for(const Call& call) {
  const PhiloxState state = reserve_philox(given_generator(call), call.device(), kDrawIncrement);
  return make_cpu_generator(state.seed, state.offset);
}

RandomDraw captured_draw(const Call& call, Capture& capture) {
  return capture_philox(capture, given_generator(call), call.device(), kDrawIncrement);
}

at::Generator cpu_generator(const RandomDraw& draw) {
  return make_cpu_generator(draw.cell->seed, draw.cell->offset + draw.offset);
}

}  // namespace outboard

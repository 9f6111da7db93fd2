// SPDX-License-Identifier: BSD-3-Clause
#include "ops/call/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/scalar_tensor.h>

#include <array>
#include <bit>
#include <memory>
#include <string>
#include <utility>

#include "memory/host_allocator.h"
#include "ops/call/transfer.h"
#include "ops/tensors/tensor_utils.h"
#include "torch/generator.h"

namespace outboard {

namespace {

constexpr uint64_t kDrawIncrement = 4;  // of the offset, for one call

at::Generator given_generator(const Call& call) {
  for (size_t i = 0; i < call.op().args.size(); ++i) {
    if (call.op().args[i].kind == ArgKind::Generator && call.arg(i).isGenerator()) {
      return call.arg(i).toGenerator();
    }
  }
  return {};
}

// Map 64 bits to 64 bits. A bijection whose every output bit depends on every input bit (the
// finaliser of SplitMix64; Steele, Lea and Flood 2014).
uint64_t mix(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
  return bits ^ (bits >> 31);
}

constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15ull;

// Return a step for SplitMix64 with odd, irregular bits.
uint64_t step_of(uint64_t bits) {
  const uint64_t step = mix(bits) | 1;
  return std::popcount(step ^ (step >> 1)) < 24 ? step ^ 0xAAAAAAAAAAAAAAAAull : step;
}

// Compute the engine's whole state from (seed, offset), by a SplitMix64 generator with its own
// start and step. The last four words are a bijection of the pair: no two draws begin in one state.
at::mt19937_data_pod expand(uint64_t seed, uint64_t offset) {
  at::mt19937_data_pod state;
  state.seed_ = seed;
  state.left_ = 1;  // the first number makes the engine take its first step
  state.seeded_ = true;
  state.next_ = 0;
  const uint64_t of_seed = mix(seed + kGoldenRatio);
  const uint64_t of_both = mix(offset + of_seed);
  const uint64_t step = step_of(of_both + kGoldenRatio);
  uint64_t counter = of_both;
  const auto put = [&state](size_t word, uint64_t bits) {
    state.state_[word] = static_cast<uint32_t>(bits);
    state.state_[word + 1] = static_cast<uint32_t>(bits >> 32);
  };
  constexpr size_t kExpanded = at::MERSENNE_STATE_N - 4;
  for (size_t word = 0; word < kExpanded; word += 2) {
    put(word, mix(counter += step));
  }
  put(kExpanded, of_seed);
  put(kExpanded + 2, of_both);
  return state;
}

// Return a generator that no call uses: a call holds its own until it is done.
at::Generator idle_generator() {
  static thread_local std::array<at::Generator, 8> generators;
  static thread_local size_t next = 0;
  at::Generator& generator = generators[next++ % generators.size()];
  if (!generator.defined() || generator.getIntrusivePtr().use_count() > 1) {
    generator = at::make_generator<at::CPUGeneratorImpl>();
  }
  return generator;
}

at::Generator make_cpu_generator(const RandomPosition& position) {
  static thread_local at::mt19937 engine;  // making one seeds it, which takes longer than everything else here
  engine.set_data(expand(position.seed, position.offset));
  at::Generator generator = idle_generator();
  auto* impl = static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
  impl->set_engine(engine);
  impl->set_next_float_normal_sample(std::nullopt);
  impl->set_next_double_normal_sample(std::nullopt);
  return generator;
}

int64_t seed_at(const RandomPosition& position) {
  return static_cast<int64_t>(mix(position.offset + mix(position.seed + kGoldenRatio)));
}

// Writes the seed of each replay to pinned memory. A copy in the graph takes it to the device.
class CapturedSeed final : public HostCommand {
 public:
  CapturedSeed(std::string op, const RandomDraw& draw, at::Tensor pinned)
      : op_(std::move(op)), draw_(draw), pinned_(std::move(pinned)), target_(pinned_.mutable_data_ptr<int64_t>()) {}
  void run(const WorkPosition&) noexcept override { *target_ = seed_at(draw_.when_run()); }
  std::string describe() const override { return "the seed of " + op_; }

 private:
  std::string op_;
  RandomDraw draw_;
  at::Tensor pinned_;
  int64_t* target_;
};

at::Tensor captured_seed(const Call& call, Stream& stream, Capture& capture) {
  // Use our own allocator: if another device type is present,
  // `pinned_memory(true)` uses the other's.
  at::Tensor pinned(at::detail::empty_generic({}, &host_allocator(), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                              c10::kLong, std::nullopt));
  if (!is_pinned(pinned.const_data_ptr())) {
    capture.refuse(call.op().name + ", whose seed needs pinned memory in a replay (the driver cannot pin memory),");
  }
  capture.add(stream, std::make_unique<CapturedSeed>(call.op().name, captured_draw(call, capture), pinned));
  at::Tensor seed = make_device_tensor(stream, c10::kLong, {}, {});
  linear_to_device(pinned, seed, /*non_blocking=*/true);
  return seed;
}

}  // namespace

at::Generator cpu_generator_for(const Call& call) {
  return make_cpu_generator(reserve_philox(given_generator(call), call.device(), kDrawIncrement));
}

RandomDraw captured_draw(const Call& call, Capture& capture) {
  return capture_philox(capture, given_generator(call), call.device(), kDrawIncrement);
}

at::Generator cpu_generator(const RandomDraw& draw) {
  return make_cpu_generator(draw.when_run());
}

int64_t seed_when_queued(const RandomDraw& draw) {
  return seed_at(draw.when_queued());
}

at::Tensor seed_for(const Call& call, Stream& stream) {
  if (Capture* capture = capture_of(stream); C10_UNLIKELY(capture != nullptr)) {
    return captured_seed(call, stream, *capture);
  }
  const RandomPosition position = reserve_philox(given_generator(call), call.device(), kDrawIncrement);
  return at::scalar_tensor(seed_at(position), at::TensorOptions(c10::kLong));
}

}  // namespace outboard

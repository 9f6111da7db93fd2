// SPDX-License-Identifier: BSD-3-Clause
#include "torch/generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/GeneratorForPrivateuseone.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <memory>
#include <mutex>

#include "core/device.h"
#include "core/driver.h"
#include "core/error.h"
#include "core/stream.h"

namespace outboard {

namespace {

constexpr size_t kStateBytes = 16;  // 8 of seed, 8 of offset: what DTensor's random module reads, as on CUDA

constexpr uint64_t rounded(uint64_t increment) {
  return (increment + 3) / 4 * 4;
}

// Shared by the generators that graphsafe_get_state returns, and by graphs that draw from them.
struct SharedState final : RandomSource {
  std::mutex mutex;
  RandomPosition value{c10::default_rng_seed_val, 0};

  RandomPosition take(uint64_t increment) override {
    const std::lock_guard lock(mutex);
    const RandomPosition position = value;
    value.offset += increment;
    return position;
  }
};

class PhiloxGenerator final : public c10::GeneratorImpl {
 public:
  explicit PhiloxGenerator(c10::DeviceIndex device,
                           std::shared_ptr<SharedState> state = std::make_shared<SharedState>())
      : GeneratorImpl(c10::Device(kDeviceType, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        state_(std::move(state)) {}

  static c10::DeviceType device_type() { return kDeviceType; }

  void set_current_seed(uint64_t seed) override {
    refuse_change("manual_seed");
    const std::shared_ptr<SharedState> state = shared_state();
    std::lock_guard lock(state->mutex);
    state->value = {seed, 0};
  }
  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset % 4 == 0, "offset must be a multiple of 4, but is ", offset);
    refuse_change("set_offset");
    const std::shared_ptr<SharedState> state = shared_state();
    std::lock_guard lock(state->mutex);
    state->value.offset = offset;
  }
  uint64_t get_offset() const override { return load().offset; }
  uint64_t current_seed() const override { return load().seed; }
  uint64_t seed() override {
    const uint64_t fresh = c10::detail::getNonDeterministicRandom(true);
    set_current_seed(fresh);
    return fresh;
  }

  void set_state(const c10::TensorImpl& new_state) override {
    TORCH_CHECK_TYPE(new_state.device().is_cpu() && new_state.dtype() == caffe2::TypeMeta::Make<uint8_t>() &&
                         new_state.is_contiguous(),
                     "RNG state must be a contiguous torch.ByteTensor on the CPU");
    TORCH_CHECK(new_state.numel() == kStateBytes || new_state.numel() == sizeof(uint64_t),
                "RNG state is wrong size: ", new_state.numel(), " bytes, expected ", kStateBytes,
                " (seed and offset) or 8 (seed)");
    RandomPosition value{0, 0};
    const auto* bytes = static_cast<const uint8_t*>(new_state.data());
    std::memcpy(&value.seed, bytes, sizeof(uint64_t));
    if (new_state.numel() == kStateBytes) {
      std::memcpy(&value.offset, bytes + sizeof(uint64_t), sizeof(uint64_t));
    }
    TORCH_CHECK(value.offset % 4 == 0, "offset must be a multiple of 4, but is ", value.offset);
    refuse_change("set_state");
    const std::shared_ptr<SharedState> state = shared_state();
    std::lock_guard lock(state->mutex);
    state->value = value;
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const RandomPosition value = load();
    at::TensorBase state = at::detail::empty_cpu({static_cast<int64_t>(kStateBytes)}, c10::ScalarType::Byte);
    auto* bytes = static_cast<uint8_t*>(state.mutable_data_ptr());
    std::memcpy(bytes, &value.seed, sizeof(uint64_t));
    std::memcpy(bytes + sizeof(uint64_t), &value.offset, sizeof(uint64_t));
    return state.getIntrusivePtr();
  }

  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& new_state) override {
    auto* other = dynamic_cast<PhiloxGenerator*>(new_state.get());
    TORCH_CHECK_TYPE(other, "graphsafe_set_state needs a generator of the same device type");
    std::shared_ptr<SharedState> state = other->shared_state();
    std::lock_guard lock(state_mutex_);
    state_.swap(state);  // the old one is destroyed without the lock
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::make_intrusive<PhiloxGenerator>(device().index(), shared_state());
  }

  RandomPosition reserve(uint64_t increment) {
    const std::shared_ptr<SharedState> state = shared_state();
    std::lock_guard lock(state->mutex);
    const RandomPosition position = state->value;
    state->value.offset += rounded(increment);
    return position;
  }
  std::shared_ptr<SharedState> shared_state() const {
    std::lock_guard lock(state_mutex_);
    return state_;
  }

 private:
  // Refuse a change that would not be part of the graph: in a replay, later draws
  // of the capture would not see it.
  void refuse_change(const char* what) const {
    if (device().has_index() && is_attached()) {
      refuse_in_capture(current_stream(device().index()), what);
    }
  }
  RandomPosition load() const {
    const std::shared_ptr<SharedState> state = shared_state();
    std::lock_guard lock(state->mutex);
    return state->value;
  }
  PhiloxGenerator* clone_impl() const override {
    auto copy = std::make_unique<PhiloxGenerator>(device().index());
    copy->state_->value = load();
    return copy.release();
  }

  mutable std::mutex
      state_mutex_;  // guards the pointer: a state may be exchanged while another thread draws from the old one
  std::shared_ptr<SharedState> state_;
};

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  static std::mutex mutex;
  static at::Generator generators[kMaxDevices];
  const c10::DeviceIndex index = device < 0 ? current_device() : device;
  check_device_index(index);
  std::lock_guard lock(mutex);
  if (!generators[index].defined()) {
    generators[index] = at::make_generator<PhiloxGenerator>(index);
  }
  return generators[index];
}

at::Generator new_generator(c10::DeviceIndex device) {
  const c10::DeviceIndex index = device < 0 ? current_device() : device;
  check_device_index(index);
  return at::make_generator<PhiloxGenerator>(index);
}

namespace {

PhiloxGenerator& philox(const at::Generator& generator, c10::DeviceIndex device) {
  const at::Generator& source = generator.defined() ? generator : default_generator(device);
  TORCH_CHECK(source.device().type() == kDeviceType, "Expected a '", c10::Device(kDeviceType, device),
              "' generator device but found '", source.device(), "'");
  return *static_cast<PhiloxGenerator*>(source.unsafeGetGeneratorImpl());
}

}  // namespace

RandomPosition reserve_philox(const at::Generator& generator, c10::DeviceIndex device, uint64_t increment) {
  PhiloxGenerator& source = philox(generator, device);
  refuse_in_capture(current_stream(device), "a draw of random numbers outside an operator that runs on the host");
  return source.reserve(increment);
}

RandomDraw capture_philox(Capture& capture, const at::Generator& generator, c10::DeviceIndex device,
                          uint64_t increment) {
  return capture.draw(philox(generator, device).shared_state(), rounded(increment));
}

}  // namespace outboard

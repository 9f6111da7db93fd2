// SPDX-License-Identifier: BSD-3-Clause
// The streams that this driver made.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace nv {

// The known CUDA streams, by pointer, and their state. A look-up takes no lock. Streams made by
// others are legal and unknown here. A destroyed pointer is remembered until CUDA returns it again.
class StreamSet {
 public:
  enum class State : uint8_t { kUnknown, kLive, kDestroyed, kOtherDevice };

  State find(uint64_t stream, int32_t device) const {
    for (uint64_t probe = 0; probe < kSlots; ++probe) {
      const Slot& slot = slots_[(hash(stream) + probe) % kSlots];
      const uint64_t key = slot.key.load(std::memory_order_acquire);
      if (key == 0) return State::kUnknown;
      if (key != stream) continue;
      const int32_t owner = slot.device.load(std::memory_order_relaxed);
      return owner == device ? State::kLive : owner < 0 ? State::kDestroyed : State::kOtherDevice;
    }
    return State::kUnknown;
  }

  // With very many streams, the newest are treated as streams made by others.
  void add(uint64_t stream, int32_t device) {
    const std::lock_guard lock(mutex_);
    set(stream, device);
  }

  // Return false if the stream is known not to be live.
  bool remove(uint64_t stream, int32_t device) {
    const std::lock_guard lock(mutex_);
    const State state = find(stream, device);
    if (state == State::kLive) set(stream, -1);
    return state == State::kLive || (state == State::kUnknown && used_ == kMaxUsedSlots);
  }

 private:
  static constexpr uint64_t kSlots = 4096;
  static constexpr uint64_t kMaxUsedSlots = kSlots / 2;  // a full table would be searched to the end
  struct Slot {
    std::atomic<uint64_t> key{0};
    std::atomic<int32_t> device{-1};
  };

  static uint64_t hash(uint64_t stream) { return (stream >> 4) * 0x9E3779B97F4A7C15u >> 40; }

  void set(uint64_t stream, int32_t device) {
    for (uint64_t probe = 0; probe < kSlots; ++probe) {
      Slot& slot = slots_[(hash(stream) + probe) % kSlots];
      const uint64_t key = slot.key.load(std::memory_order_relaxed);
      if (key != stream && key != 0) continue;
      if (key == 0 && used_ == kMaxUsedSlots) return;
      slot.device.store(device, std::memory_order_relaxed);
      if (key == 0) {
        ++used_;
        slot.key.store(stream, std::memory_order_release);
      }
      return;
    }
  }

  std::mutex mutex_;
  uint64_t used_ = 0;
  Slot slots_[kSlots];
};

}  // namespace nv

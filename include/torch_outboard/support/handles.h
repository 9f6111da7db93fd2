// SPDX-License-Identifier: BSD-3-Clause
// A table of objects that handles refer to.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace support {

// A handle consists of a kind, a generation and an index. A look-up takes no lock and accesses no
// freed memory, even for an arbitrary number. It finds nothing for a handle that was destroyed or
// has another kind. Slots are reused, never freed.
template <class T, uint8_t kKind>
class Handles {
 public:
  Handles() = default;
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles() {
    for_each([](T& object) { object.~T(); });
  }

  T* find(uint64_t handle) const {
    const uint64_t index = handle & kIndexMask;
    if (index >= kChunkSize * kChunks) return nullptr;
    Slot* chunk = chunks_[index / kChunkSize].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    Slot& slot = chunk[index % kChunkSize];
    return handle != 0 && slot.handle.load(std::memory_order_acquire) == handle ? slot.object() : nullptr;
  }

  // Create an object and return its handle, never 0. Throw std::bad_alloc if there are too many.
  template <class... Arguments>
  uint64_t make(Arguments&&... arguments) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) grow();
    const uint64_t index = free_.back();
    Slot& slot = *at(index);
    new (slot.storage) T(std::forward<Arguments>(arguments)...);
    free_.pop_back();
    // One generation counter for the whole table, so that no handle repeats in practice.
    generation_ = (generation_ + 1) & kGenerationMask;
    const uint64_t handle = uint64_t{kKind} << 56 | generation_ << 32 | index;
    slot.handle.store(handle, std::memory_order_release);
    return handle;
  }

  // Invalidate a handle, and move its object out, so that the object is destroyed without the lock.
  // Return false for an unknown handle.
  bool take(uint64_t handle, T* out_object) {
    const std::lock_guard lock(mutex_);
    T* object = find(handle);
    if (object == nullptr) return false;
    const uint64_t index = handle & kIndexMask;
    at(index)->handle.store(0, std::memory_order_release);
    *out_object = std::move(*object);
    object->~T();
    free_.push_back(index);
    return true;
  }

  // Visit every object. No object may be added or removed meanwhile.
  template <class Visit>
  void for_each(Visit&& visit) {
    for (uint64_t index = 0; index < used_; ++index) {
      Slot& slot = *at(index);
      if (slot.handle.load(std::memory_order_acquire) != 0) visit(*slot.object());
    }
  }

 private:
  struct Slot {
    std::atomic<uint64_t> handle{0};
    alignas(T) unsigned char storage[sizeof(T)];
    T* object() { return std::launder(reinterpret_cast<T*>(storage)); }
  };
  static constexpr uint64_t kIndexMask = 0xFFFFFFFF;
  static constexpr uint64_t kGenerationMask = 0xFFFFFF;
  static constexpr uint64_t kChunkSize = 256;
  static constexpr uint64_t kChunks = 4096;

  Slot* at(uint64_t index) { return chunks_[index / kChunkSize].load(std::memory_order_acquire) + index % kChunkSize; }

  void grow() {
    if (used_ >= kChunkSize * kChunks) throw std::bad_alloc();
    owned_.push_back(std::make_unique<Slot[]>(kChunkSize));
    chunks_[used_ / kChunkSize].store(owned_.back().get(), std::memory_order_release);
    free_.reserve(used_ + kChunkSize);  // so that freeing cannot fail
    for (uint64_t i = kChunkSize; i-- > 0;) free_.push_back(used_ + i);
    used_ += kChunkSize;
  }

  std::mutex mutex_;
  uint64_t used_ = 0;
  uint64_t generation_ = 0;
  std::vector<uint64_t> free_;
  std::vector<std::unique_ptr<Slot[]>> owned_;
  std::array<std::atomic<Slot*>, kChunks> chunks_{};
};

}  // namespace support

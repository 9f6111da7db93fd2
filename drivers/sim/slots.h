// SPDX-License-Identifier: BSD-3-Clause
// A table of objects that are named by handles. Their memory stays until the table is destroyed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace sim {

// A table of slots. A handle is (generation, device, index). A look-up takes no lock, touches no
// freed memory whatever the number, and finds nothing for a handle that was destroyed or belongs to
// another device. `T` has an atomic `handle`, 0 while the slot is free. Slots are reused, so a `T`
// is made once and serves several handles.
template <class T>
class SlotTable {
 public:
  T* find(int32_t device, uint64_t handle) const {
    if (((handle >> kIndexBits) & kDeviceMask) != static_cast<uint64_t>(device)) return nullptr;
    T* slot = at(handle & kIndexMask);
    if (slot == nullptr || handle == 0) return nullptr;
    return slot->handle.load(std::memory_order_acquire) == handle ? slot : nullptr;
  }

  // Return true if `handle` was ever issued, for any device: for error messages.
  bool was_issued(uint64_t handle) const {
    return at(handle & kIndexMask) != nullptr && (handle >> kGenerationShift) != 0;
  }

  // Return a free slot, and the handle to store in it once it is ready; null
  // if there are already a million.
  T* take(int32_t device, uint64_t* out_handle) {
    std::lock_guard lock(mutex_);
    uint64_t index;
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else {
      index = used_;
      if (index >> kChunkBits >= kChunks) return nullptr;
      auto& chunk = chunks_[index >> kChunkBits];
      if (chunk.load(std::memory_order_relaxed) == nullptr) {
        owned_.push_back(std::make_unique<T[]>(kChunkSize));
        chunk.store(owned_.back().get(), std::memory_order_release);
      }
      ++used_;
    }
    // One generation counter for the whole table, so that no handle repeats.
    *out_handle = ++generation_ << kGenerationShift | static_cast<uint64_t>(device) << kIndexBits | index;
    return at(index);
  }

  // Free the slot of `handle`. The caller has set its `handle` field to 0.
  void give_back(uint64_t handle) {
    std::lock_guard lock(mutex_);
    free_.push_back(handle & kIndexMask);
  }

 private:
  static constexpr uint64_t kIndexBits = 20;
  static constexpr uint64_t kIndexMask = (uint64_t{1} << kIndexBits) - 1;
  static constexpr uint64_t kDeviceMask = 0xFF;
  static constexpr uint64_t kGenerationShift = kIndexBits + 8;
  static constexpr uint64_t kChunkBits = 6;
  static constexpr uint64_t kChunkSize = uint64_t{1} << kChunkBits;
  static constexpr uint64_t kChunks = uint64_t{1} << (kIndexBits - kChunkBits);

  T* at(uint64_t index) const {
    T* chunk = chunks_[index >> kChunkBits].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : chunk + (index & (kChunkSize - 1));
  }

  std::mutex mutex_;
  uint64_t used_ = 0;
  uint64_t generation_ = 0;
  std::vector<uint64_t> free_;
  std::vector<std::unique_ptr<T[]>> owned_;
  std::unique_ptr<std::atomic<T*>[]> chunks_{new std::atomic<T*>[kChunks]()};
};

}  // namespace sim

// SPDX-License-Identifier: BSD-3-Clause
// A cache of an operator's calls by signature: the shapes of their outputs, and the work that the
// device runs for them.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace outboard {

// One output of a call whose shape is known before it runs.
struct OutputShape {
  bool is_defined = false;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  size_t nbytes = 0;
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
  std::optional<int64_t> number;  // the result is not a tensor
};

// Whether and how a call's shapes are known before it runs.
enum class ShapeState : uint8_t {
  Known,  // the meta kernel returned them
  Unknown,  // there is no meta kernel, or it is wrong about a call that the CPU kernel accepts
  ByData,  // they depend on values
  Refused  // the meta kernel raised, and the CPU kernel could not be tried: only that kernel itself may run the call
};

struct CallShape {
  ShapeState state = ShapeState::Known;
  std::exception_ptr refusal;  // the meta kernel's exception for a refused call
  // The CPU kernel computes shapes with the same function, or was tried on a call of the class.
  bool is_verified = false;
  // Only the CPU kernel decides how written tensors change. If it runs, the caller waits.
  bool requires_cpu_kernel = false;
  std::vector<OutputShape> outputs;  // outputs of the fresh returns, lists flattened
  std::vector<int32_t> list_sizes;  // per fresh return: -1 for a tensor, else the number of outputs in its list
  // Written arguments that change their shape (an `out=` of the wrong size): index among the
  // arguments, and the new shape.
  std::vector<std::pair<uint32_t, OutputShape>> resized;
  uint64_t shape_class = 0;  // class in ops/operator/shape_classes.h

  bool is_known() const { return state == ShapeState::Known; }
};

// Return a hash that also covers one more word.
inline uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
  return hash ^ hash >> 29;
}

// Everything that determines a call's CallShape, as words: dtypes, sizes, strides, the default
// dtype, and relevant constants.
using SignatureWords = c10::SmallVector<uint64_t, 64>;

// A bounded table with the second-chance policy: a full table evicts an entry that was not used
// since the hand last passed. The sizes of a model's regular steps therefore stay, even if a loop
// over lengths passes through. Thread-safe.
template <typename Value>
class SignatureTable {
 public:
  std::shared_ptr<const Value> find(uint64_t hash, const SignatureWords& words);
  void insert(uint64_t hash, const SignatureWords& words, std::shared_ptr<const Value> value);

  static constexpr size_t kMaxEntries = 1024;

 private:
  struct Entry {
    uint64_t hash = 0;
    bool was_used = false;
    std::vector<uint64_t> words;
    std::shared_ptr<const Value> value;
  };
  size_t slot_for_new();  // with the lock held

  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::unordered_map<uint64_t, size_t> slots_;  // slots by hash; a later entry replaces an entry with the same hash
  size_t hand_ = 0;
};

template <typename Value>
std::shared_ptr<const Value> SignatureTable<Value>::find(uint64_t hash, const SignatureWords& words) {
  std::lock_guard lock(mutex_);
  const auto it = slots_.find(hash);
  if (it == slots_.end()) {
    return nullptr;
  }
  Entry& entry = entries_[it->second];
  if (entry.words.size() != words.size() || !std::equal(words.begin(), words.end(), entry.words.begin())) {
    return nullptr;
  }
  entry.was_used = true;
  return entry.value;
}

template <typename Value>
size_t SignatureTable<Value>::slot_for_new() {
  if (entries_.size() < kMaxEntries) {
    entries_.emplace_back();
    return entries_.size() - 1;
  }
  while (std::exchange(entries_[hand_].was_used, false)) {
    hand_ = (hand_ + 1) % kMaxEntries;
  }
  slots_.erase(entries_[hand_].hash);
  return std::exchange(hand_, (hand_ + 1) % kMaxEntries);
}

template <typename Value>
void SignatureTable<Value>::insert(uint64_t hash, const SignatureWords& words, std::shared_ptr<const Value> value) {
  std::lock_guard lock(mutex_);
  const auto it = slots_.find(hash);
  const size_t slot = it == slots_.end() ? slot_for_new() : it->second;
  entries_[slot] = Entry{hash, false, {words.begin(), words.end()}, std::move(value)};
  slots_[hash] = slot;
}

// The shapes of calls.
using SignatureCache = SignatureTable<CallShape>;

}  // namespace outboard

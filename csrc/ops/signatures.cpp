// SPDX-License-Identifier: BSD-3-Clause
#include "ops/signatures.h"

#include <algorithm>

namespace outboard {

std::shared_ptr<const CallShape> SignatureCache::find(uint64_t hash, const SignatureWords& words) {
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
  return entry.shape;
}

size_t SignatureCache::slot_for_new() {
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

void SignatureCache::insert(uint64_t hash, const SignatureWords& words, std::shared_ptr<const CallShape> shape) {
  std::lock_guard lock(mutex_);
  const auto it = slots_.find(hash);
  const size_t slot = it == slots_.end() ? slot_for_new() : it->second;
  entries_[slot] = Entry{hash, false, {words.begin(), words.end()}, std::move(shape)};
  slots_[hash] = slot;
}

}  // namespace outboard

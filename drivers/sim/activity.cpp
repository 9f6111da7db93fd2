// SPDX-License-Identifier: BSD-3-Clause
#include "activity.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace sim {
namespace {

thread_local uint64_t thread_correlation = 0;

}  // namespace

void Activity::set_correlation(uint64_t correlation) {
  thread_correlation = correlation;
}
uint64_t Activity::correlation() {
  return thread_correlation;
}

void Activity::add(const ob_activity& record) {
  std::lock_guard lock(mutex_);
  records_.push_back(record);
}

size_t Activity::read(size_t capacity, size_t stride, ob_activity* out_records) {
  std::lock_guard lock(mutex_);
  const size_t count = std::min(capacity, records_.size());
  auto* out = reinterpret_cast<char*>(out_records);
  for (size_t i = 0; i < count; ++i, out += stride) {
    // The reader may have been compiled with a shorter record.
    size_t size = 0;
    std::memcpy(&size, out, sizeof size);
    if (size == 0 || size > stride) size = stride;
    size = std::min(size, sizeof(ob_activity));
    ob_activity record = records_.front();
    record.struct_size = size;
    std::memcpy(out, &record, size);
    records_.pop_front();
  }
  return count;
}

}  // namespace sim

// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/unwaited.h"

#include <algorithm>

#include "core/capture.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

constexpr size_t kMaxUnqueriedRanges = 64;

uint64_t end_of(const at::Tensor& tensor) {
  return span_bytes(tensor.sizes(), tensor.strides(), tensor.itemsize(), tensor.storage_offset());
}

}  // namespace

void Unwaited::wait_for(const Tensors& read, Transport transport) {
  std::vector<Range> found;
  {
    const std::lock_guard lock(mutex_);
    for (const at::Tensor& tensor : read) {
      for (const Range& range : ranges_) {
        const bool is_ordered =
            range.transport == transport && transport != Transport::Staged;  // by one thread, or one stream
        if (!is_ordered && range.storage._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl() &&
            offset_bytes(*tensor.unsafeGetTensorImpl()) < range.end && range.begin < end_of(tensor) &&
            std::ranges::find(found, range.done, &Range::done) == found.end()) {
          found.push_back(range);
        }
      }
    }
  }
  for (const Range& range : found) {
    if (!range.is_streamed) {
      // A thread queues the results once they have arrived.
      if (const auto work = range.work.lock()) {
        work->wait(kNoTimeout);
        continue;
      }
    }
    if (!range.done->event.is_recorded()) {
      continue;  // the thread has put them where they belong
    }
    Stream& current = current_stream(range.done->event.device());
    if (!range.done->is_joined || capture_of(current) == nullptr) {
      range.done->event.block(current);
    }
  }
}

void Unwaited::add(const Tensors& written, const c10::intrusive_ptr<DistributedWork>& work,
                   const std::shared_ptr<Staging>& staging) {
  const std::lock_guard lock(mutex_);
  drop_finished_ranges();
  for (const at::Tensor& tensor : written) {
    if (tensor.numel() == 0) {
      continue;
    }
    ranges_.push_back({tensor.storage().getWeakStorageImpl(), offset_bytes(*tensor.unsafeGetTensorImpl()),
                       end_of(tensor), c10::weak_intrusive_ptr<DistributedWork>(work), staging->done(),
                       staging->transport(), staging->is_streamed()});
  }
}

void Unwaited::drop_finished_ranges() {
  const bool asks = ranges_.size() >= kMaxUnqueriedRanges;
  std::erase_if(ranges_, [&](const Range& range) {
    if (range.storage.expired()) {
      return true;
    }
    const bool is_queued = range.is_streamed || range.work.expired();
    return asks && is_queued && range.done->event.query();
  });
}

}  // namespace outboard

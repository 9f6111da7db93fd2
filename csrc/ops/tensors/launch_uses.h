// SPDX-License-Identifier: BSD-3-Clause
// The tensors that a launch uses, to be reported to the allocator and the stream sanitizer.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "core/capture.h"
#include "core/observer.h"
#include "core/stream.h"
#include "memory/caching_allocator.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

class LaunchUses {
 public:
  explicit LaunchUses(Stream& stream) : stream_(stream), observer_(observer()) {}

  // Note a tensor of the device. Memory of another stream's pool is
  // recorded as in use on this stream.
  void add(const at::Tensor& tensor, bool is_written) {
    record_stream(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->data_ptr(), stream_);
    note(tensor, is_written);
  }

  // Do the same for memory from the stream's own pool.
  void note(const at::Tensor& tensor, bool is_written) {
    if (C10_UNLIKELY(observer_ != nullptr) && tensor.numel() > 0) {
      accesses_.push_back(access_to(tensor, is_written));
    }
  }

  // Report the accesses. Call it before the launch; `name` outlives the kernel.
  void report(const char* name) const {
    if (C10_LIKELY(observer_ == nullptr) || accesses_.empty()) {
      return;
    }
    if (capture_of(stream_) == nullptr) {
      observer_->access(name, stream_, accesses_.data(), accesses_.size());
    } else {
      observer_->capture(name, stream_, accesses_.data(), accesses_.size());
    }
  }

 private:
  Stream& stream_;
  Observer* const observer_;
  c10::SmallVector<ObservedAccess, 12> accesses_;
};

}  // namespace outboard

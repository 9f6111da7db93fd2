// SPDX-License-Identifier: BSD-3-Clause
// Results of a group's collectives that a later collective reads before anything has waited for
// them. A library whose collectives share one stream runs such calls in order; here, copies in and
// copies out have separate streams.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <vector>

#include "distributed/staging.h"
#include "distributed/work.h"

namespace outboard {

class Unwaited {
 public:
  // Make the current stream wait for earlier results in the memory of these tensors, which a call
  // at `transport` is about to read. Thread-safe.
  void wait_for(const Tensors& read, Transport transport);
  // Record the memory that an asynchronous collective writes.
  void add(const Tensors& written, const c10::intrusive_ptr<DistributedWork>& work,
           const std::shared_ptr<Staging>& staging);

 private:
  struct Range {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    uint64_t begin, end;  // bytes in the storage
    c10::weak_intrusive_ptr<DistributedWork> work;
    std::shared_ptr<Staging::Done> done;
    Transport transport;
    bool is_streamed;
  };
  void drop_finished_ranges();

  std::mutex mutex_;
  std::vector<Range> ranges_;
};

}  // namespace outboard

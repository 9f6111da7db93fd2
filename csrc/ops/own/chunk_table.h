// SPDX-License-Identifier: BSD-3-Clause
// The tables of launches over lists of tensors (kernels/chunk_plan.h) in the device's memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "core/stream.h"

namespace outboard {

struct ChunkTable {
  at::Tensor memory;  // of the stream that it was made for
  int64_t chunks = 0;
  int64_t elements = 0;  // of a chunk
};

// The rows of a table as the host writes them: `width` words each, of which the last is the number of elements.
struct ChunkRows {
  std::vector<uint64_t> words;
  size_t width = 0;
  std::optional<size_t> chunk_column;  // where the table has the number of a row's first chunk; 0 in `words`
};

// The tables of one kernel that were used last. In training the same tensors come at each step: then a table lies there.
// Its content never changes, and it is used on its own stream only, where its copy from the host came before. Thread-safe.
class ChunkTables {
 public:
  // The table with these rows, if it is known for the stream.
  std::optional<ChunkTable> find(const Stream& stream, const ChunkRows& rows);

  // Makes one: queues its copy. While the stream captures the copy becomes a step of the graph, which keeps the host's
  // side, and the table isn't remembered: its memory is the graph's. Nothing if that needs pinned memory and there is none.
  std::optional<ChunkTable> make(Stream& stream, ChunkRows rows);

 private:
  struct Known {
    const Stream* stream = nullptr;
    std::vector<uint64_t> rows;
    ChunkTable table;
  };

  static constexpr size_t kMost = 16;

  std::mutex mutex_;
  std::vector<Known> known_;
  size_t next_ = 0;  // the one that the next replaces
};

}  // namespace outboard

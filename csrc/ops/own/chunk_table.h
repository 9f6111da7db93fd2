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
  at::Tensor memory;  // memory of the stream for which the table was made
  int64_t chunks = 0;
  int64_t elements = 0;  // elements per chunk
};

// The rows of a table as the host writes them: `width` words each, the last of
// which is the number of elements.
struct ChunkRows {
  std::vector<uint64_t> words;
  size_t width = 0;
  std::optional<size_t> chunk_column;  // index of a row's first chunk number; 0 in `words`
};

// The most recently used tables of one kernel. In training, the same tensors recur at each step, so
// the table already exists. A table's content never changes. A table is used only on its own
// stream, after its copy from the host. Thread-safe.
class ChunkTables {
 public:
  // Return the table with these rows, if it is known for the stream.
  std::optional<ChunkTable> find(const Stream& stream, const ChunkRows& rows);

  // Make a table, and queue its copy. While the stream captures, the copy becomes a step of the
  // graph, which keeps the host's side. The table is then not cached, because its memory belongs to
  // the graph. Return nothing if this needs pinned memory and there is none.
  std::optional<ChunkTable> make(Stream& stream, ChunkRows rows);

 private:
  struct CachedTable {
    const Stream* stream = nullptr;
    std::vector<uint64_t> rows;
    ChunkTable table;
  };

  static constexpr size_t kMaxTables = 16;

  std::mutex mutex_;
  std::vector<CachedTable> known_;
  size_t next_ = 0;  // index of the table to replace next
};

}  // namespace outboard

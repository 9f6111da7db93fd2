// SPDX-License-Identifier: BSD-3-Clause
#include "ops/own/chunk_table.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/capture.h"
#include "core/device.h"
#include "memory/host_allocator.h"
#include "ops/host/copy.h"
#include "ops/tensors/tensor_utils.h"

namespace outboard {

namespace {

// Elements of a chunk: as many as torch's own CUDA kernels take, fewer if the device would be idle.
constexpr int64_t kMaxChunkElements = int64_t{1} << 16;
constexpr int64_t kLeastElements = int64_t{1} << 11;
constexpr int64_t kChunksOfProcessor = 8;

int64_t ceil_div(int64_t number, int64_t divisor) {
  return (number + divisor - 1) / divisor;
}

template <typename Visit>
void for_each_size(const ChunkRows& rows, Visit&& visit) {
  for (size_t end = rows.width; end <= rows.words.size(); end += rows.width) {
    visit(static_cast<int64_t>(rows.words[end - 1]));
  }
}

int64_t elements_of_chunk(const Stream& stream, const ChunkRows& rows) {
  int64_t total = 0;
  for_each_size(rows, [&](int64_t size) { total += size; });
  const int64_t wanted = kChunksOfProcessor * std::max(device_properties(stream.device).multi_processor_count, 1);
  int64_t elements = kMaxChunkElements;
  while (elements > kLeastElements && total / elements < wanted) {
    elements /= 2;
  }
  return elements;
}

}  // namespace

std::optional<ChunkTable> ChunkTables::find(const Stream& stream, const ChunkRows& rows) {
  if (capture_of(stream) != nullptr) {
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  for (const CachedTable& known : known_) {
    if (known.stream == &stream && known.rows == rows.words) {
      return known.table;
    }
  }
  return std::nullopt;
}

std::optional<ChunkTable> ChunkTables::make(Stream& stream, ChunkRows rows) {
  ChunkTable table;
  table.elements = elements_of_chunk(stream, rows);
  for_each_size(rows, [&](int64_t size) { table.chunks += ceil_div(size, table.elements); });
  const int64_t words = table.chunks + static_cast<int64_t>(rows.words.size());
  // Use our own allocator: if another device type is present,
  // `pinned_memory(true)` uses the other's.
  const at::Tensor host(at::detail::empty_generic(
      {words}, &host_allocator(), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::kLong, std::nullopt));
  const bool is_captured = capture_of(stream) != nullptr;
  if (is_captured && !is_pinned(host.const_data_ptr())) {
    return std::nullopt;
  }
  auto* const first = reinterpret_cast<uint64_t*>(host.mutable_data_ptr<int64_t>());
  uint64_t* const words_of_rows = first + table.chunks;
  std::memcpy(words_of_rows, rows.words.data(), rows.words.size() * sizeof(uint64_t));
  uint64_t* next = first;
  uint64_t row = 0;
  for_each_size(rows, [&](int64_t size) {
    if (rows.chunk_column.has_value()) {
      words_of_rows[row * rows.width + *rows.chunk_column] = static_cast<uint64_t>(next - first);
    }
    for (int64_t chunk = 0; chunk * table.elements < size; ++chunk) {
      *next++ = row << 32 | static_cast<uint64_t>(chunk);
    }
    ++row;
  });
  table.memory = make_device_tensor(stream, c10::kLong, {words}, {1});
  copy_from(host, table.memory, /*non_blocking=*/true);
  if (!is_captured) {
    CachedTable known{&stream, std::move(rows.words), table};
    const std::lock_guard lock(mutex_);
    if (known_.size() < kMaxTables) {
      known_.push_back(std::move(known));
    } else {
      std::swap(known_[next_], known);  // its memory returns to its own stream once no thread launches with it
      next_ = (next_ + 1) % kMaxTables;
    }
  }
  return table;
}

}  // namespace outboard

// SPDX-License-Identifier: BSD-3-Clause
// What kernels in a driver's language find wrong: an index that is out of bounds, an assertion that doesn't hold. A kernel
// can't raise. It writes to the record of the stream that it was queued on, goes on with an index that is within bounds,
// and the next wait behind it finds the record and raises (core/failure.h).
//
// A record holds one failure, the first; what fails until a wait has read it is dropped. It lies in memory that the host
// reads after a wait as its own: host memory that kernels reach, or device memory that the host reaches. Where there is
// neither, a stream that such kernels were queued on since its last wait gets a copy of its record to the host queued
// before it is waited for, and before each event that is recorded on it.
//
// Launches that check nothing have no part in this, and no stream has a record before its first kernel that checks.
#pragma once

#include <c10/core/Device.h>
#include <c10/macros/Macros.h>
#include <torch_outboard/driver.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/export.h"

namespace outboard {

struct StreamState;

// As kernels know it: codegen/prelude/failure.h is the same in C.
struct alignas(64) KernelRecord {
  uint32_t is_taken;  // set by an atomic: whose it was writes the rest
  uint32_t check;  // which of the kernel's
  uint64_t ticket;  // which launch
  int64_t index;
  int64_t size;
  uint32_t kernel;
  uint32_t reserved;
  uint64_t seal;  // of all that; until it agrees the record is still being written
};

// What a kernel may find wrong, by the number of the check in its text.
struct KernelCheck {
  // An index is an IndexError, but a RuntimeError where the CPU's operator raises that: Range.
  enum class Kind : uint8_t { Index, Range, Assertion };
  Kind kind;
  std::string text;  // the operator whose index it is; what the assertion says
  bool operator==(const KernelCheck&) const = default;
};

// Notes a kernel that checks, for good, once: `name` is what it is called in errors. Gives its number.
OUTBOARD_API uint32_t add_checked_kernel(std::string name, std::vector<KernelCheck> checks);

// Three neighbouring arguments of a launch, by which its kernel says what is wrong: the record's address, the launch's
// ticket, the kernel's number.
struct RecordArguments {
  static constexpr size_t kCount = 3;

  size_t first;  // their place among the launch's arguments
  uint32_t kernel;
  uint64_t ticket = 0;
};

// Fills them in for a launch that is queued on the stream next; `record` lives until then. Makes the stream's record if
// it has none, and queues its erasure if that is due.
void set_record(StreamState& stream, RecordArguments& record, ob_kernel_arg* args);
// Once it is queued.
void note_checked_launch(StreamState& stream) noexcept;

namespace detail {

extern std::atomic<bool> any_record;
inline bool has_records() noexcept {
  return any_record.load(std::memory_order_relaxed);
}

// Before the stream is waited for, or an event recorded on it: queues the copy of a record that the host doesn't reach.
void queue_record_copy(StreamState& stream);
inline void fetch_record(StreamState& stream) {
  if (C10_UNLIKELY(has_records())) {
    queue_record_copy(stream);
  }
}
void fetch_records(c10::DeviceIndex device);

// Makes a failure of the stream of what its record holds; what isn't there yet is found by a later wait.
void read_record(StreamState& stream);
void read_records();

}  // namespace detail

}  // namespace outboard

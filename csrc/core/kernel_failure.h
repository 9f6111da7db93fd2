// SPDX-License-Identifier: BSD-3-Clause
// Failures that kernels in a driver's language detect: an index out of bounds, an assertion that
// does not hold. A kernel cannot raise. It writes to the record of its stream and continues with an
// index within bounds. The next wait for that work reads the record and raises (core/failure.h).
//
// A record holds the first failure; later failures are dropped until a wait has read it. The record
// is in memory that the host can read directly after a wait: host memory that kernels access, or
// device memory that the host accesses. Without such memory, the record is copied to the host. The
// copy is queued before each wait for the stream and each event recorded on it, if such kernels
// were queued since the last wait.
//
// Launches without checks are unaffected. A stream has no record before its first checking kernel.
// The kernels of a driver's own graph write to the record of the graph (core/graph_record.h).
#pragma once

#include <c10/core/Device.h>
#include <c10/macros/Macros.h>
#include <torch_outboard/driver.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "core/export.h"

namespace outboard {

struct StreamState;

// A failure record as kernels see it. codegen/prelude/failure.h declares the same in C.
struct alignas(64) KernelRecord {
  uint32_t taken;  // the kernel that atomically increments it from `erased` writes the record
  uint32_t check;  // number of the kernel's check
  uint64_t ticket;  // ticket of the launch
  int64_t index;
  int64_t size;
  uint32_t kernel;
  uint32_t erased;  // how often the host has erased it; kernels only read this
  uint64_t seal;  // checksum; until it matches, the record is incomplete
};

// A check in a kernel's text. Its number in the text is its index.
struct KernelCheck {
  // Index raises IndexError. Range raises RuntimeError, for operators whose CPU kernel raises
  // RuntimeError.
  enum class Kind : uint8_t { Index, Range, Assertion };
  Kind kind;
  std::string text;  // the operator whose index is checked, or the assertion's message
  bool operator==(const KernelCheck&) const = default;
};

// Register a kernel that checks, permanently, and return its number. `name` is its name in errors.
OUTBOARD_API uint32_t add_checked_kernel(std::string name, std::vector<KernelCheck> checks);

// Three adjacent arguments of a launch, through which its kernel reports a failure: the record's
// address, the launch's ticket, the kernel's number.
struct RecordArguments {
  static constexpr size_t kCount = 3;

  size_t first;  // position of the first argument among the launch's arguments
  uint32_t kernel;
  uint64_t ticket = 0;
};

// Fill the arguments in for the next launch on the stream; `record` lives until then. Allocate the
// stream's record if it has none, and queue its erasure if that is due.
void set_record(StreamState& stream, RecordArguments& record, ob_kernel_arg* args);
// Note that the launch was queued.
void note_checked_launch(StreamState& stream) noexcept;

namespace detail {

void set_record_arguments(uint64_t address, RecordArguments& record, ob_kernel_arg* args) noexcept;

// Return true if a kernel has begun to write its failure.
inline bool is_record_taken(KernelRecord* record) noexcept {
  return std::atomic_ref(record->taken).load(std::memory_order_acquire) !=
         std::atomic_ref(record->erased).load(std::memory_order_acquire);
}
// Copy a failure. Return false if there is none, or if it is still being written.
bool copy_record(const KernelRecord* record, KernelRecord* out_record) noexcept;
// Let kernels write the next failure. The host never writes `taken`: on host memory, a device's
// atomic may be a separate read and write, and this write could undo the host's.
void erase_record(KernelRecord* record) noexcept;
std::exception_ptr error_of(const KernelRecord& record);

extern std::atomic<bool> any_record;
inline bool has_records() noexcept {
  return any_record.load(std::memory_order_relaxed);
}

// Queue the copy of a record that the host cannot reach. Call it before a wait for the stream, and
// before an event is recorded on it.
void queue_record_copy(StreamState& stream);
inline void fetch_record(StreamState& stream) {
  if (C10_UNLIKELY(has_records())) {
    queue_record_copy(stream);
  }
}
void fetch_records(c10::DeviceIndex device);

// Turn the content of the stream's record into a failure of the stream. A record that is not
// complete yet is read by a later wait.
void read_record(StreamState& stream);
void read_records();

}  // namespace detail

}  // namespace outboard

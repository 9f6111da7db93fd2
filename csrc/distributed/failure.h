// SPDX-License-Identifier: BSD-3-Clause
// The first failure of a group. A collective requires that all ranks have run the same collectives
// before. A group therefore does not survive a failure: every later call raises the first cause.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>

namespace outboard {

class GroupFailure {
 public:
  GroupFailure(std::string group, int rank) : group_(std::move(group)), rank_(rank) {}

  // Raise DistBackendError with the first cause, if there is one.
  void check(const char* operation) const;
  bool has_failed() const noexcept { return has_failed_.load(std::memory_order_acquire); }

  // Return the error of an operation that failed with `cause`: a DistBackendError that names group,
  // rank, operation and sequence number. The first error becomes the cause of all later ones.
  std::exception_ptr fail(const char* operation, uint64_t sequence, const std::exception_ptr& cause);
  // End the group for another reason: "it was aborted".
  void end(const std::string& reason);
  // Return the error for an operation that is in progress when the group ends.
  std::exception_ptr ended(const char* operation, uint64_t sequence) const;

 private:
  std::string place(const char* operation, uint64_t sequence) const;
  std::string first() const;
  void keep(const std::string& text);

  const std::string group_;
  const int rank_;
  std::atomic<bool> has_failed_{false};
  mutable std::mutex mutex_;
  std::string first_;  // guarded by mutex_
};

// Return a DistBackendError.
std::exception_ptr make_group_error(const std::string& text);

// Return an exception's message, without the stack that torch adds.
std::string text_of(const std::exception_ptr& error);

}  // namespace outboard

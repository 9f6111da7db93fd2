// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/failure.h"

#include <c10/util/Exception.h>

namespace outboard {

std::exception_ptr make_group_error(const std::string& text) {
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text));
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& known) {
    return known.what_without_backtrace();
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

std::string GroupFailure::place(const char* operation, uint64_t sequence) const {
  return "rank " + std::to_string(rank_) + " of group '" + group_ + "': " + operation + ", sequence number " +
         std::to_string(sequence) + ",";
}

std::string GroupFailure::first() const {
  const std::lock_guard lock(mutex_);
  return first_;
}

void GroupFailure::keep(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (first_.empty()) {
    first_ = text;
    has_failed_.store(true, std::memory_order_release);
  }
}

void GroupFailure::check(const char* operation) const {
  if (has_failed()) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str("rank ", rank_, " of group '", group_, "': ", operation,
                             " was not started because the group has failed: ", first(),
                             " Restart the processes (torchrun does), or create a new group of the remaining"
                             " ranks."));
  }
}

std::exception_ptr GroupFailure::fail(const char* operation, uint64_t sequence, const std::exception_ptr& cause) {
  if (has_failed()) {
    return ended(operation, sequence);
  }
  const std::string text = place(operation, sequence) + " failed: " + text_of(cause);
  keep(text);
  return make_group_error(text);
}

void GroupFailure::end(const std::string& reason) {
  keep(reason);
}

std::exception_ptr GroupFailure::ended(const char* operation, uint64_t sequence) const {
  return make_group_error(place(operation, sequence) + " did not complete because the group has failed: " + first());
}

}  // namespace outboard

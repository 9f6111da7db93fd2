// SPDX-License-Identifier: BSD-3-Clause
#include "core/error.h"

#include <c10/util/Exception.h>
#include <built/contract.inc>

#include <atomic>
#include <utility>

#include "core/device.h"
#include "core/driver.h"
#include "core/named_error.h"

namespace outboard {

namespace {

std::atomic<Raiser> installed_raiser{nullptr};
std::atomic<ErrorCopier> installed_copier{nullptr};
thread_local Failed entry_of_failure;

const char* code_name(ob_status status) {
  switch (status) {
#define X(name)    \
  case OB_##name: \
    return #name;
    OB_STATUSES(X)
#undef X
    default:
      return "UNKNOWN";
  }
}

ErrorKind kind_of(ob_status status) {
  switch (status) {
    case OB_INVALID_ARGUMENT:
    case OB_OUT_OF_RANGE:
    case OB_PROGRAM_REFUSED:
      return ErrorKind::InvalidArgument;
    case OB_OUT_OF_MEMORY:
      return ErrorKind::OutOfMemory;
    case OB_UNIMPLEMENTED:
      return ErrorKind::NotSupported;
    case OB_DEVICE_LOST:
      return ErrorKind::DeviceLost;
    default:
      return ErrorKind::Driver;
  }
}

// Return a place at or before `place` that is not within a character of UTF-8.
size_t begin_of_character(const std::string& text, size_t place) {
  while (place > 0 && (static_cast<unsigned char>(text[place]) & 0xC0) == 0x80) {
    --place;
  }
  return place;
}

// Return a text for a message: the first error of a build log is at its beginning, the count of
// errors at its end.
std::string shortened(const std::string& text) {
  constexpr size_t kFirst = 6144;
  constexpr size_t kLast = 2048;
  if (text.size() <= kFirst + kLast) {
    return text;
  }
  const size_t end = begin_of_character(text, kFirst);
  const size_t begin = begin_of_character(text, text.size() - kLast);
  return text.substr(0, end) + "\n[" + std::to_string(begin - end) + " bytes omitted]\n" + text.substr(begin);
}

}  // namespace

void set_raiser(Raiser raiser) {
  installed_raiser.store(raiser, std::memory_order_release);
}

void raise(ErrorKind kind, ob_status code, const std::string& message) {
  if (Raiser raiser = installed_raiser.load(std::memory_order_acquire)) {
    raiser(kind, code, message);
  }
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  switch (kind) {
    case ErrorKind::InvalidArgument:
      throw c10::ValueError(here, message);
    case ErrorKind::NotSupported:
      throw c10::NotImplementedError(here, message);
    case ErrorKind::OutOfMemory:
      throw c10::OutOfMemoryError(here, message);
    case ErrorKind::DeviceLost:
    case ErrorKind::BadDevice:
      throw c10::AcceleratorError(here, code, message);
    default:
      throw c10::Error(here, message);
  }
}

void set_error_copier(ErrorCopier copier) {
  installed_copier.store(copier, std::memory_order_release);
}

void raise_copy(const std::exception_ptr& error) {
  const ErrorCopier copier = installed_copier.load(std::memory_order_acquire);
  std::rethrow_exception(copier != nullptr ? copier(error) : error);
}

Failed failed_entry() noexcept {
  return entry_of_failure;
}

FailedEntry::FailedEntry(const char* entry, int device) noexcept
    : outer_(std::exchange(entry_of_failure, Failed{entry, device})) {}

FailedEntry::~FailedEntry() {
  entry_of_failure = outer_;
}

std::string status_name(ob_status status) {
  return std::string(code_name(status)) + " (" + std::to_string(status) + ")";
}

std::string last_driver_error() {
  if (!driver().last_error) {
    return {};
  }
  // Build logs are long. The driver cuts longer text.
  std::string text(1 << 16, '\0');
  driver().last_error(driver().self, text.data(), text.size());
  text.resize(text.find('\0') == std::string::npos ? text.size() : text.find('\0'));
  return shortened(text);
}

void raise_status(ob_status status, const char* entry, int device) {
  raise_status_of({}, status, entry, device);
}

std::string describe_status(const std::string& what, ob_status status, const char* entry, int device) {
  std::string message = "driver '" + driver_name() + "': " + entry;
  if (!what.empty()) {
    message += " (" + what + ")";
  }
  if (device >= 0) {
    message += " on device " + std::to_string(device);
  }
  message += " failed with " + status_name(status);
  if (const std::string reason = last_driver_error(); !reason.empty()) {
    message += ": " + reason;
  }
  return message;
}

void raise_status_of(const std::string& what, ob_status status, const char* entry, int device) {
  const FailedEntry failed(entry, device);
  std::string message = describe_status(what, status, entry, device);
  if (status == OB_DEVICE_LOST && device >= 0 && device < kMaxDevices) {
    mark_lost(static_cast<c10::DeviceIndex>(device), message);
    message += "\nThe device is lost to this process; restart the process to use it again.";
  }
  raise(kind_of(status), status, message);
}

void raise_not_supported(const char* entry, const std::string& what) {
  raise(ErrorKind::NotSupported, OB_UNIMPLEMENTED,
        what + " is not supported: driver '" + driver_name() + "' has no entry `" + entry +
            "`. Add the entry to the driver's table (see torch_outboard/driver.h), or avoid this operation.");
}

}  // namespace outboard
